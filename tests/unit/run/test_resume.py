"""A query warns if the lease table tells that the checkpoint which it goes on from had been further, whichever it learns first."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.run.query import Query
from kinesis_efo.run.run import Run
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock

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


async def test_joining_query_is_compared_with_the_runs_rows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        held, _ = query()
        held.lease_taken("orders", {KEY: Lease(KEY, checkpoint=Position.after(30))})
        Query(held, name="later").resume(Offset({SHARD: Position.after(20)}))
    assert len([message for message in caplog.messages if "give it a new output directory" in message]) == 1
