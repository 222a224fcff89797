"""A real local Kinesis that answers wrongly, over HTTP: micro-batches that are repeated, in both read modes, and batch reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.aws import SyncClients
from kinesis_efo.batch.reading import Reading
from kinesis_efo.batch.stretches import Stretch
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo_local import LocalAws, Settings
from tests.support.fetching import reading
from tests.support.world import World, make_world

KEY = ShardKey("orders", "shardId-000000000000")
QUICK = Limits(between_calls=0.05, after_success=0.2, too_short=0.01)
RECORDS = 400


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes a world whose Kinesis gives some kinds of wrong answers, always where it can."""
    servers: list[LocalAws] = []

    def make(kinds: str, **settings: Any) -> World:
        quick = {"consumer_creating_seconds": 0.0, "idle_event_seconds": 0.3, "resubscribe_seconds": 0.2}
        wrong = {"wrong_answers": kinds, "wrong_answers_rate": 1.0, "wrong_answers_in_a_row": 4}
        aws = LocalAws(settings=Settings(**quick | wrong | settings))
        servers.append(aws.__enter__())
        return make_world(aws, tmp_path)

    yield make
    for server in servers:
        server.__exit__(None, None, None)


def numbered(count: int) -> list[tuple[str, bytes]]:
    return [("k", b"%d" % number) for number in range(count)]


# Shows invariant 4.
@pytest.mark.parametrize("kinds", ["quiet", "all"])
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_repeated_micro_batch_keeps_its_rows_despite_empty_answers(
    world: Callable[..., World], mode: str, kinds: str
) -> None:
    w = world(kinds)
    w.put(numbered(RECORDS))
    options = {"readMode": mode, "pollingInterval": "200ms"}
    with reading(w, limits=QUICK, **options) as r:
        r.until(RECORDS)
        batches = [(Offset.from_json(start.to_json()), Offset.from_json(end.to_json())) for start, end in r.batches]
    first, last = batches[0][0], batches[-1][1]
    idle = Offset({KEY: Position.after(last[KEY].value + (1 << 80))})
    with reading(w, at=first, limits=QUICK, **options) as r:
        rows = [row for start, end in batches for wanted in start.ranges_to(end) for row in r.read(wanted)]
        assert [int(row.data) for row in rows] == list(range(RECORDS))
        [empty] = last.ranges_to(idle)
        assert r.read(empty) == [], "and it does not hang where nothing had come"


@pytest.mark.parametrize("kinds", ["quiet", "all"])
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_a_batch_read_has_all_rows(world: Callable[..., World], mode: str, kinds: str) -> None:
    # As many wrong answers in a row as there may be without being believed.
    w = world(kinds, wrong_answers_in_a_row=2 if mode == "polling" else 1, idle_event_seconds=1.0)
    w.put(numbered(RECORDS))
    options = SourceOptions.parse({**w.options, "readMode": mode})
    manifest = resolve_manifest(options, SyncClients(options.aws))
    end = Position.after(last_number(w))
    stretch = Stretch(KEY, (0, 2**128 - 1), TRIM_HORIZON, end)
    rows = [row for batch in Reading([stretch], manifest, options).batches() for row in batch["data"].to_pylist()]
    assert [int(row) for row in rows] == list(range(RECORDS))


# Shows stream just created.
def test_a_stream_that_was_just_created_is_waited_for(world: Callable[..., World]) -> None:
    w = world("", stream_creating_seconds=2.0)
    name = w.streams["orders"]
    w.kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
    w.kinesis.get_waiter("stream_not_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    w.kinesis.create_stream(StreamName=name, ShardCount=1)
    with pytest.raises(ClientError, match="not ACTIVE or UPDATING, instead in state CREATING"):
        w.kinesis.list_shards(StreamName=name)
    with reading(w, limits=QUICK, readMode="polling", startingPosition="TRIM_HORIZON") as r:
        w.put(numbered(RECORDS))
        assert [int(row.data) for row in r.until(RECORDS)] == list(range(RECORDS))


def last_number(w: World) -> int:
    """The number of the last record, as boto3 reads it: it asks again where an answer is empty."""
    name = w.streams["orders"]
    iterator = w.kinesis.get_shard_iterator(StreamName=name, ShardId=KEY.shard, ShardIteratorType="TRIM_HORIZON")
    at, numbers = iterator["ShardIterator"], []
    while len(numbers) < RECORDS:
        answer = w.kinesis.get_records(ShardIterator=at)
        numbers += [int(record["SequenceNumber"]) for record in answer["Records"]]
        at = answer["NextShardIterator"]
    return numbers[-1]
