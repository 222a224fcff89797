"""Where the fetcher listens, and what tasks are told."""

from ipaddress import ip_address

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


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_executors_on_loopback_reach_the_fetcher_at_loopback(host: str) -> None:
    assert chosen(UNKNOWN, **{DRIVER_HOST: host}) == Listening()
    # What the JVM was started with may hold no more.
    assert chosen(SparkJvm(False, (host,))) == Listening("0.0.0.0", range(1), OWN)


def test_service_bound_to_one_address_announces_it() -> None:
    for spark in (LOCAL, CLUSTER):
        for option in ("fetcherHost", "fetcherBindHost"):
            assert chosen(spark, **{option: "10.0.0.7"}) == Listening("10.0.0.7", range(1), ("10.0.0.7",))
        assert chosen(spark, fetcherHost="10.0.0.8") == Listening("0.0.0.0", range(1), ("10.0.0.8",)), "of a gateway"
        assert chosen(spark, fetcherBindHost="::1") == Listening("::1", range(1), ("::1",))
        assert chosen(spark, fetcherBindHost="127.0.0.1") == Listening()
        behind_nat = chosen(spark, fetcherBindHost="10.0.0.7", fetcherHost="gateway")
        assert behind_nat == Listening("10.0.0.7", range(1), ("gateway",))
        assert not behind_nat.on_loopback


def test_the_hosts_own_addresses_are_reachable_ones_ipv4_first() -> None:
    own = [ip_address(each) for each in own_addresses()]
    assert [each.version for each in own] == sorted(each.version for each in own)
    assert not any(each.is_loopback or each.is_link_local or each.is_unspecified for each in own)
