"""Commands beside streams that were created again, shards with two rows, and rows of KCL applications."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.options import AwsSettings, Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo_tools.cli.change_mode import ChangeMode
from kinesis_efo_tools.cli.commands.leases import ExportKcl, ImportKcl, Reset
from kinesis_efo_tools.cli.lease_transfer import export_from, import_into
from kinesis_efo_tools.cli.leases import reset_of
from tests.emulator.test_each_fault import virtual
from tests.emulator.tools import STREAM, Query, Stage, application

MODE = ChangeMode(6.0, dry_run=False, force=False, yes=True, as_json=True)
GIVEN: Final[dict[str, Any]] = {"mode": MODE, "aws": AwsSettings(), "manifest": "manifest.json"}
FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(3))
MERGED = LeaseInfo(Position.after(5), frozenset((FIRST, SECOND)), "0", "9")
"""The third shard of an earlier stream, in which it came from a merge of the others."""


async def staged(shards: int, records: int = 12) -> Stage:
    stage = Stage(Random(1))
    stage.kinesis.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
    await stage.clock.sleep(60)
    stage.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=shards)
    await stage.clock.sleep(60)
    for _ in range(records):
        stage.put()
    return stage


async def reset(stage: Stage, to: str, shards: Collection[str] = ()) -> None:
    here = replace(application(stage), shards=frozenset(shards))
    await reset_of(here, Reset(**GIVEN, to=to, shard=list(shards) or None))


async def read(stage: Stage) -> set[int]:
    """What a query reads that starts from the rows."""
    query = Query(stage, "afterwards")
    await query.begin(Start(from_leases=True))
    while query.step():
        pass
    return set(query.read)


async def former(stage: Stage) -> None:
    """Write the row of an earlier stream."""
    row = replace(Lease.new(f"orders:{THIRD}", MERGED), stream=StreamIdentity(stage.ref.stream_arn, 1))
    await stage.ours.create(replace(row, children=frozenset(("shardId-000000000003",))))


@virtual
async def test_reset_of_a_stream_keeps_nothing_of_an_earlier_one() -> None:
    stage = await staged(3)
    await former(stage)
    await reset(stage, "TRIM_HORIZON")
    row = (await stage.ours.scan()).leases[f"orders:{THIRD}"]
    assert (row.parents, row.children) == (frozenset(), frozenset())
    assert row.starting_hash_key == str(stage.shards[THIRD].hash_range[0])
    assert await read(stage) == set(range(stage.users))


@virtual
async def test_reset_of_a_shard_keeps_nothing_of_an_earlier_stream() -> None:
    stage = await staged(3)
    await former(stage)
    await reset(stage, "TRIM_HORIZON", [THIRD])
    row = (await stage.ours.scan()).leases[f"orders:{THIRD}"]
    assert (row.parents, row.children, row.stream) == (frozenset(), frozenset(), None)


@virtual
async def test_query_after_a_reset_skips_no_shard() -> None:
    stage = await staged(3, records=0)
    await former(stage)
    await reset(stage, f"AT_TIMESTAMP:{int(stage.clock.time() * 1000)}")
    await stage.clock.sleep(2)
    for _ in range(12):
        stage.put()
    query = Query(stage, "one")
    assert await query.start(Start(from_leases=True))
    for shard in query.positions:
        first = stage.records[shard][0]
        query.read += first.users
        query.positions[shard] = Position.after(first.number)
    await query.checkpoint()
    assert {*query.read, *await read(stage)} == set(range(stage.users))


@virtual
async def test_reset_deletes_every_row_of_a_shard() -> None:
    stage = await staged(1)
    middle = str(1 << 127)
    stage.kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=FIRST, NewStartingHashKey=middle)
    await stage.clock.sleep(30)
    for key in (SECOND, f"orders:{SECOND}"):
        await stage.ours.create(Lease.new(key, LeaseInfo(SHARD_END, frozenset((FIRST,)), "0", "1")))
    await reset(stage, "TRIM_HORIZON")
    assert list((await stage.ours.scan()).leases) == [f"orders:{FIRST}"]
    assert await read(stage) == set(range(stage.users))


@virtual
async def test_import_refuses_the_end_of_an_open_shard() -> None:
    stage = await staged(2)
    await stage.kcls.create(Lease.new(FIRST, LeaseInfo(SHARD_END, frozenset(), "0", "1")))
    await stage.kcls.create(Lease.new(SECOND, LeaseInfo(TRIM_HORIZON, frozenset((FIRST,)), "0", "1")))
    given = ImportKcl(**GIVEN, from_table="OrdersKcl")
    with pytest.raises(ConfigurationError, match=f"row '{FIRST}' is at SHARD_END, but the shard is open"):
        await import_into(application(stage), given)
    assert (await stage.ours.scan()).leases == {}


@virtual
async def test_parents_of_imported_and_exported_rows_are_the_present_ones() -> None:
    stage = await staged(3)
    for shard in (FIRST, SECOND, THIRD):
        await stage.kcls.create(Lease.new(shard, replace(MERGED, start=TRIM_HORIZON)))
    await import_into(application(stage), ImportKcl(**GIVEN, from_table="OrdersKcl"))
    assert all(not row.parents for row in (await stage.ours.scan()).leases.values())
    await stage.ours.update(
        (await stage.ours.scan()).leases[f"orders:{THIRD}"],
        Lease.new(f"orders:{THIRD}", replace(MERGED, start=TRIM_HORIZON)),
    )
    await export_from(application(stage), ExportKcl(**GIVEN, table="OrdersKcl"))
    assert all(not row.parents for row in (await stage.kcls.scan()).leases.values())
