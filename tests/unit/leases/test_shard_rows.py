"""Rows of finished shards go when, and only when, nothing needs them any more (KCL's LeaseCleanup scenarios)."""

from dataclasses import replace

import pytest

from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.shard_rows import PendingCheckpoint, ShardRow, finished_parents
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position

BEGUN = Position.after(5)
PARENT = Lease("p", checkpoint=SHARD_END, children=frozenset({"a", "b"}), starting_hash_key="0", ending_hash_key="99")
A = Lease("a", checkpoint=BEGUN, parents=frozenset({"p"}), starting_hash_key="0", ending_hash_key="49")
B = Lease("b", checkpoint=BEGUN, parents=frozenset({"p"}), starting_hash_key="50", ending_hash_key="99")


def gone(*leases: Lease, candidates: str = "p") -> list[str]:
    return [lease.key for lease in finished_parents({each.key: each for each in leases}, candidates.split(","))]


# Shows 70.
def test_parent_goes_when_its_children_have_begun() -> None:
    assert gone(PARENT, A, B) == ["p"]
    assert gone(PARENT, A, B, candidates="a,b") == []


# Shows 70.
@pytest.mark.parametrize("position", [TRIM_HORIZON, Position.at_timestamp(3), None])
def test_parent_stays_while_a_child_has_not_begun(position: Position | None) -> None:
    assert gone(PARENT, A, replace(B, checkpoint=position)) == []


def test_hash_ranges_decide_where_children_were_not_stored() -> None:
    crashed = replace(PARENT, children=frozenset(), checkpoint=BEGUN)
    assert gone(crashed, A, B) == ["p"]
    assert gone(crashed, A) == []
    assert gone(crashed, A, replace(B, starting_hash_key="51")) == []
    assert gone(crashed, A, replace(B, ending_hash_key="98")) == []
    assert gone(crashed, A, replace(B, starting_hash_key=None)) == []
    assert gone(replace(crashed, ending_hash_key=None), A, B) == []


@pytest.mark.parametrize(
    ("at", "kept"), [(TRIM_HORIZON, 9.0), (Position.at_timestamp(3), None), (Position.after(2), 9.0)]
)
def test_low_watermark_of_a_time_is_not_one_of_a_number(at: Position, kept: float | None) -> None:
    row = ShardRow("a", Lease("a", checkpoint=at, read_until=9.0), pending=PendingCheckpoint(BEGUN))
    changed = row.change(lambda _: None, 60.0)
    assert changed is not None and (changed.position, changed.read_until) == (BEGUN, kept)
