"""Where the fetcher listens, and what tasks are told."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from types import SimpleNamespace

import pytest

from kinesis_efo.calls.address import Listening
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import DRIVER_HOST
from kinesis_efo.planner.host import SparkJvm, own_addresses, where_to_listen

OWN = ("10.0.0.7", "fd00::7")
LOCAL = SparkJvm(True, ("10.0.0.7",))
CLUSTER = SparkJvm(False, ("driver.example",))
UNKNOWN = SparkJvm()


def chosen(spark: SparkJvm, **options: str) -> Listening:
    return where_to_listen(SourceOptions.parse({"manifest": "m", **options}), spark, lambda: OWN)


def test_local_mode_serves_loopback_alone() -> None:
    assert chosen(LOCAL) == Listening("127.0.0.1", range(1), ())
    assert chosen(LOCAL).loopback_only
    assert chosen(LOCAL, fetcherPort="40000-40009") == Listening("127.0.0.1", range(40_000, 40_010), ())


def test_a_cluster_serves_every_address_and_tells_sparks_own_first() -> None:
    assert chosen(CLUSTER) == Listening("0.0.0.0", range(1), ("driver.example", "10.0.0.7", "fd00::7"))
    assert chosen(SparkJvm(False, ("fd00::7",))).hosts == ("fd00::7", "10.0.0.7")


def test_in_doubt_tasks_may_be_elsewhere() -> None:
    assert chosen(UNKNOWN) == Listening("0.0.0.0", range(1), OWN)


def test_what_read_stream_knows_comes_before_what_the_jvm_tells() -> None:
    assert chosen(CLUSTER, **{DRIVER_HOST: "10.0.0.9"}).hosts == ("10.0.0.9", *OWN)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_executors_that_reach_the_driver_at_loopback_reach_the_fetcher_there(host: str) -> None:
    assert chosen(UNKNOWN, **{DRIVER_HOST: host}) == Listening()
    # What the JVM was started with may hold no more.
    assert chosen(SparkJvm(False, (host,))) == Listening("0.0.0.0", range(1), OWN)


def test_the_users_address_is_the_only_one_that_is_told() -> None:
    for spark in (LOCAL, CLUSTER, UNKNOWN):
        assert chosen(spark, fetcherHost="gateway") == Listening("0.0.0.0", range(1), ("gateway",))
        assert chosen(spark, fetcherHost="localhost") == Listening()


def test_what_is_bound_to_one_address_is_told_by_that() -> None:
    for spark in (LOCAL, CLUSTER):
        assert chosen(spark, fetcherBindHost="10.0.0.7") == Listening("10.0.0.7", range(1), ("10.0.0.7",))
        assert chosen(spark, fetcherBindHost="::1") == Listening("::1", range(1), ("::1",))
        assert chosen(spark, fetcherBindHost="127.0.0.1") == Listening()
        behind_nat = chosen(spark, fetcherBindHost="10.0.0.7", fetcherHost="gateway")
        assert behind_nat == Listening("10.0.0.7", range(1), ("gateway",))
        assert not behind_nat.on_loopback


def test_who_binds_to_every_address_gets_that_in_local_mode_too() -> None:
    assert chosen(LOCAL, fetcherBindHost="::") == Listening("::", range(1), OWN)


@pytest.mark.parametrize(
    ("listening", "loopback_only", "on_loopback"),
    [
        (Listening(), True, True),
        (Listening("::1", hosts=("::1",)), True, False),
        (Listening("0.0.0.0"), False, True),
        (Listening("::", hosts=("10.0.0.7",)), False, True),
        (Listening("10.0.0.7", hosts=("10.0.0.7",)), False, False),
        (Listening("127.0.0.1", hosts=("gateway",)), False, True),
    ],
)
def test_what_leaves_the_host_is_not_loopback(listening: Listening, loopback_only: bool, on_loopback: bool) -> None:
    assert (listening.loopback_only, listening.on_loopback) == (loopback_only, on_loopback)


def test_addresses_that_no_other_host_reaches_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["fd00::7", "127.0.0.1", "169.254.1.2", "10.0.0.7", "fe80::1%eth0", "fe80::2", "0.0.0.0"]
    families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in given]
    addresses = [SimpleNamespace(family=family, address=each) for family, each in zip(families, given, strict=True)]
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"eth0": addresses, "docker0": addresses, "eth1": addresses})
    up = {"eth0": True, "docker0": True, "eth1": False}
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: SimpleNamespace(isup=isup) for name, isup in up.items()})
    assert own_addresses() == ["10.0.0.7", "fd00::7"]


def test_the_hosts_own_addresses_are_reachable_ones_ipv4_first() -> None:
    own = [ip_address(each) for each in own_addresses()]
    assert [each.version for each in own] == sorted(each.version for each in own)
    assert not any(each.is_loopback or each.is_link_local or each.is_unspecified for each in own)
