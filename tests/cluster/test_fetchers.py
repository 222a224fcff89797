"""Fetchers as Spark tasks on a cluster: killed, paused, cut off, and another number of them, with every record once and in order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.cluster.test_reading import assert_once_and_in_order
from tests.support.arriving import arriving, numbered
from tests.support.cluster import EXECUTOR, WORKER, WORKERS, Cluster
from tests.support.driven import Driver, Query
from tests.support.hosts import Host, Hosts
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MakeWorld = Callable[..., World]
TWO = {"fetchers": "2"}
PYTHON = "pyspark.daemon"


def fetchers_on(host: Host) -> list[psutil.Process]:
    """The fetchers on a host: workers forked by Spark's Python daemon that listen."""
    daemons = {process.pid for process in host.processes(PYTHON)}

    def is_one(process: psutil.Process) -> bool:
        try:
            return process.ppid() in daemons and bool(host.listening(process))
        except psutil.NoSuchProcess:
            return False

    return [process for process in host.processes(PYTHON) if is_one(process)]


def fetchers(hosts: Hosts) -> int:
    return sum(len(fetchers_on(hosts[name])) for name in WORKERS)


def read_some_more(query: Query, count: list[int]) -> None:
    """Wait until something is read that comes only now."""
    query.wait_for_rows(count[0] + 1)


def test_fetchers_come_and_go_with_their_query_and_any_number_of_them_goes_on(
    world: MakeWorld, hosts: Hosts, driver: Driver, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    put = w.put(numbered(200))
    with arriving(w, first=put) as count:
        for run, options in enumerate([TWO, {}]):
            query = driver.start(f"run-{run}", w, tmp_path, options=options)
            read_some_more(query, count)
            assert fetchers(hosts) == int(options.get("fetchers", 0))
            query.stop()
            wait_until(lambda: fetchers(hosts) == 0, 30, "the end of all fetchers")
        wait_until(lambda: not [row for row in w.leases().values() if "leaseOwner" in row], 30, "the end of the lease")
        query = driver.start("last", w, tmp_path, options={"fetchers": "1"})
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    query.stop()


@pytest.mark.cluster
def test_a_killed_executor_takes_nothing_with_it(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    driver = cluster.driver()
    query = driver.start("killed", w, tmp_path, options=TWO)
    with arriving(w, first=0) as count:
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 60, "two fetchers")
        victim = next(host for host in (hosts[name] for name in WORKERS) if fetchers_on(host))
        for process in victim.processes(EXECUTOR):
            process.kill()
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 120, "two fetchers again")
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    driver.kill()


@pytest.mark.cluster
def test_a_decommissioned_executor_counts_as_lost(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    # A fetcher's task has no end to wait for.
    conf = {"spark.decommission.enabled": "true", "spark.executor.decommission.forceKillTimeout": "5s"}
    driver = cluster.driver(conf=conf)
    query = driver.start("decommissioned", w, tmp_path, options=TWO)
    with arriving(w, first=0) as count:
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 60, "two fetchers")
        victim = next(host for host in (hosts[name] for name in WORKERS) if fetchers_on(host))
        (executor,) = (each for each in victim.processes(EXECUTOR) if each.name() == "java")
        executor.send_signal(signal.SIGPWR)
        read_some_more(query, count)
        wait_until(lambda: not executor.is_running(), 60, "the end of the executor")
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 120, "two fetchers again")
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    driver.kill()


def test_a_plain_query_cannot_have_fetchers_and_is_told_what_can(
    world: MakeWorld, driver: Driver, tmp_path: Path
) -> None:
    query = driver.start("refused", world(), tmp_path, options=TWO, plain=True)
    assert "cannot start Spark tasks: use kinesis_efo.read_stream(spark, ..., fetchers=2)" in query.failure()


@pytest.mark.cluster
def test_a_paused_fetcher_and_a_host_that_is_cut_off(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    driver = cluster.driver()
    query = driver.start("paused", w, tmp_path, options=TWO)
    with arriving(w, first=0) as count:
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 60, "two fetchers")
        (paused, *_) = [process for name in WORKERS for process in fetchers_on(hosts[name])]
        paused.send_signal(signal.SIGSTOP)
        read_some_more(query, count)
        before = count[0]
        query.wait_for_rows(before + 300, 180)  # about a minute
        paused.send_signal(signal.SIGCONT)
        read_some_more(query, count)
        hosts["worker2"].cut()
        cluster.wait_for_workers(["worker1"])
        read_some_more(query, count)
        hosts["worker2"].mend()
        cluster.wait_for_workers()
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    driver.kill()


@pytest.mark.cluster
@pytest.mark.parametrize("seed", [1])
def test_ten_kills_at_random_with_reshards(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    w = world({"orders": 4})
    driver = cluster.driver()
    query = driver.start("kills-0", w, tmp_path, options=TWO)
    with arriving(w, first=0) as count:
        for number in range(10):
            read_some_more(query, count)
            host = hosts[random.choice(WORKERS)]
            match random.choice(["executor", "executor", "python", "worker", "driver", "reader"]):
                case "executor":
                    for process in host.processes(EXECUTOR):
                        process.kill()
                case "python":
                    for process in host.processes(PYTHON):
                        process.kill()
                case "worker":
                    for process in host.processes(WORKER):
                        process.kill()
                    cluster.start_worker(host.name)
                case "driver" | "reader":
                    driver.kill()
                    wait_until(lambda: fetchers(hosts) == 0, 60, "the end of all fetchers")
                    driver = cluster.driver()
                    options = random.choice([TWO, {"fetchers": "1"}, {}])
                    query = driver.start(f"kills-{number + 1}", w, tmp_path, options=options)
            if number % 3 == 1:
                reshard(w, random)
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0], 300), count[0])
    driver.kill()


def reshard(w: World, random: Random) -> None:
    """Split a shard in the middle."""
    shard = random.choice([each for each in w.shards() if "EndingSequenceNumber" not in each["SequenceNumberRange"]])
    keys = [int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey")]
    w.kinesis.split_shard(
        StreamName=w.streams["orders"], ShardToSplit=shard["ShardId"], NewStartingHashKey=str(sum(keys) // 2)
    )
    w.wait_active()
