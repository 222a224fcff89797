"""Checkpoints in virtual time against the model of the table: when they are written, by whom, and what they never overwrite."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.errors import LeaseLostError, LeaseTableError
from kinesis_efo.failure import Failure
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, ShardKey
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

KEYS = LeaseKeys({"s": "dev-s"})
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
        self.identity = STREAM
        self.failure = Failure()
        self.known: dict[tuple[ShardKey, Position], float] = {}
        self.checkpoints = Checkpoints(
            self.network,
            KEYS,
            lambda _stream: self.epoch,
            lambda _stream: self.identity,
            rate,
            LoopClock(),
            read_until=lambda key, position: self.known.get((key, position)),
            failure=self.failure,
        )

    async def begin(self) -> Checkpoints:
        self.checkpoints.start()
        self.checkpoints.found("s", (await self.network.scan()).leases)
        return self.checkpoints


class Fixture:
    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.runs: list[Run] = []

    def run(self, epoch: int | None = 1, rate: float = 25.0) -> Run:
        self.runs.append(Run(self.store, epoch, rate))
        return self.runs[-1]

    def row(self, name: str) -> Lease:
        return self.store.lease(f"s:{name}")

    def put(self, *rows: Lease) -> None:
        self.store.items |= {row.key: row.to_item() for row in rows}


def scenario(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main() -> None:
            fixture = Fixture()
            await test(fixture)
            for each in fixture.runs:
                each.network.cut = False
                await each.checkpoints.stop()
            await asyncio.sleep(0)  # an alarm that was cancelled ends at the loop's next turn
            assert len(asyncio.all_tasks()) == 1, "nothing goes on after stop"

        run(main())

    in_virtual_time.__name__ = getattr(test, "__name__", "scenario")
    return in_virtual_time


EARLIER = StreamIdentity("arn:s", 1_600_000_000)


def stray(name: str, checkpoint: Position = SHARD_END, epoch: int = 7, **more: object) -> Lease:
    """The row of a shard of an earlier stream."""
    return Lease(f"s:{name}", 41, checkpoint=checkpoint, epoch=epoch, stream=EARLIER, **more)  # type: ignore[arg-type]


# -- parents and hash keys


@scenario
async def test_a_row_that_lacks_parents_and_hash_keys_is_completed_once_they_are_known(f: Fixture) -> None:
    f.put(Lease("s:p", 5, checkpoint=Position.after(3), continuation=3, epoch=1, stream=STREAM))
    checkpoints = await f.run(epoch=2).begin()
    checkpoints.want(infos("pq"))
    await asyncio.sleep(10)
    assert [f.row(name).starting_hash_key for name in "pq"] == [None, None]
    about = LeaseInfo(parents=frozenset({"o", "n"}), starting_hash_key="0", ending_hash_key="9")
    checkpoints.want({shard("p"): about, shard("q"): about})
    await asyncio.sleep(10)
    for name, position in (("p", Position.after(3)), ("q", TRIM_HORIZON)):
        row = f.row(name)
        assert (row.parents, row.starting_hash_key, row.ending_hash_key) == ({"o", "n"}, "0", "9")
        assert row.position == position
    written = len(f.store.writes)
    await asyncio.sleep(50)
    assert len(f.store.writes) == written


# -- of which stream


@scenario
async def test_rows_of_an_earlier_stream_are_replaced_wherever_they_stood(f: Fixture) -> None:
    f.put(stray("p"), stray("q", Position.after(10**60), parents=frozenset({"p"})), stray("gone"))
    run = f.run(epoch=8)
    checkpoints = await run.begin()
    checkpoints.want(infos("pqr"))
    checkpoints.note(shard("p"), Position.after(5), LastRecord(4))
    await asyncio.sleep(10)
    assert sorted(f.store.items) == ["s:p", "s:q", "s:r"]
    assert (f.row("p").position, f.row("p").record) == (Position.after(5), 4)
    assert (f.row("q").position, f.row("q").parents) == (TRIM_HORIZON, frozenset())
    assert {f.row(name).stream for name in "pqr"} == {STREAM}
    assert {f.row(name).epoch for name in "pqr"} == {8}
    assert run.failure.error is None


@scenario
async def test_what_an_earlier_stream_was_read_to_says_nothing_of_this_one(f: Fixture) -> None:
    f.put(
        stray("p", TRIM_HORIZON, read_until=1_600_000_100.0),
        replace(stray("q", TRIM_HORIZON, read_until=9.0), stream=None),
    )
    checkpoints = await f.run(epoch=8).begin()
    assert checkpoints.read_until(shard("p"), TRIM_HORIZON) is None
    assert checkpoints.read_until(shard("q"), TRIM_HORIZON) == 9.0


@scenario
async def test_rows_that_a_later_run_wrote_stay_whatever_their_stream(f: Fixture) -> None:
    f.put(stray("p", Position.after(9), epoch=9))
    run = f.run(epoch=8)
    checkpoints = await run.begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(5))
    await asyncio.sleep(60)
    assert f.row("p") == stray("p", Position.after(9), epoch=9)
    assert run.failure.error is None


@scenario
async def test_where_the_creation_is_not_known_no_row_counts_as_another_streams(f: Fixture) -> None:
    f.put(stray("p", Position.after(9)), stray("q", SHARD_END))
    run = f.run(epoch=8)
    run.identity = StreamIdentity("arn:s")
    checkpoints = await run.begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(12))
    await asyncio.sleep(10)
    assert (f.row("p").position, f.row("p").stream) == (Position.after(12), run.identity)
    assert f.row("q") == stray("q", SHARD_END)


# -- writing


@scenario
async def test_a_shard_gets_a_row_as_soon_as_it_is_read(f: Fixture) -> None:
    checkpoints = await f.run(epoch=3).begin()
    start = LeaseInfo(Position.at_timestamp(7), frozenset({"o"}), "0", "9")
    checkpoints.want({shard("p"): start, **infos("q")})
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
    assert f.row("q").position == TRIM_HORIZON


@scenario
async def test_checkpoints_are_batched_and_only_go_forward(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    for i in range(1000):
        checkpoints.note(shard("p"), Position.after(10**55 + i))
        await asyncio.sleep(0.1)
    checkpoints.note(shard("p"), Position.after(3))
    await asyncio.sleep(20)
    stored = [after["continuation"]["S"] for _, before, after in f.store.writes if before and after]
    assert 20 <= len(stored) <= 24
    assert stored == sorted(stored, key=int)
    assert f.row("p").position == Position.after(10**55 + 999)


@scenario
async def test_a_row_that_is_created_where_a_micro_batch_ended_names_its_last_record(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    end = Position.after(50)
    checkpoints.note(shard("p"), end, LastRecord(47, 3))
    checkpoints.note(shard("q"), Position.after(30), LastRecord(29))
    checkpoints.want({shard(name): LeaseInfo(end) for name in "pq"})
    await asyncio.sleep(0.5)
    assert (f.row("p").record, f.row("p").sub, f.row("p").position) == (47, 3, end)
    assert f.row("q").position == end, "a row never begins behind its shard's start"


@scenario
async def test_a_row_keeps_the_number_of_the_last_record(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(50), LastRecord(47, 3))
    checkpoints.note(shard("p"), Position.after(60))
    await asyncio.sleep(10)
    assert (f.row("p").record, f.row("p").position) == (47, Position.after(60))
    checkpoints.note(shard("p"), Position.after(70))
    await asyncio.sleep(10)
    assert (f.row("p").record, f.row("p").position) == (47, Position.after(70))


@scenario
async def test_what_did_not_change_is_not_written(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want(infos("pq"))
    checkpoints.note(shard("p"), Position.after(5))
    await asyncio.sleep(10)
    writes = len(f.store.writes)
    for _ in range(300):
        checkpoints.note(shard("p"), Position.after(5))
        await asyncio.sleep(1)
    assert len(f.store.writes) == writes


@pytest.mark.slow
@scenario
async def test_writes_keep_to_the_rate_and_every_shard_has_its_turn(f: Fixture) -> None:
    checkpoints = await f.run(rate=25.0).begin()
    names = [f"{number:04}" for number in range(1000)]
    shards = [shard(name) for name in names]
    checkpoints.want({key: LeaseInfo() for key in shards})
    await asyncio.sleep(45)
    assert len(f.store.items) == 1000, "each has a row"
    before = len(f.store.writes)
    for second in range(120):
        for key in shards:
            checkpoints.note(key, Position.after(second))
        await asyncio.sleep(1)
    written = Counter(key for key, *_ in f.store.writes[before:])
    assert 120 * 25 * 0.8 <= written.total() <= 120 * 25 + 25
    assert len(written) == 1000
    assert set(written.values()) <= {2, 3, 4}, "the oldest first"


@scenario
async def test_a_stop_writes_everything_at_once(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    shards = [shard(f"{number:04}") for number in range(1000)]
    checkpoints.want({key: LeaseInfo() for key in shards})
    for key in shards:
        checkpoints.note(key, Position.after(9))
    start = asyncio.get_running_loop().time()
    await checkpoints.stop()
    assert asyncio.get_running_loop().time() - start < 2
    assert {f.store.lease(key).position for key in f.store.items} == {Position.after(9)}
    assert len(f.store.items) == 1000
    assert each.network.most_in_flight <= 32


@scenario
async def test_a_stop_without_a_table_takes_bounded_time(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    checkpoints.want(infos("pq"))
    await asyncio.sleep(1)
    each.network.cut, each.network.patience = True, 1000
    checkpoints.note(shard("p"), Position.after(9))
    start = asyncio.get_running_loop().time()
    await checkpoints.stop(at_most=3)
    assert asyncio.get_running_loop().time() - start < 3.5
    assert f.row("p").position == TRIM_HORIZON


@scenario
async def test_a_start_inside_an_aggregate_is_kept_until_something_is_done(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    inside = Position.inside(5, 3)
    checkpoints.want({shard("p"): LeaseInfo(inside)})
    checkpoints.note(shard("p"), inside)
    await asyncio.sleep(10)
    assert f.row("p").position == inside
    checkpoints.note(shard("p"), Position.after(5))
    await checkpoints.stop()
    assert f.row("p").position == Position.after(5)


@scenario
async def test_a_table_out_of_reach_is_waited_for(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(1)
    each.network.throttled = True
    checkpoints.note(shard("p"), Position.after(9))
    await asyncio.sleep(60)
    assert each.failure.error is None
    each.network.throttled = False
    await asyncio.sleep(3)
    assert f.row("p").position == Position.after(9)


@scenario
async def test_a_write_whose_answer_is_lost_is_not_made_twice(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(1)
    each.network.lose_answers, each.network.patience = 1.0, 0.5
    checkpoints.note(shard("p"), Position.after(9))
    await asyncio.sleep(30)
    each.network.lose_answers = 0.0
    await asyncio.sleep(5)
    assert f.row("p").position == Position.after(9)
    checkpoints.note(shard("p"), Position.after(10))
    await asyncio.sleep(10)
    assert f.row("p").position == Position.after(10)


@scenario
async def test_a_table_that_refuses_us_ends_the_run(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    each.network.error = LeaseTableError("not allowed: dynamodb:PutItem")
    checkpoints.want(infos("p"))
    await asyncio.sleep(5)
    assert [str(each.failure.error)] == ["not allowed: dynamodb:PutItem"]


# -- only while the lease is held, and not over what another run has written


@scenario
async def test_nothing_is_written_while_the_lease_is_not_held(f: Fixture) -> None:
    each = f.run(epoch=None)
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(30)
    assert f.store.items == {}
    each.epoch = 4
    await asyncio.sleep(2)
    assert f.row("p").epoch == 4


@scenario
async def test_a_run_that_was_replaced_does_not_overwrite_its_successors_checkpoints(f: Fixture) -> None:
    old, new = f.run(epoch=1), f.run(epoch=2)
    first = await old.begin()
    first.want(infos("p"))
    first.note(shard("p"), Position.after(5))
    await asyncio.sleep(10)
    second = await new.begin()
    second.want(infos("p"))
    second.note(shard("p"), Position.after(6))
    await asyncio.sleep(10)
    first.note(shard("p"), Position.after(1000))
    await asyncio.sleep(10)
    await first.stop()
    assert (f.row("p").position, f.row("p").epoch) == (Position.after(6), 2)
    second.note(shard("p"), Position.after(7))
    await second.stop()
    assert f.row("p").position == Position.after(7)


@scenario
async def test_a_stored_checkpoint_ahead_of_ours_stays(f: Fixture) -> None:
    f.put(Lease("s:p", 4, checkpoint=Position.after(490), continuation=500, epoch=1))
    checkpoints = await f.run(epoch=2).begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(100))
    await asyncio.sleep(20)
    assert f.row("p").position == Position.after(500)
    checkpoints.note(shard("p"), Position.after(501))
    await asyncio.sleep(20)
    assert f.row("p").position == Position.after(501)


@scenario
async def test_a_row_deleted_by_hand_is_written_again_where_it_stood(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want({shard("p"): LeaseInfo(TRIM_HORIZON, frozenset({"o"}), "0", "9")})
    checkpoints.note(shard("p"), Position.after(77))
    await asyncio.sleep(10)
    del f.store.items["s:p"]
    checkpoints.note(shard("p"), Position.after(78))
    await asyncio.sleep(10)
    assert (f.row("p").position, f.row("p").parents) == (Position.after(78), {"o"})


@scenario
async def test_a_row_moved_by_hand_is_moved_on_from_there(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(5))
    await asyncio.sleep(10)
    f.put(replace(f.row("p"), counter=f.row("p").counter + 1, checkpoint=TRIM_HORIZON, continuation=None))
    checkpoints.note(shard("p"), Position.after(6))
    await asyncio.sleep(10)
    assert f.row("p").position == Position.after(6)


@scenario
async def test_a_row_that_a_kcl_takes_ends_the_run(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(1)
    f.put(replace(f.row("p"), counter=5, owner="kcl-worker-3"))
    checkpoints.note(shard("p"), Position.after(6))
    await asyncio.sleep(10)
    assert f.row("p").position == TRIM_HORIZON
    error = each.failure.error
    assert isinstance(error, LeaseLostError)
    assert str(error).startswith("kcl-worker-3 took lease s:p while this query was reading")


@scenario
async def test_a_row_that_is_no_lease_ends_the_run_at_once(f: Fixture) -> None:
    calls = []

    async def refuse(lease: Lease) -> Conflict:
        calls.append(lease.key)
        await asyncio.sleep(0)
        return Conflict(None)

    each = f.run()
    f.store.create = refuse  # type: ignore[method-assign,assignment]
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(10)
    assert str(each.failure.error).endswith("row s:p exists and is no lease; delete it")
    assert calls == ["s:p"]
    del f.store.create


# -- rows that a KCL has left


@scenario
async def test_a_row_with_the_same_key_keeps_its_place_and_loses_its_dead_owner(f: Fixture) -> None:
    f.store.items["s:p"] = {
        **Lease("s:p", 40, "dead", Position.after(77)).to_item(),
        "checkpointOwner": {"S": "x"},
        "pendingCheckpoint": {"S": "78"},
    }
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), Position.after(78))
    await asyncio.sleep(10)
    assert (f.row("p").position, f.row("p").owner) == (Position.after(78), None)
    assert not {"checkpointOwner", "pendingCheckpoint", "endpoint"} & f.store.items["s:p"].keys()


# -- how far a shard is done


@scenario
async def test_how_far_a_shard_is_done_is_known_from_what_is_to_be_written_or_else_from_its_row(f: Fixture) -> None:
    f.put(
        Lease("s:p", 4, checkpoint=Position.after(70), continuation=70, epoch=1, stream=STREAM),
        Lease("q", 4, checkpoint=Position.after(7), continuation=7, epoch=1),  # its key has no stream: a KCL's
        stray("r", epoch=1),
    )
    checkpoints = await f.run(epoch=2).begin()

    def stored() -> list[Position | None]:
        return [checkpoints.stored(shard(name)) for name in "pqrs"]

    assert stored() == [Position.after(70), None, None, None], "rows of another stream and of a KCL say nothing"
    checkpoints.note(shard("p"), Position.after(80))
    checkpoints.note(shard("s"), Position.after(5))
    done = [Position.after(80), None, None, Position.after(5)]
    assert stored() == done
    assert f.row("p").position == Position.after(70), "not written yet"
    await asyncio.sleep(10)
    assert sorted(f.store.items) == ["q", "s:p"], "a KCL's row stays"
    assert stored() == done


# -- until when a shard was read


@scenario
async def test_a_row_tells_until_when_its_checkpoint_reaches(f: Fixture) -> None:
    each = f.run()
    each.known[shard("p"), TRIM_HORIZON] = 111.0
    checkpoints = await each.begin()
    checkpoints.want(infos("pq"))
    await asyncio.sleep(1)
    assert [f.row(name).read_until for name in "pq"] == [111, None]
    assert checkpoints.read_until(shard("p"), TRIM_HORIZON) == 111
    assert checkpoints.read_until(shard("p"), Position.after(5)) is None, "the horizon may have been behind that"
    assert checkpoints.read_until(shard("q"), Position.after(5)) is None
    checkpoints.note(shard("p"), Position.after(9))
    await asyncio.sleep(10)
    assert f.row("p").read_until == 111, "what is behind the horizon is read"
    assert checkpoints.read_until(shard("p"), Position.after(5)) is None, "the row's checkpoint lies behind that"
    each.known[shard("p"), Position.after(9)] = 222.0
    await checkpoints.stop()
    assert f.row("p").read_until == 222
    assert checkpoints.read_until(shard("p"), Position.after(10)) == 222, "true of every later position, too"


@scenario
async def test_the_time_of_an_idle_shard_is_written_once_a_minute(f: Fixture) -> None:
    each = f.run()
    checkpoints = await each.begin()
    checkpoints.want(infos("p"))
    for second in range(600):
        each.known[shard("p"), TRIM_HORIZON] = 1000.0 + second
        await asyncio.sleep(1)
    assert 9 <= len(f.store.writes) <= 11
    assert (f.row("p").read_until or 0) > 1500


# -- shard end


@scenario
async def test_a_finished_shard_is_marked_and_deleted_once_its_children_have_begun(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    checkpoints.want({shard("p"): LeaseInfo(starting_hash_key="0", ending_hash_key="9")})
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"c", "d"})
    checkpoints.note(shard("p"), Position.after(1))  # a late one of a batch before
    checkpoints.want(infos("cd", c=frozenset("p"), d=frozenset("p")))
    await asyncio.sleep(1)
    assert (f.row("p").position, f.row("p").children) == (SHARD_END, {"c", "d"})
    checkpoints.note(shard("c"), Position.after(10))
    await asyncio.sleep(130)
    assert "s:p" in f.store.items, "a child is still at its start"
    checkpoints.note(shard("d"), Position.after(20))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:c", "s:d"]
    await asyncio.sleep(600)
    assert run.network.requests["delete"] == 1, "a row that is gone is not deleted again with each cleanup"


@scenario
async def test_a_shard_that_is_finished_before_it_has_a_row_gets_one(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    run.network.cut = True
    checkpoints.want(infos("pq", q=frozenset({"p"})))
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"q"})
    checkpoints.want(infos("q", q=frozenset({"p"})))
    await asyncio.sleep(5)
    assert not f.store.items
    run.network.cut = False
    await asyncio.sleep(5)
    assert (f.row("p").position, f.row("p").children) == (SHARD_END, frozenset({"q"}))
    assert f.row("q").position == TRIM_HORIZON
    checkpoints.note(shard("q"), Position.after(5))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:q"], "and is cleaned up as any other"
    assert run.failure.error is None


@scenario
async def test_a_parent_left_behind_by_a_crash_is_finished_once_only_its_children_are_read(f: Fixture) -> None:
    """Spark had planned the micro-batch without the parent, and the process died before the parent's last checkpoint."""
    parent = Lease("s:p", 4, "dead", Position.after(70))
    children = [Lease(f"s:{name}", 1, "dead", parents=frozenset("p")) for name in "cd"]
    f.put(parent, *children, Lease("t:p", 4, checkpoint=Position.after(70)))
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    checkpoints.want(infos("cd", c=frozenset("p"), d=frozenset("p")))
    await asyncio.sleep(70)
    assert (f.row("p").position, f.row("p").owner, f.row("p").children) == (SHARD_END, None, {"c", "d"})
    for name in "cd":
        checkpoints.note(shard(name), Position.after(80))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:c", "s:d", "t:p"], "another stream's rows stay"


@scenario
async def test_rows_of_finished_shards_that_an_earlier_run_left_are_deleted(f: Fixture) -> None:
    f.put(
        Lease("s:p", 1, None, SHARD_END, children=frozenset("c")),
        Lease("s:c", 1, checkpoint=Position.after(1), parents=frozenset("p")),
    )
    checkpoints = await f.run().begin()
    checkpoints.want(infos("c", c=frozenset("p")))
    await asyncio.sleep(130)
    assert sorted(f.store.items) == ["s:c"]


# -- whatever happens


@given(st.data())
def test_a_checkpoint_never_goes_back_and_the_last_one_is_written(data: st.DataObject) -> None:
    """Two runs, one after the other or beside each other for a while, on a network that loses requests and answers."""

    async def main() -> None:
        store = MemoryLeaseStore()
        each = [Run(store, epoch) for epoch in (1, 2)]
        position = 0
        current = 0
        for number in (0, 1):
            checkpoints = await each[number].begin()
            checkpoints.want(infos("pq"))
            current = number
            for _ in range(data.draw(st.integers(1, 6))):
                position += 1
                network = each[current].network
                network.lose_answers = data.draw(st.sampled_from([0.0, 0.5]))
                network.lose_requests = data.draw(st.sampled_from([0.0, 0.5]))
                network.late = 0.5
                for name in data.draw(st.sampled_from(["p", "q", "pq"])):
                    checkpoints.note(shard(name), Position.after(position))
                await asyncio.sleep(data.draw(st.sampled_from([0.1, 3.0, 8.0])))
            network.lose_answers = network.lose_requests = 0.0
        await asyncio.sleep(60)
        for name in "pq":
            checkpoints.note(shard(name), Position.after(position + 1))
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


@pytest.mark.parametrize("rate", [1.0, 1000.0])
def test_any_rate_works(rate: float) -> None:
    async def main() -> None:
        store = MemoryLeaseStore()
        each = Run(store, rate=rate)
        checkpoints = await each.begin()
        checkpoints.want(infos("pqr"))
        await asyncio.sleep(4)
        assert len(store.items) == 3
        await checkpoints.stop()

    run(main())


# -- what is told, and what is left alone


@scenario
async def test_a_stop_without_anything_to_write_leaves_no_task_behind(f: Fixture) -> None:
    await f.run().begin()
    await f.run().checkpoints.stop()  # of one that was never started
    await f.runs[0].checkpoints.stop()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("throttled", [True, False])
def test_last_checkpoints_that_were_not_written_are_told(throttled: bool, caplog: pytest.LogCaptureFixture) -> None:
    @scenario
    async def main(f: Fixture) -> None:
        run = f.run()
        checkpoints = await run.begin()
        checkpoints.want(infos("pq"))
        await asyncio.sleep(1)
        checkpoints.note(shard("p"), Position.after(5))
        run.network.throttled = throttled
        await checkpoints.stop()
        run.network.throttled = False

    main()
    assert [line for line in caplog.messages if "last checkpoints" in line] == (
        ["1 of 2 last checkpoints were not written to lease table memory"] if throttled else []
    )


@scenario
async def test_a_shard_that_is_not_read_any_more_and_has_no_row_gets_one_only_if_it_has_ended(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    run.network.cut = True
    checkpoints.want(infos("pqr"))
    checkpoints.note(shard("p"), Position.after(5))
    checkpoints.note(shard("q"), SHARD_END)
    checkpoints.want(infos("r"))
    await asyncio.sleep(5)
    run.network.cut = False
    await asyncio.sleep(10)
    assert sorted(f.store.items) == ["s:q", "s:r"]


@pytest.mark.parametrize("leaves_after", [10, 1000])
def test_a_parent_that_only_left_is_finished_and_deleted_in_the_same_run(leaves_after: float) -> None:
    """Also long after the last cleanup, when none was due."""

    @scenario
    async def main(f: Fixture) -> None:
        checkpoints = await f.run().begin()
        checkpoints.want(infos("p"))
        checkpoints.note(shard("p"), Position.after(5))
        await asyncio.sleep(leaves_after)
        checkpoints.want(infos("cd", c=frozenset("p"), d=frozenset("p")))
        await asyncio.sleep(10)
        for name in "cd":
            checkpoints.note(shard(name), Position.after(80))
        await asyncio.sleep(200)
        assert sorted(f.store.items) == ["s:c", "s:d"]

    main()


@scenario
async def test_the_rows_of_a_stream_are_those_that_were_found_last(f: Fixture) -> None:
    """A lease that was lost and taken again brings them anew; those of other streams stay as they are."""
    run = f.run()
    run.checkpoints._keys = keys = LeaseKeys({"s": "dev-s", "t": "dev-t"})
    rows = {key: Lease(key, 4, checkpoint=Position.after(70), epoch=1, stream=STREAM) for key in ("s:p", "t:p")}
    f.put(*rows.values())
    checkpoints = run.checkpoints
    checkpoints.start()
    checkpoints.found("s", {"s:p": rows["s:p"]})
    checkpoints.found("t", {"t:p": rows["t:p"]})
    assert run.network.requests == {}
    del f.store.items["s:p"]
    checkpoints.found("s", {})
    checkpoints.want({keys.decode(key): LeaseInfo() for key in rows})  # type: ignore[misc]
    checkpoints.note(ShardKey("t", "p"), Position.after(80))
    await asyncio.sleep(20)
    assert run.network.requests == {"create": 1, "update": 1}, "one was not there, and one was known"


@scenario
async def test_an_error_in_what_is_asked_ends_the_run_visibly(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    run.identity = None  # type: ignore[assignment]
    run.checkpoints._identity = {}.__getitem__  # type: ignore[assignment]
    checkpoints.want(infos("p"))
    await asyncio.sleep(5)
    failure = run.failure.error
    assert str(failure) == "lease table memory: writing checkpoints failed: KeyError('s')"


def test_each_trouble_with_the_table_is_told_once_and_does_not_make_more_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @scenario
    async def main(f: Fixture) -> None:
        run = f.run()
        checkpoints = await run.begin()
        names = "abcdefghijklmnopqrstuvwxyz"
        checkpoints.want(infos(names))
        await asyncio.sleep(30)
        for number in (1, 2):
            before = Counter(run.network.requests)
            run.network.throttled = True
            for name in names:
                checkpoints.note(shard(name), Position.after(number))
            await asyncio.sleep(60)
            assert 10 <= (Counter(run.network.requests) - before)["update"] <= 61, (
                "one call a second, however many shards"
            )
            run.network.throttled = False
            await asyncio.sleep(60)
            assert {f.row(name).position for name in names} == {Position.after(number)}

    main()
    assert [line for line in caplog.messages if line.startswith("checkpoints wait")] == [
        "checkpoints wait: lease table memory: throttled"
    ] * 2


@scenario
async def test_a_row_of_another_stream_that_this_very_run_wrote_is_replaced_too(f: Fixture) -> None:
    f.put(stray("p", epoch=1))
    checkpoints = await f.run(epoch=1).begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(10)
    assert (f.row("p").stream, f.row("p").position) == (STREAM, TRIM_HORIZON)


@scenario
async def test_the_last_write_tells_how_far_an_idle_shard_was_read(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    at = Position.after(5)
    run.known[shard("p"), at] = 1000.0
    checkpoints.want(infos("p"))
    checkpoints.note(shard("p"), at)
    await asyncio.sleep(20)
    assert f.row("p").read_until == 1000
    run.known[shard("p"), at] = 1030.0
    await asyncio.sleep(20)
    assert f.row("p").read_until == 1000, "once a minute is enough"
    await checkpoints.stop()
    assert f.row("p").read_until == 1030


@scenario
async def test_a_row_that_somebody_wrote_before_it_was_to_be_deleted_is_deleted_the_next_time(f: Fixture) -> None:
    checkpoints = await f.run().begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"c"})
    checkpoints.want(infos("c", c=frozenset("p")))
    checkpoints.note(shard("c"), Position.after(5))
    await asyncio.sleep(20)
    f.put(replace(f.row("p"), counter=f.row("p").counter + 7))
    await asyncio.sleep(60)
    assert "s:p" in f.store.items
    await asyncio.sleep(60)
    assert sorted(f.store.items) == ["s:c"]


@pytest.mark.slow
@scenario
async def test_a_shard_that_is_read_again_while_its_row_is_deleted_gets_a_new_one(f: Fixture) -> None:
    run = f.run()
    checkpoints = await run.begin()
    checkpoints.want(infos("p"))
    await asyncio.sleep(1)
    checkpoints.finish(shard("p"), {"c"})
    checkpoints.want(infos("c", c=frozenset("p")))
    checkpoints.note(shard("c"), Position.after(5))
    give_up_at = asyncio.get_running_loop().time() + 130
    while "delete" not in run.network.requests:
        assert asyncio.get_running_loop().time() < give_up_at
        await asyncio.sleep(0.001)
    assert run.network.in_flight == 1
    checkpoints.want(infos("pc", c=frozenset("p")))
    await asyncio.sleep(20)
    assert f.row("p").position == TRIM_HORIZON
