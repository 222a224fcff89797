"""Commands beside streams that were created again, shards with two rows, and rows of KCL applications."""

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.decisions.quiet import SETTLED_SECONDS
from kinesis_efo.errors import ConfigurationError, InvalidRequestError, StreamReplacedError, UsageError
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology, identified
from kinesis_efo.kinesis.transport import BotoTransport
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import AwsSettings, RetrySettings, Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo_local import Settings
from kinesis_efo_tools.cli.change_mode import ChangeMode, change_mode
from kinesis_efo_tools.cli.commands.leases import ExportKcl, ImportKcl, Reset
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.lag import _ApplicationLag
from kinesis_efo_tools.cli.lease_transfer import export_from, import_into
from kinesis_efo_tools.cli.leases import reset_of
from kinesis_efo_tools.operate.backlog import backlog
from kinesis_efo_tools.operate.findings import CheckFailed
from kinesis_efo_tools.operate.record_format import TailRecord
from kinesis_efo_tools.operate.restart import _goes_on
from kinesis_efo_tools.operate.spark_checkpoint import SourceEnd, folder_at, planned
from kinesis_efo_tools.operate.tailing import Tail, Until
from tests.emulator.memory import MemoryClient, MemoryKinesis
from tests.emulator.memory_world import MemoryWorld
from tests.emulator.tools import STREAM, ParsingClient, Query, Stage, application
from tests.support.messages import raises
from tests.support.virtual_time import LoopClock

MODE = ChangeMode(6.0, dry_run=False, force=False, yes=True, as_json=True)
GIVEN: Final[dict[str, Any]] = {"mode": MODE, "aws": AwsSettings(), "manifest": "manifest.json"}
FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(3))
MERGED = LeaseInfo(Position.after(5), frozenset((FIRST, SECOND)), "0", "9")
"""The third shard of an earlier stream, in which it came from a merge of the others."""


async def created(stage: Stage, shards: int) -> None:
    """Delete the stream, and create it again."""
    stage.kinesis.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
    await stage.clock.sleep(60)
    stage.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=shards)
    await stage.clock.sleep(60)


async def staged(shards: int, records: int = 12) -> Stage:
    stage = Stage(Random(1))
    await created(stage, shards)
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


async def test_reset_of_a_shard_or_stream_removes_an_earlier_one() -> None:
    stage = await staged(3)
    await former(stage)
    await reset(stage, "TRIM_HORIZON", [THIRD])
    row = (await stage.ours.scan()).leases[f"orders:{THIRD}"]
    assert (row.parents, row.children, row.stream) == (frozenset(), frozenset(), None)
    await stage.ours.delete(row)
    await former(stage)
    await reset(stage, "TRIM_HORIZON")
    row = (await stage.ours.scan()).leases[f"orders:{THIRD}"]
    assert (row.parents, row.children) == (frozenset(), frozenset())
    assert row.starting_hash_key == str(stage.shards[THIRD].hash_range[0])
    assert await read(stage) == set(range(stage.users))


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


async def test_reset_keeps_a_time_before_retention() -> None:
    """A query that starts there reports the trimmed records as lost."""
    stage = await staged(1)
    time = Position.at_timestamp(int(stage.clock.time() * 1000))
    await stage.clock.sleep(25 * 3600)
    await reset(stage, str(time))
    query = Query(stage, "one")
    await query.begin(Start(from_leases=True))
    assert query.positions == {FIRST: time}


async def test_reset_deletes_every_row_of_a_shard() -> None:
    stage = await staged(1)
    stage.kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=FIRST, NewStartingHashKey=str(1 << 127))
    await stage.clock.sleep(30)
    for key in (SECOND, f"orders:{SECOND}"):
        await stage.ours.create(Lease.new(key, LeaseInfo(SHARD_END, frozenset((FIRST,)), "0", "1")))
    await reset(stage, "TRIM_HORIZON")
    assert list((await stage.ours.scan()).leases) == [f"orders:{FIRST}"]
    assert await read(stage) == set(range(stage.users))


async def test_import_refuses_the_end_of_an_open_shard() -> None:
    stage = await staged(2)
    await stage.kcls.create(Lease.new(FIRST, LeaseInfo(SHARD_END, frozenset(), "0", "1")))
    await stage.kcls.create(Lease.new(SECOND, LeaseInfo(TRIM_HORIZON, frozenset((FIRST,)), "0", "1")))
    given = ImportKcl(**GIVEN, from_table="OrdersKcl")
    text = (
        "...: row 'shardId-000000000000' is at SHARD_END, but the shard is open, and what arrives in it would never be read: if it was "
        "split or merged just now, try again in a minute. Otherwise the row is of an earlier stream of that name, or the KCL application's "
        "consumer was deleted: start the query without an import, with a position for each shard"
    )
    with raises(ConfigurationError, text):
        await import_into(application(stage), given)
    assert (await stage.ours.scan()).leases == {}


@pytest.mark.parametrize("command", ["import", "export"])
async def test_slow_worker_is_found_by_default(command: str) -> None:
    """A KCL whose failover time is a minute renews every 20 s."""
    stage = await staged(1)
    await stage.kcls.create(replace(Lease.new(FIRST, LeaseInfo(TRIM_HORIZON)), owner="worker"))
    await stage.ours.create(Lease.new(f"orders:{FIRST}", LeaseInfo(TRIM_HORIZON)))

    async def renew() -> None:
        while True:
            await stage.clock.sleep(20)
            (row,) = (await stage.kcls.scan()).leases.values()
            await stage.kcls.update(row, replace(row, counter=row.counter + 1))

    renewing = asyncio.create_task(renew())
    given = {**GIVEN, "mode": change_mode(yes=True, as_json=True)}
    changing = (
        import_into(application(stage), ImportKcl(**given, from_table="OrdersKcl"))
        if command == "import"
        else export_from(application(stage), ExportKcl(**given, table="OrdersKcl"))
    )
    with pytest.raises(CommandExit, match="is in use: worker renews"):
        await changing
    renewing.cancel()


async def test_imported_and_exported_rows_have_the_current_parents() -> None:
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


@pytest.mark.parametrize("several", [False, True])
async def test_export_refuses_rows_of_the_other_form(several: bool) -> None:
    stage = await staged(1)
    await stage.ours.create(Lease.new(f"orders:{FIRST}", LeaseInfo(TRIM_HORIZON)))
    export = ExportKcl(**GIVEN, table="OrdersKcl", multi_stream=not several)
    await export_from(application(stage), export)
    (row,) = (await stage.kcls.scan()).leases
    with pytest.raises(ConfigurationError, match=f"or export {'without' if several else 'with'} --multi-stream"):
        await export_from(application(stage), replace(export, multi_stream=several))
    assert list((await stage.kcls.scan()).leases) == [row]


def stream_of(stage: Stage) -> Stream:
    lister = Topology(stage.client, stage.clock)
    return Stream(stage.ref, BotoTransport(stage.client), lister, RetrySettings(), "m.json", stage.clock)


async def test_doctor_refuses_a_checkpoint_of_an_earlier_stream() -> None:
    stage = await staged(1)
    offset = Offset({ShardKey("orders", FIRST): TRIM_HORIZON}, created={"orders": 1000})
    with pytest.raises(StreamReplacedError):
        await _goes_on(stream_of(stage), "orders", SourceEnd(offset, offset, {}), {}, stage.clock)


def write_checkpoint(folder: Path, offset: str) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / "metadata").write_text('{"id":"x"}')
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")


async def test_doctor_finds_losses_of_an_unfinished_first_batch() -> None:
    stage = await staged(1)
    first, last = (
        Offset({ShardKey("orders", FIRST): Position.after(stage.records[FIRST][at].number)}) for at in (0, -1)
    )
    data = {"begin": first.to_dict()["streams"], **last.to_dict()}
    with TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), json.dumps(data))
        found = await planned(folder_at(folder, cast(Any, None)))
    assert found is not None and not found.finished
    await stage.clock.sleep(48 * 3600)
    with pytest.raises(CheckFailed, match="the next start fails for 1 shards"):
        await _goes_on(stream_of(stage), "orders", found.ends[0], {}, stage.clock)


@pytest.mark.parametrize("has_row", [False, True])
async def test_doctor_uses_low_watermarks_of_rows_and_offsets(has_row: bool) -> None:
    stage = await staged(1)
    row, end = (Position.after(stage.records[FIRST][at].number) for at in (0, -1))
    await stage.clock.sleep(48 * 3600)
    until, key = stage.clock.time() - 60, ShardKey("orders", FIRST)
    lease = replace(Lease.new(f"orders:{FIRST}", LeaseInfo(row)), read_until=until)
    offset = Offset({key: end}, until={} if has_row else {key: until})
    rows = {FIRST: lease} if has_row else {}
    found = await _goes_on(stream_of(stage), "orders", SourceEnd(offset, offset, {}), rows, stage.clock)
    assert found.startswith("goes on with 1 shard")


async def test_lag_that_watches_follows_a_stream_created_again() -> None:
    stage = await staged(1, records=0)
    here, looks = application(stage), _ApplicationLag(AwsSettings(), "m.json", None, 6.0, 0)

    async def look() -> list[str]:
        for each in (await stage.ours.scan()).leases.values():
            await stage.ours.delete(each)
        present = await identified(Topology(stage.client), stage.ref.stream_arn)
        await stage.ours.create(replace(Lease.new(f"orders:{FIRST}", MERGED), stream=present))
        report = await looks._measure(here, await stage.ours.scan(), [])
        return [each for each in report.remarks if "another stream" in each]

    assert await look() == []
    await created(stage, 1)
    assert await look() == []


def quiet(in_a_row: int) -> tuple[LoopClock, MemoryKinesis, str]:
    """A stream with five records, whose first answers have none."""
    clock = LoopClock()
    settings = Settings(wrong_answers="quiet", wrong_answers_rate=1.0, wrong_answers_in_a_row=in_a_row)
    kinesis = MemoryKinesis(settings, clock)
    kinesis.call("CreateStream", StreamName=STREAM, ShardCount=1)
    kinesis.state.settle()
    for _ in range(5):
        kinesis.put(STREAM, "k", b"x")
    return clock, kinesis, kinesis.state.streams[STREAM].arn


async def test_lag_does_not_believe_one_empty_answer() -> None:
    clock, kinesis, arn = quiet(2)
    await clock.sleep(100)
    found = await backlog(ParsingClient(kinesis), clock, arn, FIRST, TRIM_HORIZON, 100)
    assert (found.records, found.exact) == (5, True)


async def test_tail_does_not_end_with_one_empty_answer() -> None:
    clock, kinesis, arn = quiet(1)
    await clock.sleep(3)
    client = MemoryClient(kinesis)
    stream = Stream(
        StreamRef("orders", STREAM, arn, None), PollingTransport(client, clock, 1.0), Topology(client, clock),
        RetrySettings(), "m.json", clock, polling_limits(KINESIS_LIMITS), fail_on_data_loss=False,
    )  # fmt: skip
    shown: list[TailRecord] = []
    over = asyncio.Event()
    asked = clock.time()
    tail = Tail(stream, "orders", shown.extend, until=Until(asked, clock, over.set))
    reading = asyncio.create_task(tail.run(TRIM_HORIZON))
    await asyncio.wait_for(over.wait(), 60)
    assert clock.time() >= asked + SETTLED_SECONDS, "what came before can be read by then"
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len(shown) == 5


@pytest.mark.parametrize("polled", [False, True])
async def test_tail_reads_children_that_are_not_listed_yet(polled: bool) -> None:
    world = MemoryWorld(Random(1), shards=1, settings={"max_event_records": 3})
    await asyncio.sleep(200)
    world.kinesis.listing_age = 60.0
    for _ in range(120):
        world.put("key1", 100_000)
    await asyncio.sleep(20)
    world.split(0)
    await asyncio.sleep(1)
    world.put_some(20)
    await asyncio.sleep(5)
    client, clock = MemoryClient(world.kinesis), world.clock
    stream = Stream(
        replace(world.application.ref, consumer_arn=None) if polled else world.application.ref,
        PollingTransport(client, clock, 1.0) if polled else BotoTransport(client), Topology(client, clock),
        RetrySettings(), "m.json", clock, polling_limits(KINESIS_LIMITS) if polled else KINESIS_LIMITS,
    )  # fmt: skip
    shown: list[TailRecord] = []
    over = asyncio.Event()
    tail = Tail(stream, "orders", shown.extend, until=Until(clock.time(), clock, over.set))
    reading = asyncio.create_task(tail.run(Position.at_timestamp(round((clock.time() - 100) * 1000))))
    await asyncio.wait_for(over.wait(), 300)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len(shown) == 140


async def test_reset_to_a_number_needs_one_stream() -> None:
    here = application(stage := await staged(1))
    refs = {**here.manifest.streams, "clicks": replace(stage.ref, name="clicks")}
    here = replace(here, shards=frozenset((FIRST,)), manifest=replace(here.manifest, streams=refs))
    with raises(UsageError, "--to ... is a position inside one shard, of one stream: select it with --stream"):
        await reset_of(here, Reset(**GIVEN, to="AFTER:5", shard=[FIRST]))


async def test_number_of_another_shard_is_refused() -> None:
    stage = await staged(2)
    number = stage.records[SECOND][0].number
    await stage.ours.create(Lease.new(f"orders:{FIRST}", LeaseInfo()))
    with raises(
        UsageError, "--to ...: the number is of another shard than shardId-000000000000; give one of its own records"
    ):
        await reset(stage, f"AFTER:{number}", [FIRST])
    with pytest.raises(UsageError, match="of another shard"):
        await reset(stage, f"AFTER:{stage.records[FIRST][0].number - (1 << 150)}", [FIRST])  # of an older stream
    stage.kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    await stage.clock.sleep(30)
    stream = stream_of(stage)
    await stream.refresh()
    with raises(
        InvalidRequestError,
        "stream 'orders', shard shardId-000000000000: the position AFTER:... belongs to another shard; give each shard a number of its own "
        "records",
    ):
        stream.subscribe(FIRST, Position.after(number), cast(Any, None))
