"""Changes to leases by hand: what is planned, and that nothing is written over what somebody else wrote meanwhile."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo_tools.operate.lease_edits import Edit, apply, imported, moves, releases, replacement
from tests.support.lease_store import MemoryLeaseStore

POSITIONS = st.sampled_from([TRIM_HORIZON, SHARD_END, Position.after(7), Position.after(90), Position.at_timestamp(5)])
SHARDS = [f"shardId-{number:012}" for number in range(5)]


@st.composite
def rows(draw: st.DrawFn, prefix: str = "") -> dict[str, Lease]:
    """Rows of some shards, some of them owned."""
    return {
        prefix + shard: Lease(
            prefix + shard,
            counter=draw(st.integers(0, 9)),
            owner=draw(st.sampled_from([None, "worker"])),
            checkpoint=draw(st.none() | POSITIONS),
            sub=draw(st.sampled_from([0, 0, 3])),
            read_until=draw(st.sampled_from([None, 1_700_000_000.0])),
        )
        for shard in draw(st.sets(st.sampled_from(SHARDS)))
    }


def written(present: dict[str, Lease], edits: list[Edit]) -> dict[str, Lease]:
    """The rows once all edits are in the table."""
    table = MemoryLeaseStore()
    table.items = {key: lease.to_item() for key, lease in present.items()}
    assert asyncio.run(apply(table, edits, force=False)) == []
    return {key: table.lease(key) for key in table.items}


@given(rows())
def test_release_frees_every_lease_and_moves_none(present: dict[str, Lease]) -> None:
    edits = releases(present.values())
    after = written(present, edits)
    assert {key: lease.checkpoint for key, lease in after.items()} == {
        key: lease.checkpoint for key, lease in present.items()
    }
    assert all(lease.owner is None for lease in after.values())
    assert len(edits) == sum(lease.owner is not None for lease in present.values())
    assert releases(after.values()) == []


@given(rows(), POSITIONS)
def test_moves_end_at_the_position_and_are_planned_once(present: dict[str, Lease], position: Position) -> None:
    after = written(present, moves(present.values(), position))
    assert all((row.checkpoint, row.sub, row.owner) == (position, 0, None) for row in after.values())
    # A row that was moved does not claim any more what was read before.
    untouched = {key for key, row in present.items() if (row.checkpoint, row.sub, row.owner) == (position, 0, None)}
    assert all(row.read_until is None for key, row in after.items() if key not in untouched)
    assert moves(after.values(), position) == []


@given(rows(), st.dictionaries(st.sampled_from(SHARDS), POSITIONS))
def test_a_replacement_leaves_exactly_what_is_wanted(present: dict[str, Lease], wanted: dict[str, Position]) -> None:
    infos = {key: LeaseInfo(position, frozenset({"p"}), "0", "9") for key, position in wanted.items()}
    after = written(present, replacement(present, infos))
    assert {key: (row.checkpoint, row.sub, row.owner) for key, row in after.items()} == {
        key: (position, 0, None) for key, position in wanted.items()
    }
    assert replacement(after, infos) == []


@given(rows(), rows("orders:"), st.booleans())
def test_import_has_the_positions_of_the_source(
    source: dict[str, Lease], present: dict[str, Lease], other_stream: bool
) -> None:
    keys, initial = LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"}), Position.at_timestamp(44)
    clicks = {"clicks:shardId-1": Lease("clicks:shardId-1")} if other_stream else {}
    found = imported(list(source.values()), LeaseKeys({"orders": "dev-orders"}), present | clicks, keys, initial)
    after = written(present | clicks, found.edits)
    expected = {f"orders:{key}": (lease.checkpoint or initial, lease.sub) for key, lease in source.items()}
    of_orders = {key: row for key, row in after.items() if key.startswith("orders:")}
    if source:  # an empty source says nothing of any stream
        assert {key: (row.checkpoint, row.sub) for key, row in of_orders.items()} == expected
        assert all(row.owner is None for row in of_orders.values())
    else:
        assert of_orders == present
    assert {key: row for key, row in after.items() if key.startswith("clicks:")} == clicks
    assert {str(shard).partition(":")[2] for shard in found.begun} == {
        key for key, lease in source.items() if lease.checkpoint is None
    }
    assert imported(list(source.values()), LeaseKeys({"orders": "dev-orders"}), after, keys, initial).edits == []


def test_import_reads_keys_of_kcl_only_of_its_streams() -> None:
    keys = LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"})
    source = [
        Lease("123456789012:dev-clicks:1700000000:shardId-1", checkpoint=Position.after(5)),
        Lease("123456789012:elsewhere:1700000000:shardId-1"),
        Lease("shardId-2"),
        Lease("#run:orders", owner="w"),
    ]
    found = imported(source, keys, {}, keys)
    assert [(edit.key, edit.what) for edit in found.edits] == [("clicks:shardId-1", "created")]
    assert found.skipped == ["123456789012:elsewhere:1700000000:shardId-1", "shardId-2"]


def _begun(
    initial: Position | None, opened: Collection[str] = (), **rows: tuple[Position | None, str]
) -> dict[str, str]:
    """Where shards begin; `rows` have the checkpoint and the parent of each. Shards of which that is not known are left out."""
    keys = LeaseKeys({"orders": "dev-orders"})
    source = [Lease(key, checkpoint=at, parents=frozenset({parent} - {""})) for key, (at, parent) in rows.items()]
    found = imported(source, keys, {}, keys, initial, [ShardKey("orders", each) for each in opened])
    begun = {edit.key.partition(":")[2]: str(edit.after.checkpoint) for edit in found.edits if edit.after}
    assert {shard.shard for shard in found.unknown} == rows.keys() - begun.keys()
    return begun


def test_import_of_unbegun_shards_needs_initial_position() -> None:
    seven, time = Position.after(7), Position.at_timestamp(44)
    assert _begun(None, a=(seven, ""), b=(None, "a"), c=(None, "b"), d=(None, "")) == {
        "a": "AFTER:7", "b": "TRIM_HORIZON", "c": "TRIM_HORIZON"
    }  # fmt: skip
    assert _begun(None, a=(SHARD_END, ""), b=(None, "a")) == {"a": "SHARD_END"}
    # Behind an unfinished parent, the time of LATEST would skip records.
    assert _begun(time, {"b"}, a=(seven, ""), b=(None, "a")) == {"a": "AFTER:7", "b": "TRIM_HORIZON"}
    assert _begun(time, {"a", "c"}, a=(None, ""), b=(None, "a"), c=(None, "")) == {
        "a": "AT_TIMESTAMP:44", "b": "TRIM_HORIZON", "c": "AT_TIMESTAMP:44"
    }  # fmt: skip
    assert _begun(time, {"b"}, a=(None, ""), b=(None, "a"))["b"] == "AT_TIMESTAMP:44"


async def test_changed_rows_are_overwritten_only_by_force() -> None:
    owned = replace(Lease("shardId-1").taken("worker", "", 1), checkpoint=Position.after(3))
    for changed in (owned.renewed(), owned.taken("another", "", 1), owned.released()):
        for plan in (moves([owned], Position.after(70)), [Edit(owned.key, owned, None)]):
            table = MemoryLeaseStore()
            table.items = {owned.key: changed.to_item()}
            assert await apply(table, plan, force=False) == plan
            assert table.items == {owned.key: changed.to_item()}
            assert await apply(table, plan, force=True) == []
            if plan[0].after is None:
                assert table.items == {}
            else:
                row = table.lease(owned.key)
                assert (row.checkpoint, row.owner) == (Position.after(70), None)
