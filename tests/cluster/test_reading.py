"""A query on a cluster reads every record once and in order, with a driver on any host, and when a host is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.arriving import arriving, numbered
from tests.support.cluster import MASTER, WORKERS, Cluster
from tests.support.driven import Driver, Query, assert_once_and_in_order
from tests.support.hosts import Hosts
from tests.support.world import World

pytestmark = pytest.mark.slow
MakeWorld = Callable[..., World]


def wait_for_both(query: Query) -> None:
    """Wait until both workers have read. A small micro-batch has one task, and Spark chooses the executor by chance."""
    query.wait_for(lambda rows: {row.host for row in rows} == set(WORKERS), "rows that either worker has read")


@pytest.mark.spark40
def test_tasks_on_both_workers_read_from_the_driver(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    w = world({"orders": 4})
    put = w.put(numbered(400))
    query = driver.start("reading", w, tmp_path)
    with arriving(w, first=put) as count:
        wait_for_both(query)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    query.stop()


@pytest.mark.spark
def test_a_plain_query_reads_on_a_cluster(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    w = world({"orders": 2})
    put = w.put(numbered(100))
    query = driver.start("plain", w, tmp_path, plain=True)
    with arriving(w, first=put) as count:
        wait_for_both(query)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    query.stop()


@pytest.mark.spark40
@pytest.mark.cluster
def test_a_cut_off_host_reads_again_afterwards(
    world: MakeWorld, hosts: Hosts, cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    query = driver.start("cut", w, tmp_path)
    with arriving(w, first=0) as count:
        wait_for_both(query)
        hosts["worker2"].cut()
        try:
            cluster.wait_for_workers(["worker1"])
            # What came before may have been under way to the lost host.
            before = count[0]
            query.wait_for_rows(before + 1)
        finally:
            hosts["worker2"].mend()
        cluster.wait_for_workers()
        # Both executors are on one host now, and Spark leaves them there.
        hosts["worker1"].processes(f"CoarseGrainedScheduler@{MASTER}:")[0].kill()
        known = len(query.wait_for_rows(before + 1))
        query.wait_for(
            lambda rows: "worker2" in {row.host for row in rows[known:]}, "rows read on the host that is back"
        )
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    query.stop()


@pytest.mark.spark
@pytest.mark.cluster
def test_the_driver_may_be_on_a_workers_host(
    world: MakeWorld, new_driver: Callable[..., Driver], tmp_path: Path
) -> None:
    w = world({"orders": 2})
    put = w.put(numbered(100))
    driver = new_driver(on="worker1")
    query = driver.start("elsewhere", w, tmp_path)
    with arriving(w, first=put) as count:
        wait_for_both(query)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
