"""Fetchers as Spark tasks on a cluster: they come and go with their query, whatever their number."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.arriving import arriving, numbered
from tests.support.cluster import fetchers
from tests.support.driven import Driver, assert_once_and_in_order
from tests.support.hosts import Hosts
from tests.support.world import World, wait_until

pytestmark = pytest.mark.slow
MakeWorld = Callable[..., World]
TWO = {"fetchers": "2"}


@pytest.mark.spark40
@pytest.mark.cluster
def test_fetchers_of_any_number_follow_their_query(
    world: MakeWorld, hosts: Hosts, driver: Driver, tmp_path: Path
) -> None:
    w = world({"orders": 4})
    put = w.put(numbered(200))
    with arriving(w, first=put) as count:
        for run, options in enumerate([TWO, {}]):
            query = driver.start(f"run-{run}", w, tmp_path, options=options)
            query.wait_for_rows(count[0] + 1)
            assert fetchers(hosts) == int(options.get("fetchers", 0))
            query.stop()
            wait_until(lambda: fetchers(hosts) == 0, 30, "the end of all fetchers")
        wait_until(lambda: not [row for row in w.leases().values() if "leaseOwner" in row], 30, "the end of the lease")
        query = driver.start("last", w, tmp_path, options={"fetchers": "1"})
        query.wait_for_rows(count[0] + 1)
    assert_once_and_in_order(query.wait_for_rows(count[0]), count[0])
    query.stop()


@pytest.mark.spark
def test_a_plain_query_cannot_have_fetchers(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    query = driver.start("refused", world(), tmp_path, options=TWO, plain=True)
    assert "cannot start Spark tasks: use kinesis_efo.read_stream(spark, ..., fetchers=2)" in query.failure()
