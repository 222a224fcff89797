"""The run's lease in virtual time against the model of the table: what readers of streams rely on, scenario by scenario."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import NoneType

import pytest

from kinesis_efo.errors import (
    AlreadyRunningError,
    KinesisEfoError,
    LeaseError,
    LeaseLostError,
    LeaseTableError,
    TableUnavailableError,
)
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.run import LeaseListener, LeaseStats, RunLease
from kinesis_efo.leases.store import Outcome
from kinesis_efo.positions import Position
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.messages import raises
from tests.support.virtual_time import LoopClock

TIMEOUT = 10.0
KEYS = LeaseKeys({name: f"dev-{name}" for name in "pqrs"})


class Listener(LeaseListener):
    """Records the calls of a run's lease."""

    def __init__(self, fixture: Fixture, name: str) -> None:
        super().__init__()
        self._fixture = fixture
        self._name = name

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        self._fixture.events.append((self._name, stream, "taken"))

    def lease_lost(self, stream: str, owner: str | None) -> None:
        self._fixture.events.append((self._name, stream, owner))


class Fixture:
    """A table and the runs on it."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.networks: dict[str, Network] = {}
        self.events: list[tuple[str, str, str | None]] = []
        self.leases: list[RunLease] = []
        self.listeners: dict[RunLease, LeaseListener] = {}
        self.siblings: set[str] = set()

    async def begin(self, name: str = "a", streams: str = "", listener: LeaseListener | None = None) -> RunLease:
        network = self.networks[name] = Network(self.store, Random(name))
        lease = RunLease(
            network,
            name,
            KEYS,
            Timing(TIMEOUT),
            LoopClock(),
            Random(name),
            application="lake",
            is_sibling=self.siblings.__contains__,
        )
        self.leases.append(lease)
        self.listeners[lease] = listener = listener or Listener(self, name)
        await lease.start(listener, f"grpc://{name}")
        lease.request(streams)
        return lease

    async def held(self, name: str = "a", streams: str = "p") -> RunLease:
        """A run that has its leases."""
        lease = await self.begin(name, streams)
        await lease.wait_held(streams)
        return lease

    async def replaced(self) -> tuple[RunLease, RunLease]:
        """A run that lost the table, and another one that has its lease."""
        first = await self.held("a")
        self.a.cut = True
        second = await self.held("b")
        self.a.cut = False
        return first, second

    async def end(self) -> None:
        for network in self.networks.values():
            network.running.set()
        await asyncio.gather(*(lease.stop() for lease in self.leases))

    @property
    def a(self) -> Network:
        return self.networks["a"]

    def failure(self, lease: RunLease) -> KinesisEfoError | None:
        return self.listeners[lease].failure.error

    def row(self, stream: str = "p") -> Lease:
        return self.store.lease(run_key(stream))

    def put(self, *rows: Lease) -> None:
        self.store.items |= {row.key: row.to_item() for row in rows}

    @property
    def losses(self) -> list[tuple[str, str, str | None]]:
        return [event for event in self.events if event[2] != "taken"]


@pytest.fixture
def f() -> Fixture:
    return Fixture()


async def until(condition: object, seconds: float) -> float:
    """Wait in virtual time; returns how long it took."""
    assert callable(condition)
    start = now()
    while not condition():
        assert now() - start < seconds, "took too long"
        await asyncio.sleep(0.05)
    return now() - start


def now() -> float:
    return asyncio.get_running_loop().time()


# -- acquiring and renewing


async def test_leases_of_an_empty_table_are_acquired_at_once(f: Fixture) -> None:
    start = now()
    lease = await f.held(streams="pqr")
    assert now() - start < 0.1
    assert (f.row().owner, f.row().endpoint, f.row().epoch) == ("a", "grpc://a", 1)
    assert (lease.held, lease.wanted) == ({"p", "q", "r"}, {"p", "q", "r"})
    assert [lease.epoch(stream) for stream in "ps"] == [1, None]
    assert sorted(f.events) == [("a", stream, "taken") for stream in "pqr"]
    assert sorted(f.store.items) == ["#run:p", "#run:q", "#run:r"], "no row for a shard"
    assert f.a.requests["check"] == 1


# -- another run


# Shows 62.
async def test_second_run_is_refused_without_disturbing_the_first(f: Fixture) -> None:
    first = await f.held("a", "pq")
    second = await f.begin("b", "pqr")
    start = now()
    with raises(
        AlreadyRunningError,
        "application lake, stream p, is already read by a, last seen 1 s ago renewing lease #run:p; stop that query, or "
        "use a separate application for this one",
    ):
        await second.wait_held("pqr")
    assert TIMEOUT <= now() - start < TIMEOUT + 2
    assert (first.held, second.held) == ({"p", "q"}, set())
    assert run_key("r") not in f.store.items, "it acquires nothing next to the first"
    assert f.losses == []
    assert [type(f.failure(lease)) for lease in f.leases] == [NoneType, AlreadyRunningError]


async def test_second_source_of_one_program_has_its_remedy(f: Fixture) -> None:
    await f.held()
    f.siblings.add("a")
    second = await f.begin("b", "p")
    with pytest.raises(
        AlreadyRunningError,
        match=r"stream p, is already read by this Spark program itself, by another of its sources \(process a\), last seen .*"
        "share a run if they can find each other: (?!.*stop that query).*"
        "with foreachBatch, or use a separate application for this source",
    ):
        await second.wait_held("p")


async def test_refused_further_stream_does_not_end_the_run(f: Fixture) -> None:
    first, second = await f.held("a", "p"), await f.held("b", "q")
    first.extend("qr")
    with pytest.raises(AlreadyRunningError, match=r"stream q, .* by b,"):
        await first.wait_held("pqr")
    await first.wait_held("pr")
    await asyncio.sleep(3 * TIMEOUT)
    assert (first.held, second.held, f.losses) == ({"p", "r"}, {"q"}, [])
    assert f.failure(first) is None
    with pytest.raises(AlreadyRunningError):
        await first.wait_held("q")
    await second.stop()
    first.extend("q")
    await first.wait_held("pqr")


async def test_further_stream_once_read_counts_like_any(f: Fixture) -> None:
    first = await f.held("a")
    first.extend("q")
    await first.wait_held("pq")
    f.a.running.clear()
    await asyncio.sleep(2 * TIMEOUT)
    await f.held("b", "q")
    f.a.running.set()
    await until(lambda: isinstance(f.failure(first), AlreadyRunningError | LeaseLostError), 3 * TIMEOUT)


async def test_further_stream_of_the_run_itself_counts_like_any(f: Fixture) -> None:
    first, _ = await f.held("a", "p"), await f.held("b", "q")
    first.extend("q")
    with pytest.raises(AlreadyRunningError):
        await first.wait_held("q")
    assert f.failure(first) is None
    first.request("pq")
    await until(lambda: isinstance(f.failure(first), AlreadyRunningError), TIMEOUT)


# Shows 71.
async def test_runs_that_start_at_once_do_not_split_streams(f: Fixture) -> None:
    leases = [await f.begin(name, "pqrs") for name in "ab"]
    outcomes = await asyncio.gather(*(lease.wait_held("pqrs") for lease in leases), return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyRunningError", "NoneType"]
    assert sorted(len(lease.held) for lease in leases) == [0, 4]


# Shows 62, 66, KCL renews rows.
async def test_live_run_of_version_0_1_is_not_disturbed(f: Fixture) -> None:
    old = Lease("p:shardId-1", 1, "old", Position.after(5))

    async def renew() -> None:
        for counter in range(2, 1000):
            f.put(replace(old, counter=counter))
            await asyncio.sleep(TIMEOUT / 3)

    renewing = asyncio.create_task(renew())
    lease = await f.begin(streams="pq")
    with pytest.raises(AlreadyRunningError, match=r"old, .* lease p:shardId-1"):
        await lease.wait_held("pq")
    assert not [key for key in f.store.items if key.startswith("#run:")]
    renewing.cancel()
    start = now()
    await f.held("b", "pq")
    assert TIMEOUT * 0.6 < now() - start < TIMEOUT + 0.2


# Shows 67, 71, driver killed.
async def test_leases_of_a_crashed_run_are_acquired_on_expiry(f: Fixture) -> None:
    await f.held("a", "pq")
    f.a.running.clear()
    start = now()
    second = await f.held("b", "pq")
    assert TIMEOUT <= now() - start < TIMEOUT + 0.2, "nor later than that"
    assert second.epoch("p") == 2


# -- losing


async def test_distribution_by_kinesis_is_stored_for_later_runs(f: Fixture) -> None:
    first = await f.held("a", "pq")
    assert "p" not in first.notes.distributed
    first.notes.distributed.add("p")
    await until(lambda: f.row("p").distributed, TIMEOUT)
    first.notes.distributed.add("q")
    await first.stop()
    assert (f.row("p").distributed, f.row("q").distributed) == (True, True), "also where the next renewal never came"
    assert "p" in (await f.held("b", "pq")).notes.distributed
    await asyncio.sleep(2 * TIMEOUT)
    assert f.row("p").distributed
    assert "distribution" not in Lease(run_key("q")).to_item(), "absent where it was not seen"


# Shows 63.
async def test_lost_lease_names_its_new_owner(f: Fixture) -> None:
    lease = await f.held(streams="pq")
    f.put(f.row().taken("thief", "", 9))
    await until(lambda: ("a", "p", "thief") in f.events, TIMEOUT / 2)
    assert (lease.is_held("p"), lease.epoch("p"), lease.is_held("q")) == (False, None, True)
    assert lease.stats == LeaseStats(taken=2, lost_to_others=1)
    assert lease.wanted == {"p", "q"}


# Shows lease table away.
async def test_leases_end_at_the_deadline_and_come_back(f: Fixture) -> None:
    lease = await f.held(streams="pq")
    await asyncio.sleep(20)
    f.a.throttled = True
    assert await until(lambda: not lease.held, TIMEOUT + 0.2) > TIMEOUT * 2 / 3 - 0.2
    await asyncio.sleep(0.1)
    assert set(f.losses) == {("a", "p", None), ("a", "q", None)}
    await asyncio.sleep(60 - TIMEOUT)
    f.a.throttled = False
    await until(lambda: lease.held == {"p", "q"}, 3)
    assert f.failure(lease) is None
    assert lease.stats == LeaseStats(taken=4, not_renewed=2)


# Shows lease table away.
async def test_long_outage_ends_the_run_with_its_last_error(f: Fixture) -> None:
    lease = await f.held()
    f.a.throttled = True
    await asyncio.sleep(Timing(TIMEOUT).patience - 1)
    assert f.failure(lease) is None
    with raises(
        TableUnavailableError,
        "application lake: the lease table could not be used for 601 s, given up: lease table memory: throttled. Nothing "
        "was lost: restart the query; to wait longer, raise kinesis-efo option 'retryTimeout'",
    ):
        await lease.wait_held("p", at_most=30)


# Shows lease table away.
async def test_run_that_was_replaced_meanwhile_ends(f: Fixture) -> None:
    first, second = await f.replaced()
    await second.stop()
    with raises(
        LeaseLostError,
        "application lake: another run owned the lease on stream p while this one could not renew it, and has ended since. "
        "Nothing was lost: restart this query, and run one query per application",
    ):
        await first.wait_held("p")


# -- what needs a person


# Shows 69.
async def test_broken_row_is_an_error_only_where_read(f: Fixture) -> None:
    f.store.items["q:shardId-1"] = {"leaseKey": {"S": "q:shardId-1"}}
    lease = await f.held()
    lease.request("pq")
    with raises(
        LeaseTableError,
        "lease row 'q:shardId-1' has no attribute 'leaseCounter' in lease table memory; correct or delete the row",
    ):
        await lease.wait_held("q")
    assert isinstance(f.failure(lease), LeaseTableError), "the run ends, unlike for a further stream"


async def test_waiting_has_an_end_and_names_the_obstacle(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    f.a.throttled = True
    with pytest.raises(TableUnavailableError, match=r"p, q was not acquired within 30 s: .*throttled"):
        await lease.wait_held("pq", at_most=30)
    f.a.throttled, f.a.refused = False, frozenset({"create"})
    with pytest.raises(TableUnavailableError, match=r"within 5 s: .*throttled"):
        await lease.wait_held("p", at_most=5)
    f.a.refused = frozenset()
    await lease.wait_held("p", at_most=5)
    f.a.cut = True
    with raises(TableUnavailableError, "application lake: the lease on stream r was not acquired within 1 s"):
        await lease.wait_held("r", at_most=1)


async def test_error_in_the_listener_ends_the_run(f: Fixture) -> None:
    class FailsToBegin(LeaseListener):
        def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
            raise KeyError(stream)

    class FailsToEnd(LeaseListener):
        def lease_lost(self, stream: str, owner: str | None) -> None:
            raise KeyError(stream)

    lease = await f.begin(streams="p", listener=FailsToBegin())
    with raises(LeaseError, "application lake: the run's lease failed: KeyError('p')"):
        await lease.wait_held("p")
    lease = await f.begin("b", streams="q", listener=FailsToEnd())
    await lease.wait_held("q")
    f.put(replace(f.row("q"), owner="c", counter=99))
    await until(lambda: isinstance(failure := f.failure(lease), LeaseError) and failure.__cause__, TIMEOUT)


# -- stopping


# -- what readers may rely on in time


async def test_remaining_seconds_of_a_lease_are_certain(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    assert lease.seconds("p") == 0
    await lease.wait_held("p")
    assert TIMEOUT - 0.1 < lease.seconds("p") <= TIMEOUT
    assert lease.seconds("q") == 0
    f.a.cut, f.a.patience = True, 1000
    await asyncio.sleep(TIMEOUT / 2)
    assert 0 < lease.seconds("p") < TIMEOUT * 0.9
    await asyncio.sleep(TIMEOUT / 2 + 0.2)
    assert (lease.seconds("p"), f.losses) == (0, [("a", "p", None)]), "a hanging renewal does not delay it"


@pytest.mark.parametrize(("owner", "soon"), [("a", True), ("b", False)])
async def test_row_of_an_earlier_write_is_acquired_at_once(f: Fixture, owner: str, soon: bool) -> None:
    """And one that another run has made just before is looked at again later, not over and over."""
    lease = await f.begin()
    create = f.a.create

    async def late(row: Lease) -> Outcome:
        if row.key not in f.store.items:
            f.put(replace(row, owner=owner))
        return await create(row)

    f.a.create = late  # type: ignore[method-assign]
    lease.request("p")
    if soon:
        assert await until(lambda: lease.held == {"p"}, 5) < 0.2
        return
    await asyncio.sleep(2)
    assert lease.held == set()
    assert f.a.requests["scan"] <= 4


async def test_unreadable_row_of_further_stream_is_refused_at_once(f: Fixture) -> None:
    lease = await f.held()
    f.a.slow = {run_key("r"): 5}
    f.store.items["q:shardId-1"] = {"leaseKey": {"S": "q:shardId-1"}}
    lease.extend("qr")
    start = now()
    with pytest.raises(LeaseTableError, match="correct or delete the row"):
        await lease.wait_held("q")
    assert now() - start < 0.2
    await lease.wait_held("r")
    await asyncio.sleep(3 * TIMEOUT)
    assert lease.held == {"p", "r"}
    assert f.failure(lease) is None
