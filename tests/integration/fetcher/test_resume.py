"""Going on after a pause: what retention took meanwhile, leases that are gone or behind, a stream created anew.

Days pass at once: the local Kinesis and the fetcher share a wall clock that tests set forward.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.clock import SystemClock
from kinesis_efo.decisions.losses import written_at
from kinesis_efo.errors import DataLossError, StreamReplacedError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, PositionKind, ShardKey
from kinesis_efo.run.access import Begin
from kinesis_efo_local import AwsError, LocalAws, NoFaults, Request, Settings
from tests.support.fetching import Reading, beside, reading
from tests.support.messages import raises
from tests.support.world import World, make_world, wait_until

from .conftest import QUICK

HOURS = 3600
MakeWorld = Callable[..., World]


class Calendar(SystemClock):
    """The real clocks, the wall clock set forward."""

    offset = 0.0

    def time(self) -> float:
        return time.time() + self.offset


@pytest.fixture(scope="module")
def calendar() -> Calendar:
    return Calendar()


@pytest.fixture(scope="module")
def aging_aws(calendar: Calendar) -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(**QUICK, signature_seconds=math.inf), clock=calendar) as aws:
        yield aws


@pytest.fixture
def aging(aging_aws: LocalAws, tmp_path: Path) -> MakeWorld:
    """Makes a world on which days can pass; arguments as `make_world`."""
    return lambda streams=("orders",), **create: make_world(aging_aws, tmp_path, streams, **create)


def records(first: int, count: int = 20) -> list[tuple[str, bytes]]:
    return [(f"k{n % 7}", b"%08d" % n) for n in range(first, first + count)]


def data(reader: Reading) -> list[bytes]:
    return sorted(row.data for row in reader.rows)


def read_some(w: World, calendar: Calendar, rows: int = 20, **options: Any) -> Offset:
    with reading(w, clock=calendar, **options) as r:
        r.until(rows)
        r.commit()
        return r.offset


@pytest.mark.parametrize(
    ("start", "rows"), [("TRIM_HORIZON", 40), ("LEASES", 20)], ids=["without the checkpoint", "from the leases"]
)
def test_new_query_behind_the_applications_progress_warns(
    world: MakeWorld, start: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    w = world()
    w.put(records(0))
    with reading(w) as r:
        r.until(20)
        r.commit()
    assert not caplog.messages
    w.put(records(20))
    with caplog.at_level(logging.WARNING), reading(w, startingPosition=start) as r:
        r.until(rows)
        r.commit()
    said = [message for message in caplog.messages if "this query is new, without a checkpoint" in message]
    assert len(said) == (start != "LEASES")
    for message in said:
        assert "has read 1 of the stream's shards before (shardId-000000000000 up to AFTER:" in message


# Shows 55.
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_trimmed_position_is_an_error_or_a_warning(
    aging: MakeWorld, calendar: Calendar, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    w = aging()
    w.put(records(0))
    offset = read_some(w, calendar, readMode=mode)
    w.put(records(20))
    calendar.offset += 25 * HOURS
    w.put(records(40))
    with reading(w, at=offset, clock=calendar, readMode=mode) as r:
        with pytest.raises(DataLossError) as caught:
            r.until(1, seconds=20)
        (key,) = offset
        for text in ("'orders'", key.shard, str(offset[key]), "failOnDataLoss", "any records between"):
            assert text in str(caught.value)
    with (
        caplog.at_level(logging.WARNING),
        reading(w, at=offset, clock=calendar, readMode=mode, failOnDataLoss="false") as r,
    ):
        r.until(20)
        assert data(r) == [value for _, value in records(40)]
        end, rows = r.offset, r.rows[:]
    # A range that Spark has in its log is the same again after another restart.
    with reading(w, at=offset, clock=calendar, readMode=mode, failOnDataLoss="false") as r:
        assert [row for wanted in offset.ranges_to(end) for row in r.read(wanted)] == rows
    assert sum("going on without it" in record.getMessage() for record in caplog.records) == 2, "once per shard and run"


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_late_query_learns_of_a_loss_at_the_horizon(aging: MakeWorld, calendar: Calendar, mode: str) -> None:
    w = aging()
    w.put(records(0))
    offset = read_some(w, calendar, readMode=mode)
    w.put(records(20))
    calendar.offset += 25 * HOURS
    w.put(records(40))
    with reading(w, clock=calendar, readMode=mode) as r:
        r.until(20, commit=False)
        with beside(r, "late", offset) as late, pytest.raises(DataLossError, match="any records between"):
            late.until(1, seconds=20)
        w.put(records(60))
        r.until(40)
        assert data(r) == [value for _, value in records(40, 40)]


def test_a_pause_within_retention_costs_nothing(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging()
    w.kinesis.increase_stream_retention_period(StreamName=w.streams["orders"], RetentionPeriodHours=48)
    w.put(records(0))
    offset = read_some(w, calendar)
    w.put(records(20))
    calendar.offset += 47 * HOURS
    with reading(w, at=offset, clock=calendar) as r:
        r.until(20)
        assert data(r) == [value for _, value in records(20)]


# Shows 48.
def test_offset_of_an_idle_shard_advances(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging()
    w.put(records(0))
    with reading(w, clock=calendar) as r:
        r.until(20)
        calendar.offset += 30 * HOURS
        # A later poll tells it again only if the shard has said something since.
        offset = wait_until(lambda: polled if age(polled := r.poll(), calendar) < 60 else None, 20)
    calendar.offset += 20 * HOURS
    w.put(records(20))
    with reading(w, at=offset, clock=calendar) as r:
        assert [row.data for row in r.until(20)] == [value for _, value in records(20)]


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_idle_polled_shard_with_old_offset_has_no_loss(aging: MakeWorld, calendar: Calendar, start: str) -> None:
    w = aging()
    # `LATEST` is up to a second early, and these are before it.
    w.aws.backdate(w.streams["orders"], 10)
    w.put(records(0))
    w.aws.backdate(w.streams["orders"], 0)
    options = {"readMode": "polling", "startingPosition": start, "pollingInterval": "200ms"}
    with reading(w, clock=calendar, **options) as r:
        if start == "TRIM_HORIZON":
            r.until(20)
        r.commit()
        r.batch()
        for _ in range(2):
            calendar.offset += 15 * HOURS
            wait_until(lambda: read_until(w) > calendar.time() - 60, 20)
        assert r.poll() == r.offset
        assert age(r.offset, calendar) > 29 * HOURS
        offset = r.offset
    calendar.offset += 20 * HOURS
    w.put(records(20))
    with reading(w, at=offset, clock=calendar, **options) as r:
        assert [row.data for row in r.until(20)] == [value for _, value in records(20)]


def age(offset: Offset, calendar: Calendar) -> float:
    ((key, position),) = offset.items()
    if position.kind is PositionKind.AT_TIMESTAMP:
        return calendar.time() - position.value / 1000
    return calendar.time() - (written_at(position.value, key.shard, calendar.time() + 1) or 0)


def read_until(w: World) -> float:
    return max((int(row["readUntil"]["N"]) / 1000 for row in w.leases().values() if "readUntil" in row), default=0)


# Shows 55.
def test_shard_trimmed_unread_between_two_others_is_reported(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 1})
    w.put(records(0))
    name = w.streams["orders"]

    def split() -> None:
        (shard,) = [s for s in w.shards() if "EndingSequenceNumber" not in s["SequenceNumberRange"]][:1]
        hashes = shard["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2 + 1
        w.kinesis.split_shard(StreamName=name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))

    (root,) = (shard["ShardId"] for shard in w.shards())
    split()
    w.put(records(20))
    calendar.offset += 1 * HOURS
    split()
    w.put(records(40))
    # The root was read to its end; then nobody read until it, and one of its children, had been trimmed.
    offset = Offset({ShardKey("orders", root): SHARD_END})
    calendar.offset += 24.5 * HOURS
    w.put(records(60))
    with (
        reading(w, at=offset, clock=calendar) as r,
        raises(
            DataLossError,
            "stream 'orders', shard shardId-000000000001 does not exist any more, and was not read: its "
            "unread records, and those of older shards that are not listed any more, are gone (retention). "
            "To go on without them once, set kinesis-efo option 'acceptDataLoss' to "
            '{"orders":{"shardId-000000000001":"TRIM_HORIZON"}} (`kinesis-efo doctor --checkpoint` prints '
            "it for all shards); option 'failOnDataLoss=false' accepts every loss. A longer retention "
            "period of the stream gives more time",
        ),
    ):
        r.until(1, seconds=20)
    with reading(w, at=offset, clock=calendar, failOnDataLoss="false") as r:
        r.until(20)
        assert set(data(r)) >= {value for _, value in records(60)}


# Shows beginning of a child trimmed.
def test_child_with_a_trimmed_beginning_is_a_loss(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 1})
    (root,) = (shard["ShardId"] for shard in w.shards())
    w.kinesis.split_shard(StreamName=w.streams["orders"], ShardToSplit=root, NewStartingHashKey=str(2**127))
    children = [shard["ShardId"] for shard in w.shards() if shard["ShardId"] != root]
    w.put(records(0))
    offset = Offset(
        {ShardKey("orders", root): SHARD_END, **{ShardKey("orders", child): TRIM_HORIZON for child in children}}
    )
    calendar.offset += 25 * HOURS
    with reading(w, at=offset, clock=calendar) as r, pytest.raises(DataLossError, match="has not been read yet"):
        r.until(1, seconds=20)


@pytest.mark.parametrize("hours", [0, 25])
@pytest.mark.parametrize("named", [True, False])
def test_repeated_range_from_a_trimmed_beginning_is_a_loss(
    aging: MakeWorld, calendar: Calendar, hours: int, named: bool
) -> None:
    w = aging({"orders": 1})
    (root,) = (shard["ShardId"] for shard in w.shards())
    w.kinesis.split_shard(StreamName=w.streams["orders"], ShardToSplit=root, NewStartingHashKey=str(2**127))
    w.put(records(0))
    # Planned, and not committed: Spark's log has this micro-batch.
    parent = {ShardKey("orders", root): SHARD_END}
    with reading(w, at=Offset(parent), clock=calendar) as r:
        r.until(20)
        children = {key: TRIM_HORIZON for key in r.offset if key.shard != root}
        begin, end = Offset({**parent, **(children if named else {})}), r.offset
    calendar.offset += hours * HOURS
    w.put(records(20))
    ranges = [wanted for wanted in begin.ranges_to(end) if wanted.key.shard != root]
    with reading(w, at=end, clock=calendar) as r:
        if not hours:
            r.calls.check_replay(begin, ranges)
            assert sorted(row.data for wanted in ranges for row in r.read(wanted)) == [data for _, data in records(0)]
            return
        with pytest.raises(DataLossError, match=r"any records between .* are gone"):
            r.calls.check_replay(begin, ranges)
        with pytest.raises(DataLossError):
            r.poll()


def test_trimmed_first_range_from_the_horizon_is_reported(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 1})
    w.put(records(0))
    with reading(w, clock=calendar) as r:
        begin = r.offset
        r.until(20)
        ranges = begin.ranges_to(r.offset)
        r.calls.check_replay(begin, ranges)  # as with each first micro-batch
    calendar.offset += 25 * HOURS
    w.put(records(20))
    with reading(w, clock=calendar) as r, pytest.raises(DataLossError, match="has not been read yet"):
        r.calls.check_replay(begin, ranges)


def test_new_query_at_the_horizon_has_no_loss(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 2})
    w.put(records(0))
    calendar.offset += 25 * HOURS
    w.put(records(20))
    with reading(w, clock=calendar) as r:
        r.until(20)
        assert data(r) == [value for _, value in records(20)]


@pytest.mark.parametrize("shards", [1, 3])
def test_stream_created_again_under_its_name_is_refused(aging: MakeWorld, calendar: Calendar, shards: int) -> None:
    w = aging({"orders": 2})
    w.put(records(0))
    offset = read_some(w, calendar)
    created_again(w, calendar, shards)
    w.put(records(20))
    for lossy in ("true", "false"):
        with reading(w, at=offset, clock=calendar, failOnDataLoss=lossy) as r:
            with pytest.raises(StreamReplacedError) as caught:
                r.until(1, seconds=20)
            for text in ("'orders'", "deleted and created again", "new checkpoint"):
                assert text in str(caught.value)


@pytest.mark.parametrize("start", ["LATEST", "TRIM_HORIZON"])
def test_stream_created_again_before_the_first_record_is_refused(
    aging: MakeWorld, calendar: Calendar, start: str
) -> None:
    """Its positions are times, which are valid in any stream."""
    w = aging({"orders": 2})
    with reading(w, clock=calendar, startingPosition=start) as r:
        offset = Offset.from_json(r.offset.to_json())
    created_again(w, calendar, shards=2)
    with reading(w, at=offset, clock=calendar) as r, pytest.raises(StreamReplacedError, match="the checkpoint is of"):
        r.runtime.ask(Begin(resumed=offset))


def created_again(w: World, calendar: Calendar, shards: int) -> None:
    """Delete a world's stream and create it anew, an hour later, with a consumer that the manifest names."""
    name = w.streams["orders"]
    w.kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
    calendar.offset += HOURS
    w.kinesis.create_stream(StreamName=name, ShardCount=shards)
    w.wait_active()
    arn = w.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    consumer = w.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="lake")["Consumer"]["ConsumerARN"]
    w.manifest.write_text(w.manifest.read_text().replace(w.consumers["orders"], consumer))


def created(w: World) -> str:
    """When a world's stream was created, as rows say it."""
    summary = w.kinesis.describe_stream_summary(StreamName=w.streams["orders"])["StreamDescriptionSummary"]
    return str(int(summary["StreamCreationTimestamp"].timestamp()))


# Shows leases of another stream.
def test_checkpoints_of_a_former_stream_are_replaced(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 2})
    w.put(records(0))
    read_some(w, calendar)
    before = created(w)
    rows = {key: row for key, row in w.leases().items() if not key.startswith("#")}
    assert {row["streamCreated"]["N"] for row in rows.values()} == {before}
    assert len({row["streamArn"]["S"] for row in rows.values()}) == 1
    created_again(w, calendar, shards=1)
    w.put(records(20))
    with pytest.raises(StreamReplacedError) as caught, reading(w, clock=calendar, startingPosition="LEASES"):
        pass
    for epoch in (before, created(w)):
        assert f"created {datetime.fromtimestamp(int(epoch), UTC).isoformat()}" in str(caught.value)
    for text in ("orders:shardId-000000000000 (and 1 more)", "deleted and created again since", "leases reset"):
        assert text in str(caught.value)
    read_some(w, calendar)
    rows = {key: row for key, row in w.leases().items() if not key.startswith("#")}
    assert list(rows) == ["orders:shardId-000000000000"], "what the present stream does not have is gone"
    assert rows["orders:shardId-000000000000"]["streamCreated"] == {"N": created(w)}
    w.put(records(40))
    with reading(w, clock=calendar, startingPosition="LEASES") as r:
        r.until(20)
        assert data(r) == [value for _, value in records(40)]


def test_reading_works_without_the_permission_for_creation_times(faulty: MakeWorld) -> None:
    class Denied(NoFaults):
        async def before(self, request: Request) -> None:
            if request.operation == "DescribeStreamSummary":
                raise AwsError("AccessDeniedException", "not authorized to perform: kinesis:DescribeStreamSummary")

    w = faulty(Denied())
    w.put(records(0))
    with reading(w) as r:
        r.until(20)
        r.commit()
    [row] = [row for key, row in w.leases().items() if not key.startswith("#")]
    assert row["streamArn"]["S"].endswith(w.streams["orders"])
    assert "streamCreated" not in row
    w.put(records(20))
    with reading(w, startingPosition="LEASES") as r:
        r.until(20)
        assert data(r) == [value for _, value in records(20)]


# Shows 76, invariant 10, lease rows changed.
def test_changed_lease_rows_do_not_change_the_rows_read(aging: MakeWorld, calendar: Calendar) -> None:
    w = aging({"orders": 2})
    w.put(records(0))
    yesterday = read_some(w, calendar)
    old_rows = w.leases()
    w.put(records(20))
    with reading(w, at=yesterday, clock=calendar) as r:
        r.until(20)
        r.commit()
        today = r.offset
    w.put(records(40))

    def goes_on(offset: Offset, first: int) -> None:
        with reading(w, at=offset, clock=calendar) as r:
            r.until(60 - first)
            assert data(r) == [value for _, value in records(first, 60 - first)]

    goes_on(yesterday, 20)  # a checkpoint restored from yesterday; the leases are ahead
    for key in w.leases():
        w.dynamodb.delete_item(TableName=w.lease_table, Key={"leaseKey": {"S": key}})
    goes_on(today, 40)  # the table emptied
    for row in old_rows.values():
        w.dynamodb.put_item(TableName=w.lease_table, Item=row)
    goes_on(today, 40)  # the table restored from yesterday
