"""Fetchers on a cluster, killed, paused and cut off, with every record once and in order.

These tests come last: the cluster's other drivers lose executors, too.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.support.arriving import arriving
from tests.support.cluster import (
    DAEMON,
    EXECUTOR,
    MASTER,
    READER,
    WORKER,
    WORKERS,
    Cluster,
    executor_of,
    fetchers,
    fetchers_on,
)
from tests.support.driven import Driver, Query, Sink, assert_once_and_in_order, reshard
from tests.support.hosts import Hosts
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
MakeWorld = Callable[..., World]
NewDriver = Callable[..., Driver]
TWO = {"fetchers": "2"}
STILL_SECONDS = 60.0
"""Nobody stands still for longer."""


def read_some_more(query: Query, count: list[int]) -> None:
    """Wait until something is read that comes only now."""
    query.wait_for_rows(count[0] + 1)


def test_a_decommissioned_executor_counts_as_lost(
    world: MakeWorld, hosts: Hosts, new_driver: NewDriver, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    # A fetcher's task has no end to wait for.
    conf = {"spark.decommission.enabled": "true", "spark.executor.decommission.forceKillTimeout": "5s"}
    driver = new_driver(conf=conf)
    query = driver.start("decommissioned", w, tmp_path, options=TWO)
    with arriving(w, first=0) as count:
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 60, "two fetchers")
        victim = next(host for host in (hosts[name] for name in WORKERS) if fetchers_on(host))
        executor = executor_of(fetchers_on(victim)[0])
        executor.send_signal(signal.SIGPWR)
        read_some_more(query, count)
        wait_until(lambda: not executor.is_running(), 60, "the end of the executor")
        read_some_more(query, count)
        wait_until(lambda: fetchers(hosts) == 2, 120, "two fetchers again")
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])


def test_a_paused_fetcher_and_a_cut_host_lose_nothing(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, new_driver: NewDriver, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    driver = new_driver()
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


@pytest.mark.parametrize("seed", [1])
def test_ten_kills_at_random_with_reshards(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, new_driver: NewDriver, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    w = world({"orders": 4})
    driver = new_driver()
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
                    for process in host.processes(DAEMON):
                        process.kill()
                case "worker":
                    for process in host.processes(WORKER):
                        process.kill()
                    cluster.start_worker(host.name)
                case "driver" | "reader":
                    driver.kill()
                    wait_until(lambda: fetchers(hosts) == 0, 60, "the end of all fetchers")
                    driver = new_driver()
                    options = random.choice([TWO, {"fetchers": "1"}, {}])
                    query = driver.start(f"kills-{number + 1}", w, tmp_path, options=options)
            if number % 3 == 1:
                reshard(w, random)
        read_some_more(query, count)
    assert_once_and_in_order(query.wait_for_rows(count[0], 300), count[0])


def test_two_queries_of_one_program_outlive_ten_kills(
    world: MakeWorld, hosts: Hosts, new_driver: NewDriver, tmp_path: Path
) -> None:
    """In turn: an executor or a fetcher, the run, a planner."""
    random = Random(1)
    w = world({"orders": 4})
    driver = new_driver()

    def planners() -> list[psutil.Process]:
        return hosts[MASTER].processes(READER)

    with arriving(w, first=0) as count:
        sinks = [Sink(driver, w, name, tmp_path, TWO) for name in ("one", "two")]
        for number in range(10):
            for sink in sinks:
                sink.query.wait_for_rows(count[0] + 1, STILL_SECONDS)
            wait_until(lambda: fetchers(hosts) == 2, 60, "two fetchers")
            survivors = list(sinks)
            if number % 3 == 0:
                victim = next(host for host in (hosts[name] for name in WORKERS) if fetchers_on(host))
                for process in victim.processes(EXECUTOR) if number % 2 else fetchers_on(victim)[:1]:
                    process.kill()
            else:
                assert len(planners()) == 2
                if number % 3 == 1:
                    w.reader().kill()  # the run: no query notices
                else:
                    planners()[0].kill()
                    (failed,) = wait_until(lambda: [sink for sink in sinks if sink.failed], 60, "the end of one query")
                    survivors.remove(failed)
            if number in (2, 6):
                reshard(w, random)
            for sink in survivors:
                sink.query.wait_for_rows(count[0] + 1, STILL_SECONDS)
            for sink in sinks:
                if sink not in survivors:
                    sink.start()
        for sink in sinks:
            sink.query.wait_for_rows(count[0] + 1, STILL_SECONDS)
    for sink in sinks:
        assert_once_and_in_order(sink.query.wait_for_rows(count[0], STILL_SECONDS), count[0])
        sink.query.stop()
    wait_until(lambda: not planners() and not fetchers(hosts), 60, "the end of all planners and fetchers")
    assert not [row for row in w.leases().values() if "leaseOwner" in row], "the lease is free"
