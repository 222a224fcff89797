"""The shards of a stream in the order of a tree, whatever was split and merged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo_tools.operate.shard_tree import tree


@st.composite
def lineages(draw: st.DrawFn) -> list[Shard]:
    """Shards after some splits and merges, of which retention has removed the oldest."""
    shards = [Shard(f"s{number:03}", (), (0, 0), first=number) for number in range(draw(st.integers(1, 3)))]
    living = [shard.shard_id for shard in shards]
    for _ in range(draw(st.integers(0, 8))):
        width = draw(st.integers(1, min(2, len(living))))
        parents = tuple(living.pop(draw(st.integers(0, len(living) - 1))) for _ in range(width))
        for _ in range(3 - width):
            shards.append(Shard(f"s{len(shards):03}", parents, (0, 0), first=len(shards)))
            living.append(shards[-1].shard_id)
    kept = shards[draw(st.integers(0, len(shards) - 1)) :]
    return draw(st.permutations(kept))


@given(lineages())
def test_every_shard_is_once_below_a_parent(shards: list[Shard]) -> None:
    entries = tree(shards)
    listed = {shard.shard_id for shard in shards}
    assert sorted(entry.shard.shard_id for entry in entries if not entry.repeated) == sorted(listed)
    above: list[str] = []
    for entry in entries:
        del above[entry.depth :]
        assert len(above) == entry.depth
        assert (above[-1] in entry.shard.parents) if above else listed.isdisjoint(entry.shard.parents)
        assert set(entry.trimmed_parents) == (set() if entry.repeated else set(entry.shard.parents) - listed)
        above.append(entry.shard.shard_id)


def test_lineage_may_be_deeper_than_pythons_stack() -> None:
    shards = [Shard("s0000", (), (0, 0), 1)]
    shards += [Shard(f"s{number:04}", (f"s{number - 1:04}",), (0, 0), 1) for number in range(1, 3_000)]
    assert [entry.depth for entry in tree(shards)] == list(range(3_000))
