"""Reshards while a query reads, with unread data in closed parents: every record is read once, parents before children.

These are an operator's reshards; random scenarios combine reshards with faults.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from kinesis_efo.errors import ConfigurationError, LeaseTableError, StreamReplacedError
from kinesis_efo.leases.row import Lease
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo_local import AwsError, Finish, NoFaults, Request
from kinesis_efo_local.consumers import Subscription
from kinesis_efo_local.fault_injection import Step
from kinesis_efo_local.wire import exception_frame
from tests.emulator.memory_world import STREAM, MemoryWorld
from tests.emulator.query import Query
from tests.support.examples import seeds
from tests.support.messages import raises

SMALL = {"max_event_records": 5}


# Shows 54.
@pytest.mark.parametrize("seed", seeds(2))
async def test_update_shard_count_from_4_to_16_to_2(seed: int) -> None:
    """Kinesis at most doubles or halves the number of shards at a time."""
    world = MemoryWorld(Random(seed), shards=4, settings=SMALL, max_records=60)
    steps = [8, 16, 8, 4, 2]

    def scale(number: int) -> None:
        if number < 40:
            world.put_some(30, keys=50)
        if number % 3 == seed % 3 and steps:
            world.scale(steps.pop(0))

    world.put_some(500, keys=50)
    await world.read(meanwhile=scale, batches=40)
    assert len(world.kinesis.state.streams[STREAM].open_shards) == 2


# Shows invariant 8.
async def test_many_reshards_before_the_first_record_is_read() -> None:
    """Within a minute, so that ListShards is not called again: only the ends of shards name their children."""
    world = MemoryWorld(shards=4, settings=SMALL)
    for target in (8, 16, 8, 4, 2):
        world.put_some(200, keys=50)
        world.scale(target)
    world.put_some(200, keys=50)
    await world.read(seconds=50)


def start(text: str) -> Start:
    """The option `startingPosition`."""
    return SourceOptions.parse({"manifest": "m.json", "startingPosition": text}).start


@pytest.mark.parametrize("named", ["shardId-000000000001", "shardId-000000000002"])
async def test_start_that_names_one_sibling_reads_the_other(named: str) -> None:
    world = MemoryWorld(settings=SMALL)
    world.put_some(40)
    world.skipped = dict(world.written)
    world.split(0)
    world.put_some(40)
    world.application.start = start(f'{{"orders": {{"{named}": "TRIM_HORIZON", "*": "TRIM_HORIZON"}}}}')
    await world.read(seconds=60)
    assert len(world.application.rows) == 40


async def test_checkpoint_that_left_out_a_sibling_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    """Earlier versions began such queries."""
    world = MemoryWorld(settings=SMALL)
    world.put_some(40)
    world.skipped = dict(world.written)
    world.split(0)
    world.put_some(40)
    offset = Offset({ShardKey("orders", "shardId-000000000001"): TRIM_HORIZON})
    world.application.offsets.append((offset, offset))
    await world.read(seconds=60)
    assert (
        sum(
            "shardId-000000000002: neither the shard nor a parent is in the query's checkpoint" in line
            for line in caplog.messages
        )
        == 1
    )


async def test_start_at_parent_and_grandchild_names_the_shard_between() -> None:
    world = MemoryWorld(settings=SMALL)
    world.split(0)
    world.split(0)
    now = f"AT_TIMESTAMP:{int(world.clock.time() * 1000) + 10_000}"
    shards = {"shardId-000000000000": now, "shardId-000000000003": now}
    world.application.start = start(json.dumps({"orders": shards}))
    with raises(
        ConfigurationError,
        "the query would never read shardId-000000000001 of stream 'orders': if 'startingPosition' names a parent "
        "and a child of such a shard, name the shard as well; otherwise Kinesis does not list its parents yet: restart the query",
    ):
        await world.read(seconds=60)


@pytest.mark.parametrize("since", ["TRIM_HORIZON", "AT_TIMESTAMP:0"])
@pytest.mark.parametrize("leases", [False, True], ids=["JSON", "LEASES"])
async def test_child_of_a_start_begins_after_its_parent(since: str, leases: bool) -> None:
    world = MemoryWorld(settings=SMALL, max_records=5)
    world.put_some(100)
    world.split(0)
    world.put_some(100)
    position = Position.parse(since.replace(":0", f":{int(world.clock.time() * 1000) - 60_000}"))
    shards = [shard["ShardId"] for shard in world.kinesis.call("ListShards", StreamName=STREAM)["Shards"]]
    world.application.start = start(json.dumps({"orders": dict.fromkeys(shards, str(position))}))
    if leases:
        world.application.start = Start(from_leases=True)
        for shard in shards:
            row = replace(Lease(f"orders:{shard}"), checkpoint=position)
            world.application.table.items[row.key] = row.to_item()
    await world.read(seconds=600)


async def test_start_behind_records_of_a_named_parent_is_an_error() -> None:
    world = MemoryWorld(settings=SMALL)
    world.put_some(40)
    world.split(0)
    await asyncio.sleep(10)
    shards = {"shardId-000000000000": "TRIM_HORIZON", "shardId-000000000001": "LATEST"}
    world.application.start = start(json.dumps({"orders": shards}))
    with raises(
        ConfigurationError,
        "kinesis-efo option 'startingPosition' names shardId-000000000001 of stream 'orders' and a parent with records "
        "before it: a shard begins when its parents have ended. Name only one of them",
    ):
        await world.read(seconds=60)


async def test_start_from_leases_names_the_shard_without_a_row() -> None:
    world = MemoryWorld(shards=2, settings=SMALL)
    world.put_some(40)
    await world.read()
    world.application.offsets.clear()
    world.application.start = Start(from_leases=True)
    del world.application.table.items["orders:shardId-000000000001"]
    with raises(
        LeaseTableError,
        "kinesis-efo option 'startingPosition' or 'newStreamPosition' is LEASES, but lease table memory has no readable "
        "row for shardId-000000000001 of stream 'orders', nor for a parent or child. Copy the row from the KCL "
        "application's table with `kinesis-efo leases import-kcl`, or give each shard its position in JSON; `kinesis-efo "
        "leases list` shows those in the table",
    ):
        await world.read(seconds=120)


async def test_row_of_a_grandchild_waits_for_its_grandparent() -> None:
    world = MemoryWorld(settings=SMALL)
    world.put_some(40)
    world.split(0)
    world.put_some(40)
    world.merge(0)
    world.put_some(40)
    table = world.application.table
    for shard in ("shardId-000000000000", "shardId-000000000003"):
        row = replace(Lease(f"orders:{shard}"), checkpoint=TRIM_HORIZON)
        table.items[row.key] = row.to_item()
    world.application.start = Start(from_leases=True)
    await world.read(seconds=600)


# Shows shards vanish or appear, stream created again.
async def test_stream_created_again_while_its_query_waits_for_records() -> None:
    world = MemoryWorld(shards=2, polls=True)
    world.application.start = start("LATEST")
    async with Query(world.application) as query:
        offset = await query.batch(await query.begin())
        world.kinesis.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
        world.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=2)

        async def go_on() -> None:
            at = offset
            while True:
                at = await query.batch(at)

        with raises(
            StreamReplacedError,
            "stream 'orders': its shards begin at different sequence numbers than before: ... (from manifest.json) was deleted and "
            "created again since. Unread records of the earlier stream are gone; stop all queries of this Spark program, then start this "
            "one with a new checkpoint, and startingPosition TRIM_HORIZON to read all of the new one",
        ):
            await asyncio.wait_for(go_on(), 120)


# Shows stream created again.
async def test_stream_created_again_while_its_run_dies() -> None:
    world = MemoryWorld(shards=2, polls=True)
    world.application.start = start("LATEST")
    async with Query(world.application) as query:
        offset = await query.batch(await query.begin())
    assert all(position.sequence_number is None for position in offset.values())
    world.kinesis.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
    await asyncio.sleep(60)
    world.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=2)
    await asyncio.sleep(60)
    async with Query(world.application) as query:
        with pytest.raises(StreamReplacedError, match="the checkpoint belongs to"):
            await query.planner.check_replay(offset, ())


# Shows 49.
async def test_latest_is_decided_once_despite_a_failure_before_records() -> None:
    world = MemoryWorld(shards=2)
    world.put_some(50)
    world.split(1)
    world.put_some(50)
    world.skipped = dict(world.written)
    world.application.start = Start()
    await asyncio.sleep(1)
    async with Query(world.application) as query:
        # Spark stores the first offset, and the query ends before it reads a record.
        first = await query.begin()
    world.application.offsets.append((first, first))
    world.put_some(50)
    world.split(0)
    world.put_some(50)
    await world.read()


# Shows clock off.
@pytest.mark.parametrize("jump", [-40.0, 40.0, 200.0])
@pytest.mark.parametrize("polls", [True, False])
async def test_latest_begins_by_the_clock_of_kinesis(polls: bool, jump: float) -> None:
    world = MemoryWorld(shards=2, polls=polls)
    world.application.start = Start()
    world.application.clock.jump = jump
    world.put_some(50)
    world.skipped = dict(world.written)
    await asyncio.sleep(3)  # it may begin up to a second earlier

    def write(number: int) -> None:
        if number < 5:
            world.put_some(20)

    await world.read(meanwhile=write, batches=8)
    assert len(world.application.rows) == 100


class NotFound(NoFaults):
    """Kinesis says that a child does not exist: when it is opened first, and again after its first event.

    Args:
        shards: How many shards there were at first.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.said: set[tuple[str, bool]] = set()

    async def before(self, request: Request) -> None:
        if request.operation in ("SubscribeToShard", "GetShardIterator") and self._says(request.params["ShardId"]):
            raise AwsError("ResourceNotFoundException", "not there yet")

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        if subscription.events == 1 and self._says(subscription.shard.id, opened=True):
            return [exception_frame(AwsError("ResourceNotFoundException", "not there yet")), Finish()]
        return [frame]

    def _says(self, shard_id: str, *, opened: bool = False) -> bool:
        if int(shard_id.rpartition("-")[2]) < self.shards or (shard_id, opened) in self.said:
            return False
        self.said.add((shard_id, opened))
        return True


# Shows not found after a reshard.
@pytest.mark.parametrize("age", [0.0, 60.0], ids=["", "ListShards a minute old"])
async def test_children_not_found_in_a_burst_of_splits(age: float) -> None:
    """As right after a reshard. A later child is missing in the list that was read for an earlier one."""
    faults = NotFound(shards=4)
    world = MemoryWorld(shards=4, settings=SMALL, faults=faults)

    async def split(number: int) -> None:
        if number < 4:
            world.split(2 * number)
            world.put_some(200)
            await asyncio.sleep(1)

    world.put_some(200)
    # Older than what ListShards says.
    await asyncio.sleep(2 * age)
    world.kinesis.listing_age = age
    await world.read(meanwhile=split, batches=5)
    assert len(faults.said) == 16


class Creating(NoFaults):
    """The stream is still being created when its shards are listed first."""

    left = 5

    async def before(self, request: Request) -> None:
        if request.operation == "ListShards" and self.left:
            self.left -= 1
            text = "Stream orders not ACTIVE or UPDATING, instead in state CREATING"
            raise AwsError("ResourceInUseException", text)


# Shows stream just created.
async def test_stream_that_is_being_created_is_waited_for() -> None:
    faults = Creating()
    world = MemoryWorld(settings=SMALL, faults=faults)
    world.put_some(50)
    await world.read()
    assert not faults.left


# Shows stream just created.
async def test_empty_list_of_shards_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """Every stream has a shard. A query that began with none would read nothing, for ever."""
    # Who waits so often waits for more than the five seconds after which that is said, whatever is drawn.
    wrong = {"wrong_answers": "no-shards", "wrong_answers_rate": 1.0, "wrong_answers_in_a_row": 8}
    world = MemoryWorld(shards=2, settings=SMALL | wrong)

    async def go_on(number: int) -> None:
        if number < 30:
            world.put_some(10)
            await asyncio.sleep(30)
        if number == 20:
            world.split(0)

    world.put_some(200)
    for _ in range(2):
        await world.read(meanwhile=go_on, batches=30)
    said = [line for line in caplog.messages if "no shard of" in line]
    assert any(line.startswith("waiting for ListShards") for line in said), "at the start"
    later = [line for line in said if line.startswith("stream orders cannot be listed")]
    assert later
    assert not any("restart" in line for line in later), "the query goes on by itself"
