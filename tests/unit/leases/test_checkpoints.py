"""Checkpoints in virtual time against the model of the table: when they are written, by whom, and what they never overwrite."""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.errors import LeaseError, LeaseLostError, LeaseTableError
from kinesis_efo.failure import Failure
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.messages import raises
from tests.support.virtual_time import LoopClock, run

KEYS = LeaseKeys({"s": "dev-s", "t": "dev-t"})
STREAM = StreamIdentity("arn:s", 1_700_000_000)


def shard(name: str) -> ShardKey:
    return ShardKey("s", name)


def infos(names: str, **about: frozenset[str]) -> dict[ShardKey, LeaseInfo]:
    return {shard(name): LeaseInfo(parents=about.get(name, frozenset())) for name in names}


class Run:
    """The checkpoints of one run."""

    def __init__(self, store: MemoryLeaseStore, epoch: int | None = 1, rate: float = 25.0) -> None:
        self.epoch = epoch
        self.network = Network(store, Random(7))
        self.identities = {"s": STREAM, "t": STREAM}
        self.failure = Failure()
        self.known: dict[tuple[ShardKey, Position], float] = {}
        self.checkpoints = Checkpoints(
            self.network,
            KEYS,
            lambda _stream: self.epoch,
            lambda stream: self.identities[stream],
            rate,
            LoopClock(),
            read_until=lambda key, position: self.known.get((key, position)),
            failure=self.failure,
        )

    async def begin(self, names: str = "") -> Checkpoints:
        """Start with the rows of the table, and read these shards."""
        self.checkpoints.start()
        self.checkpoints.load("s", (await self.network.scan()).leases)
        self.checkpoints.request(infos(names))
        return self.checkpoints


class Fixture:
    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.runs: list[Run] = []

    def run(self, epoch: int | None = 1, rate: float = 25.0) -> Run:
        self.runs.append(Run(self.store, epoch, rate))
        return self.runs[-1]

    async def begin(self, names: str = "", epoch: int = 1) -> Checkpoints:
        return await self.run(epoch).begin(names)

    def row(self, name: str) -> Lease:
        return self.store.lease(f"s:{name}")

    def at(self, name: str = "p") -> Position | None:
        return self.row(name).position

    def put(self, *rows: Lease) -> None:
        self.store.items |= {row.key: row.to_item() for row in rows}

    async def end(self) -> None:
        for each in self.runs:
            each.network.cut = each.network.throttled = False
            await each.checkpoints.stop()


@pytest.fixture
def f() -> Fixture:
    return Fixture()


EARLIER = StreamIdentity("arn:s", 1_600_000_000)


def stray(name: str, checkpoint: Position = SHARD_END, epoch: int = 7, **more: object) -> Lease:
    """The row of a shard of an earlier stream."""
    return Lease(f"s:{name}", 41, checkpoint=checkpoint, epoch=epoch, stream=EARLIER, **more)  # type: ignore[arg-type]


# -- writing


async def test_shard_gets_a_row_once_it_is_read(f: Fixture) -> None:
    checkpoints = await f.begin(epoch=3)
    start = LeaseInfo(Position.at_timestamp(7), frozenset({"o"}), "0", "9")
    checkpoints.request({shard("p"): start, **infos("q")})
    await asyncio.sleep(0.2)
    assert f.row("p") == Lease(
        "s:p",
        0,
        None,
        Position.at_timestamp(7),
        parents=frozenset({"o"}),
        starting_hash_key="0",
        ending_hash_key="9",
        epoch=3,
        stream=STREAM,
    )
    assert f.at("q") == TRIM_HORIZON


@pytest.mark.slow
async def test_writes_are_paced_and_every_shard_has_its_turn(f: Fixture) -> None:
    checkpoints = await f.run(rate=25.0).begin()
    names = [f"{number:04}" for number in range(1000)]
    shards = [shard(name) for name in names]
    checkpoints.request({key: LeaseInfo() for key in shards})
    await asyncio.sleep(45)
    assert len(f.store.items) == 1000, "each has a row"
    before = len(f.store.writes)
    for second in range(120):
        for key in shards:
            checkpoints.update(key, Position.after(second))
        await asyncio.sleep(1)
    written = Counter(key for key, *_ in f.store.writes[before:])
    assert 120 * 25 * 0.8 <= written.total() <= 120 * 25 + 25
    assert len(written) == 1000
    assert set(written.values()) <= {2, 3, 4}, "the oldest first"


# Shows 64.
async def test_stop_writes_everything_at_once(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    shards = [shard(f"{number:04}") for number in range(1000)]
    checkpoints.request({key: LeaseInfo() for key in shards})
    for key in shards:
        checkpoints.update(key, Position.after(9))
    start = asyncio.get_running_loop().time()
    await checkpoints.stop()
    assert asyncio.get_running_loop().time() - start < 2
    assert {f.store.lease(key).position for key in f.store.items} == {Position.after(9)}
    assert len(f.store.items) == 1000
    assert each.network.most_in_flight <= 32


# -- only while the lease is held, and not over what another run has written


async def test_nothing_is_written_without_the_lease(f: Fixture) -> None:
    each = f.run(epoch=None)
    await each.begin("p")
    await asyncio.sleep(30)
    assert f.store.items == {}
    each.epoch = 4
    await asyncio.sleep(2)
    assert f.row("p").epoch == 4


# Shows KCL renews rows.
async def test_row_acquired_by_a_kcl_ends_the_run(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin("p")
    await asyncio.sleep(1)
    f.put(replace(f.row("p"), counter=5, owner="kcl-worker-3"))
    checkpoints.update(shard("p"), Position.after(6))
    await asyncio.sleep(10)
    assert f.at() == TRIM_HORIZON
    with raises(
        LeaseLostError,
        "kcl-worker-3 took lease s:p while this query was reading: a KCL application uses lease table memory, too. "
        "Nothing was lost; stop it, or use a separate application for this query",
    ):
        each.failure.raise_if_set()


async def test_row_that_is_no_lease_ends_the_run(f: Fixture) -> None:
    calls = []

    async def refuse(lease: Lease) -> Conflict:
        calls.append(lease.key)
        await asyncio.sleep(0)
        return Conflict(None)

    each = f.run()
    f.store.create = refuse  # type: ignore[method-assign,assignment]
    await each.begin("p")
    await asyncio.sleep(10)
    with raises(LeaseTableError, "lease table memory: row s:p exists and is not a lease; delete it"):
        each.failure.raise_if_set()
    assert calls == ["s:p"]
    del f.store.create


# -- how far a shard is done


async def test_stored_position_is_pending_or_written(f: Fixture) -> None:
    f.put(
        Lease("s:p", 4, checkpoint=Position.after(70), continuation=70, epoch=1, stream=STREAM),
        Lease("q", 4, checkpoint=Position.after(7), continuation=7, epoch=1),  # its key has no stream: a KCL's
        stray("r", epoch=1),
    )
    checkpoints = await f.begin(epoch=2)

    def stored() -> list[Position | None]:
        return [checkpoints.stored(shard(name)) for name in "pqrs"]

    assert stored() == [Position.after(70), None, None, None], "rows of another stream and of a KCL say nothing"
    checkpoints.update(shard("p"), Position.after(80))
    checkpoints.update(shard("s"), Position.after(5))
    done = [Position.after(80), None, None, Position.after(5)]
    assert stored() == done
    assert f.at() == Position.after(70), "not written yet"
    await asyncio.sleep(10)
    assert sorted(f.store.items) == ["q", "s:p", "s:r"], "a KCL's row stays, and others until a query reads the stream"
    assert stored() == done


# -- until when a shard was read


async def test_row_has_the_time_until_which_it_was_read(f: Fixture) -> None:
    each = f.run()
    each.known[shard("p"), TRIM_HORIZON] = 111.0
    checkpoints = await each.begin("pq")
    await asyncio.sleep(1)
    assert [f.row(name).read_until for name in "pq"] == [111, None]
    assert checkpoints.read_until(shard("p"), TRIM_HORIZON) == 111
    assert checkpoints.read_until(shard("p"), Position.after(5)) is None, "the horizon may have been behind that"
    assert checkpoints.read_until(shard("q"), Position.after(5)) is None
    checkpoints.update(shard("p"), Position.after(9))
    await asyncio.sleep(10)
    assert f.row("p").read_until == 111, "what is behind the horizon is read"
    assert checkpoints.read_until(shard("p"), TRIM_HORIZON) is None, "the row has passed it"
    checkpoints.update(shard("p"), Position.after(10))
    await asyncio.sleep(10)
    assert checkpoints.read_until(shard("p"), Position.after(5)) is None, "the row's checkpoint lies behind that"
    each.known[shard("p"), Position.after(10)] = 222.0
    await checkpoints.stop()
    assert f.row("p").read_until == 222
    assert checkpoints.read_until(shard("p"), Position.after(10)) == 222, "true of every later position, too"


# -- shard end


# Shows 57.
async def test_finished_shard_is_deleted_once_its_children_begin(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    checkpoints.request({shard("p"): LeaseInfo(starting_hash_key="0", ending_hash_key="9")})
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"c", "d"})
    checkpoints.update(shard("p"), Position.after(1))  # a late one of a batch before
    checkpoints.request(infos("cd", c=frozenset("p"), d=frozenset("p")))
    await asyncio.sleep(1)
    assert (f.at(), f.row("p").children) == (SHARD_END, {"c", "d"})
    checkpoints.update(shard("c"), Position.after(10))
    await asyncio.sleep(130)
    assert "s:p" in f.store.items, "a child is still at its start"
    checkpoints.update(shard("d"), Position.after(20))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:c", "s:d"]
    await asyncio.sleep(600)
    assert run.network.requests["delete"] == 1, "a row that is gone is not deleted again with each cleanup"


async def test_shard_finished_before_its_row_exists_gets_one(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    run.network.cut = True
    checkpoints.request(infos("pq", q=frozenset({"p"})))
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"q"})
    checkpoints.request(infos("q", q=frozenset({"p"})))
    await asyncio.sleep(5)
    assert not f.store.items
    run.network.cut = False
    await asyncio.sleep(5)
    assert (f.at(), f.row("p").children) == (SHARD_END, frozenset({"q"}))
    assert f.at("q") == TRIM_HORIZON
    checkpoints.update(shard("q"), Position.after(5))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:q"], "and is cleaned up as any other"
    assert run.failure.error is None


async def test_parent_left_behind_by_a_crash_is_finished(f: Fixture) -> None:
    """Spark had planned the micro-batch without the parent, and the process died before the parent's last checkpoint."""
    parent = Lease("s:p", 4, "dead", Position.after(70))
    children = [Lease(f"s:{name}", 1, "dead", parents=frozenset("p")) for name in "cd"]
    f.put(parent, *children, Lease("t:p", 4, checkpoint=Position.after(70)))
    checkpoints = await f.begin("p")
    checkpoints.request(infos("cd", c=frozenset("p"), d=frozenset("p")))
    await asyncio.sleep(70)
    assert (f.at(), f.row("p").owner, f.row("p").children) == (SHARD_END, None, {"c", "d"})
    for name in "cd":
        checkpoints.update(shard(name), Position.after(80))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:c", "s:d", "t:p"], "another stream's rows stay"


# -- whatever happens


# Shows 79.
@given(st.data())
def test_checkpoint_never_goes_back_and_the_last_is_written(data: st.DataObject) -> None:
    """Two runs, one after the other or beside each other for a while, on a network that loses requests and answers."""

    async def main() -> None:
        store = MemoryLeaseStore()
        each = [Run(store, epoch) for epoch in (1, 2)]
        position = 0
        current = 0
        for number in (0, 1):
            checkpoints = await each[number].begin("pq")
            current = number
            for _ in range(data.draw(st.integers(1, 6))):
                position += 1
                network = each[current].network
                network.lose_answers = data.draw(st.sampled_from([0.0, 0.5]))
                network.lose_requests = data.draw(st.sampled_from([0.0, 0.5]))
                network.late = 0.5
                for name in data.draw(st.sampled_from(["p", "q", "pq"])):
                    checkpoints.update(shard(name), Position.after(position))
                await asyncio.sleep(data.draw(st.sampled_from([0.1, 3.0, 8.0])))
            network.lose_answers = network.lose_requests = 0.0
        await asyncio.sleep(60)
        for name in "pq":
            checkpoints.update(shard(name), Position.after(position + 1))
        each[0].epoch = None
        await each[0].checkpoints.stop()
        await each[1].checkpoints.stop()
        await asyncio.gather(*each[0].network.stragglers, *each[1].network.stragglers)
        for _, before, after in store.writes:
            old, new = Lease.from_item(before or after or {}), Lease.from_item(after or {})
            assert old is not None
            assert new is not None
            assert new.epoch >= old.epoch
            assert new.position is not None
            assert old.position is not None
            assert new.position.reaches(old.position)
        assert {store.lease(f"s:{name}").position for name in "pq"} == {Position.after(position + 1)}
        assert each[0].failure.error is each[1].failure.error is None

    run(main())


# -- what is told, and what is left alone


@pytest.mark.parametrize("leaves_after", [10, 1000])
async def test_parent_that_only_left_is_deleted(f: Fixture, leaves_after: float) -> None:
    """Also long after the last cleanup, when none was due."""
    checkpoints = await f.begin("p")
    checkpoints.update(shard("p"), Position.after(5))
    await asyncio.sleep(leaves_after)
    checkpoints.request(infos("cd", c=frozenset("p"), d=frozenset("p")))
    await asyncio.sleep(10)
    for name in "cd":
        checkpoints.update(shard(name), Position.after(80))
    await asyncio.sleep(200)
    assert sorted(f.store.items) == ["s:c", "s:d"]


async def test_unexpected_error_ends_the_run(f: Fixture) -> None:
    run = f.run()
    await run.begin("p")
    run.identities = {}
    await asyncio.sleep(5)
    with raises(LeaseError, "lease table memory: writing checkpoints failed: KeyError('s')"):
        run.failure.raise_if_set()
    run.identities = {"s": STREAM}


async def test_each_outage_is_logged_once_and_retried_slowly(f: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    run, names = f.run(), "abcdefghijklmnopqrstuvwxyz"
    checkpoints = await run.begin(names)
    await asyncio.sleep(30)
    for number in (1, 2):
        before = Counter(run.network.requests)
        run.network.throttled = True
        for name in names:
            checkpoints.update(shard(name), Position.after(number))
        await asyncio.sleep(60)
        assert 10 <= (Counter(run.network.requests) - before)["update"] <= 61, "one call a second for all shards"
        run.network.throttled = False
        await asyncio.sleep(60)
        assert {f.at(name) for name in names} == {Position.after(number)}
    assert run.failure.error is None
    assert [line for line in caplog.messages if line.startswith("checkpoints wait")] == [
        "checkpoints wait: lease table memory: throttled"
    ] * 2


async def with_a_child(run: Run) -> Checkpoints:
    """A shard has ended, and its child is read."""
    checkpoints = await run.begin("p")
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"c"})
    checkpoints.request(infos("c", c=frozenset("p")))
    checkpoints.update(shard("c"), Position.after(5))
    return checkpoints


async def test_row_changed_before_its_deletion_is_deleted_later(f: Fixture) -> None:
    await with_a_child(f.run())
    await asyncio.sleep(20)
    f.put(replace(f.row("p"), counter=f.row("p").counter + 7))
    await asyncio.sleep(60)
    assert "s:p" in f.store.items
    await asyncio.sleep(60)
    assert sorted(f.store.items) == ["s:c"]


@pytest.mark.slow
async def test_shard_read_again_during_deletion_gets_a_new_row(f: Fixture) -> None:
    checkpoints = await with_a_child(run := f.run())
    give_up_at = asyncio.get_running_loop().time() + 130
    while "delete" not in run.network.requests:
        assert asyncio.get_running_loop().time() < give_up_at
        await asyncio.sleep(0.001)
    assert run.network.in_flight == 1
    checkpoints.request(infos("pc", c=frozenset("p")))
    await asyncio.sleep(20)
    assert f.at() == TRIM_HORIZON
