"""A query warns if the lease table tells that the checkpoint which it goes on from had been further, whichever it learns first."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.row import Lease
from kinesis_efo.marks import Mark
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.run.query import Query
from kinesis_efo.run.run import Run
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock, run

SHARD = ShardKey("orders", "shardId-000000000000")
KEY = "orders:shardId-000000000000"


def query(notes: RunNotes | None = None) -> tuple[Run, Query]:
    # Only what is asked when a lease is taken.
    streams: Any = SimpleNamespace(identity=lambda _name: StreamIdentity("arn"), ancestors=lambda _key: ())
    fetching: Any = SimpleNamespace(
        join=lambda *_: None, begin=lambda _stream: None, read_until=lambda *_: None, fetcher_of=lambda *_: None
    )
    leases: Any = SimpleNamespace(epoch=lambda _stream: 1, notes=notes or RunNotes(LoopClock()))
    keys = LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"})
    made = Run(streams, fetching, leases, MemoryLeaseStore(), keys, 25.0, 600, LoopClock())
    return made, Query(made)


@pytest.mark.parametrize("first", ["lease", "checkpoint"])
@pytest.mark.parametrize(("reached", "warned"), [(30, True), (20, False), (10, False)])
def test_a_checkpoint_behind_the_table_is_a_warning_once(
    first: str, reached: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        held, made = query()
        rows = {KEY: Lease(KEY, checkpoint=Position.after(reached))}
        offset = Offset({SHARD: Position.after(20)})
        if first == "lease":
            held.lease_taken("orders", rows)
            made.resume(offset)
        else:
            made.resume(offset)
            held.lease_taken("orders", rows)
        held.lease_taken("orders", rows)  # once more, after it was lost for a while
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        run(main())
    said = [message for message in caplog.messages if "give it a new output directory" in message]
    assert len(said) == int(warned)


def test_a_query_that_joins_later_is_compared_with_the_rows_that_the_run_has_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        held, _ = query()
        held.lease_taken("orders", {KEY: Lease(KEY, checkpoint=Position.after(30))})
        Query(held, name="later").resume(Offset({SHARD: Position.after(20)}))

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len([message for message in caplog.messages if "give it a new output directory" in message]) == 1


def test_a_new_query_is_compared_with_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        held, _ = query()
        held.lease_taken("orders", {KEY: Lease(KEY, checkpoint=Position.after(30))})

    with caplog.at_level(logging.WARNING):
        run(main())
    assert not caplog.messages


@pytest.mark.parametrize("first", ["leases", "checkpoint"])
@pytest.mark.parametrize(("moved", "warned"), [(11, True), (12, False), (13, False)])
def test_a_checkpoint_behind_its_own_mark_is_one_warning_whatever_the_rows_say(
    first: str, moved: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        notes = RunNotes(LoopClock())
        held, made = query(notes)
        offset = Offset({SHARD: Position.after(20)}, mark=Mark("7c1f", moved))

        def take() -> None:
            for stream in ("clicks", "orders"):
                run_row = Lease(run_key(stream), marks=(CheckpointMark(Mark("7c1f", 12), 1_000),))
                notes.found(stream, run_row)
                held.lease_taken(stream, {KEY: Lease(KEY, checkpoint=Position.after(30))})

        if first == "leases":
            take()
            made.resume(offset)
        else:
            made.resume(offset)
            take()
        take()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len(caplog.messages) == int(warned), caplog.messages
    assert all("had been further by 1 micro-batch" in message for message in caplog.messages)


def test_what_is_planned_is_noted_for_the_rows_of_later_runs() -> None:
    async def main() -> None:
        notes = RunNotes(LoopClock())
        _, made = query(notes)
        for moved in (3, 4):
            made.planned(Mark("7c1f", moved))
        (kept,) = notes.stored_in("orders", Lease(run_key("orders"))).marks
        assert kept.mark == Mark("7c1f", 4)

    run(main())
