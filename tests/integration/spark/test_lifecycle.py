"""The process that Spark keeps for a reader: how it ends, whatever Spark does with its connection.

The test plays Spark's part of the conversation, because a real one closes the connection right after the signal.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from kinesis_efo.tasks.client import FetcherClient
from tests.support.played_spark import PlayedSpark, ReaderFailed
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]


def owners(world: World) -> set[str]:
    return {row["leaseOwner"]["S"] for row in world.leases().values() if "leaseOwner" in row}


def read_to_the_end(spark: PlayedSpark) -> Any:
    start, rows = spark.step(spark.initial_offset())
    if rows:
        return start
    end = wait_until(lambda: (found := spark.latest_offset(start)) != start and found, what="an offset with data")
    assert spark.plan(start, end) == 1
    return end


def read_one_record(
    world: MakeWorld, play: Callable[..., PlayedSpark], lease_timeout: str = "600s"
) -> tuple[World, PlayedSpark, Any]:
    """A reader in the middle of its work, which holds a lease; and the end of its first micro-batch."""
    w = world()
    w.put([("k", b"1")])
    spark = play(w, leaseTimeout=lease_timeout)
    end = read_to_the_end(spark)
    assert len(owners(w)) == 1
    return w, spark, end


@pytest.mark.spark40
def test_sigterm_releases_leases_with_the_connection_open(world: MakeWorld, play: Callable[..., PlayedSpark]) -> None:
    w, spark, end = read_one_record(world, play, "1s")
    spark.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not owners(w), what="released leases")
    # Whatever is still asked is answered, so that a micro-batch under way ends as it would have.
    assert spark.latest_offset(end) == end
    spark.commit(end)
    assert spark.process.poll() is None


@pytest.mark.spark40
def test_sigterm_to_it_alone_fails_a_query_that_ends(world: MakeWorld, play: Callable[..., PlayedSpark]) -> None:
    w = world()
    w.put([("k", b"1")])
    spark = play(w, catchUp="true")
    end = read_to_the_end(spark)
    spark.process.send_signal(signal.SIGTERM)
    with pytest.raises(ReaderFailed, match="received SIGTERM, but Spark did not stop the query"):
        wait_until(lambda: spark.latest_offset(end) != end, what="an error")


# Shows process group signaled.
@pytest.mark.spark40
def test_sigterm_leaves_time_for_more_actions(world: MakeWorld, play: Callable[..., PlayedSpark]) -> None:
    w, spark, _ = read_one_record(world, play, "5s")
    (task,) = spark.tasks
    assert task.address is not None

    def action() -> list[bytes]:
        with FetcherClient(task.address, task.secret, query=task.query) as client:
            return [bytes(payload) for _, payloads in client.get(task.ranges) for payload in payloads]

    first = action()
    spark.process.send_signal(signal.SIGTERM)
    for _ in range(5):
        assert action() == first != []
    assert len(owners(w)) == 1
    wait_until(lambda: not owners(w), what="released leases")
