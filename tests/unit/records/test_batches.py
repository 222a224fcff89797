"""Ranges of several shards in common batches: the same rows as range by range, each with its own shard, in fewer batches."""

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.records.aggregation import MAGIC
from kinesis_efo.records.batches import MAX_ROWS
from kinesis_efo.records.decoder import Decoder, decode
from tests.support.decoders import decoder as decoder
from tests.unit.records.test_decoder import aggregate, event, record

KINDS = {
    "plain": b"x",
    "aggregate": aggregate("a", "b", "c", hash_key="5"),
    "of another shard": aggregate("d", hash_key="50"),
    "broken": MAGIC + b"nothing",
}


class Range(NamedTuple):
    """A range to decode, the events that cover it, and the shard's hash keys."""

    range: ShardRange
    events: list[bytes]
    hash_range: tuple[int, int] | None = None


def together(ranges: list[Range], **options: Any) -> list[pa.RecordBatch]:
    decoder = Decoder(deaggregate=True, **options)
    batches = []
    for (key, after, through, _), events, hash_range in ranges:
        batches += decoder.add(events, key, after, through, hash_range)
    batches += decoder.finish()
    for batch in batches:
        assert 0 < batch.num_rows <= MAX_ROWS
        batch.validate(full=True)
    return batches


def one_by_one(ranges: list[Range], **options: Any) -> list[pa.RecordBatch]:
    return [
        batch
        for (key, after, through, _), events, hash_range in ranges
        for batch in decode(events, key, after, through, deaggregate=True, hash_range=hash_range, **options)
    ]


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    """Ranges of up to six shards, with all kinds of records, which may begin inside of an aggregate."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=8))
        records = [record(100 + at, KINDS[kind]) for at, kind in enumerate(kinds)]
        cut = draw(st.integers(0, len(records)))
        after = draw(
            st.sampled_from(
                [
                    TRIM_HORIZON,
                    Position.after(102),
                    Position.inside(100, 0),
                    Position.inside(100, 2),
                    Position.inside(7, 1),
                ]
            )
        )
        key, through = (
            ShardKey("orders", f"shardId-{number:012d}"),
            draw(st.sampled_from([SHARD_END, Position.after(104)])),
        )
        hash_range = draw(st.sampled_from([None, (0, 9)]))
        found.append(Range(ShardRange(key, after, through), [event(*records[:cut]), event(*records[cut:])], hash_range))
    return found


@pytest.mark.slow
@given(ranges())
def test_ranges_together_give_the_same_rows(given: list[Range]) -> None:
    said: dict[str, list[tuple[ShardKey, int]]] = {"together": [], "alone": []}
    found = rows(together(given, left_out=lambda *note: said["together"].append(note)))
    alone = rows(one_by_one(given, left_out=lambda *note: said["alone"].append(note)))
    # What is left of an aggregate comes before what waits for its batch: the order counts within a shard only.
    for name in {row["shardId"] for row in alone}:
        assert [row for row in found if row["shardId"] == name] == [row for row in alone if row["shardId"] == name]
    assert len(found) == len(alone)
    assert sorted(said["together"]) == sorted(said["alone"])
