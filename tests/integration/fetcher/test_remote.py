"""Fetchers in processes of their own, with real connections to the planner: killed, paused, refused, looked at."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace as changed

from kinesis_efo.calls.address import Listening
from kinesis_efo.cluster.remote import FetcherPlan
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.tasks.ranges import RangeReader
from kinesis_efo_tools.operate.live import ask
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fetcher_processes import FetcherProcesses
from tests.support.fetching import QUICK, Reading, Row, first_offset, prepare
from tests.support.world import World, wait_until

pytestmark = pytest.mark.slow
MakeWorld = Callable[..., World]
LOOPBACK = Listening()
NETWORK = Listening("0.0.0.0", hosts=("127.0.0.1",))


class Query(Reading):
    """Reads as Spark's tasks do: from the fetcher that the plan names, or from whom the planner says."""

    def read(self, wanted: ShardRange, client: Any = None) -> list[Row]:
        self.calls.repeats(wanted)
        (fetcher,) = self.runtime.call(self.runtime.whole.placed([wanted], 0.0, ""))
        planner = self.runtime.whole.planner_address
        assert planner is not None
        reader = RangeReader(self.runtime.secret, planner, 60.0)
        return [
            Row(r["stream"], r["shardId"], int(r["sequenceNumber"]), r["partitionKey"], r["data"])
            for batch in chain.from_iterable(
                decode(payloads, *part[:3], deaggregate=True) for part, payloads in reader.read([wanted], fetcher)
            )
            for r in batch.to_pylist()
        ]

    def shares(self) -> list[int]:
        assignments = self.runtime.whole.run.assignments
        assert assignments is not None
        return sorted(len(member.shards) for member in assignments.members)


@contextmanager
def reading(
    world: World, fetchers: FetcherProcesses, listening: Listening = LOOPBACK, **options: str
) -> Iterator[Query]:
    # A lease as long as nothing on a slow machine takes.
    runtime = prepare(
        world, limits=QUICK, listening=listening, start_fetchers=fetchers, **{"leaseTimeout": "6s", **options}
    )
    try:
        runtime.start()
        yield Query(runtime, None, first_offset(runtime))  # type: ignore[arg-type]
    finally:
        runtime.stop()
        ended = fetchers.ended()
        fetchers.end()
    assert ended, "a fetcher did not end with its query"


def asked(world: World) -> list[ShardStatus]:
    """What the run says of its shards, where its row says that it can be asked."""
    runs = {"orders": Lease.from_item(world.leases()["#run:orders"])}
    found = asyncio.run(ask({name: run for name, run in runs.items() if run is not None}))
    assert not found.reasons
    (answer,) = found.answers.values()
    return answer.shards


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"key{number}", b"%08d" % number) for number in range(first, first + count)]


def test_two_fetchers_read_everything_once_and_leave_nothing(world: MakeWorld) -> None:
    w = world({"orders": 4})
    w.put(numbered(200))
    fetchers = FetcherProcesses(2)
    with reading(w, fetchers) as query:
        assert sorted(row.data for row in query.until(200)) == [data for _, data in numbered(200)]
        wait_until(lambda: (query.batch(), query.shares() == [2, 2])[1], 30)
        w.put(numbered(200, 200))
        assert len({row.data for row in query.until(400)}) == 400
        query.commit()
        statuses = asked(w)
        assert {each.shard: each.done for each in statuses} == {key.shard: str(at) for key, at in query.offset.items()}
        assert sorted(Counter(each.fetcher for each in statuses).values()) == [2, 2]
        assert all(each.subscription and each.subscription.opened for each in statuses)
        # What was fetched again, as a shard moved from one fetcher to the other, counts for each.
        assert sum(each.subscription.arrived for each in statuses if each.subscription) >= 200 * 8
        numbers = {row.shard: row.sequence for row in query.rows}
    assert not [row for row in w.leases().values() if "leaseOwner" in row]
    stored = {key.split(":")[1]: row["checkpoint"]["S"] for key, row in w.leases().items() if key.startswith("orders:")}
    assert stored == {shard: str(number) for shard, number in numbers.items()}


def test_shards_of_a_killed_fetcher_move_to_the_other(world: MakeWorld) -> None:
    w = world({"orders": 4})
    w.put(numbered(100))
    fetchers = FetcherProcesses(2)
    with reading(w, fetchers, leaseTimeout="30s") as query:
        query.until(100)
        wait_until(lambda: (query.batch(), query.shares() == [2, 2])[1], 30)
        w.put(numbered(100, 100))
        wait_until(lambda: query.poll() != query.offset, 30)
        fetchers.kill(0)  # with ranges planned
        assert len({row.data for row in query.until(200, seconds=25)}) == 200, "before its lease would have expired"
        assert query.shares() == [4]
        fetchers.start(0)
        wait_until(lambda: (query.batch(), query.shares() == [2, 2])[1], 60)
        w.put(numbered(100, 200))
        assert len({row.data for row in query.until(300)}) == 300


def test_records_and_secret_are_encrypted_to_the_planner(world: MakeWorld) -> None:
    w = world({"orders": 2})
    proxies: list[CuttingProxy] = []

    def through_a_proxy(plan: FetcherPlan) -> FetcherPlan:
        proxies.append(CuttingProxy(plan.planner.port, lambda _: None).__enter__())
        address = changed(plan.planner, namespace="elsewhere", port=proxies[0].port)
        return FetcherPlan(plan.manifest, plan.options, address, plan.secret)

    w.put(numbered(50))
    try:
        with reading(w, FetcherProcesses(1, NETWORK, through_a_proxy), NETWORK) as query:
            query.until(50)
            secret = query.runtime.secret.encode()
            seen = bytes(proxies[0].passed)
    finally:
        proxies[0].__exit__(None, None, None)
    assert len(seen) > 2000
    assert not [told for told in (secret, b"orders", b"shardId-", b"working") if told in seen]
