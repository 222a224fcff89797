"""Starts: whatever a start names, each open shard is read, and nothing before the start; otherwise the start names what it leaves out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Lineage, ReadBound, Shard, beginning, begins
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo.records.events import ChildShard
from tests.support.examples import EXAMPLES
from tests.unit.decisions.test_lineage import World

NUMBER = Position.after(7)
TIME = Position.at_timestamp(1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, list[set[str]]]:
    """A stream of up to four generations and more, and the shards that were open at each moment."""
    world = World(draw(st.integers(1, 3)))
    opened = [{shard.shard_id for shard in world.open()}]
    for step, choice in draw(
        st.lists(st.tuples(st.sampled_from([World.split, World.merge]), st.integers(0, 9)), max_size=8)
    ):
        step(world, choice)
        opened.append({shard.shard_id for shard in world.open()})
    return world, opened


def read_from(world: World, offset: dict[str, Position]) -> set[str]:
    """The shards that a query with this first offset reads."""
    world.positions, world.started = dict(offset), list(offset)
    world.ended = {shard for shard, position in offset.items() if position.is_end}
    world.skipped = frozenset(world.lineage().ancestors(offset)) - world.positions.keys()
    before = world.ended | world.skipped
    world.drain()
    return set(world.started) - before


@settings(max_examples=8 * EXAMPLES)
@given(histories(), st.data())
def test_any_start_reads_every_open_shard(history: tuple[World, list[set[str]]], data: st.DataObject) -> None:
    world, opened = history
    lineage = world.lineage()
    named = dict.fromkeys(data.draw(st.sets(st.sampled_from(sorted(world.all)), max_size=3)), NUMBER)
    moment = data.draw(st.none() | st.sampled_from(opened))
    start = ReadBound(TRIM_HORIZON if moment is None else TIME, named, lineage.roots() if moment is None else moment)
    offset, left_out = beginning(lineage, start)
    between = (lineage.ancestors(named) & lineage.with_descendants(named)) - named.keys()
    assert set(left_out) == between
    if between:
        return
    assert lineage.startable(offset) == [], "nothing waits to be found later"
    assert offset.items() >= named.items()
    assert {shard for shard, at in offset.items() if at == TIME} <= (moment or set()) | lineage.with_descendants(
        moment or ()
    )
    read = read_from(world, offset)
    assert read == begins(lineage, start).keys()
    assert read >= {shard.shard_id for shard in world.open()}


@settings(max_examples=8 * EXAMPLES)
@given(histories(), st.data())
def test_start_at_rows_reads_or_names_each_shard(history: tuple[World, list[set[str]]], data: st.DataObject) -> None:
    world, _ = history
    lineage = world.lineage()
    positions = st.sampled_from([NUMBER, SHARD_END, TRIM_HORIZON])
    rows = data.draw(st.dictionaries(st.sampled_from(sorted(world.all)), positions))
    offset, left_out = beginning(lineage, ReadBound(TRIM_HORIZON, rows, ()))
    unread = lineage.with_descendants(shard for shard, at in rows.items() if not at.is_end)
    between = (lineage.ancestors(rows) & unread) - rows.keys()
    unrelated = world.all.keys() - lineage.with_descendants(rows) - lineage.ancestors(rows)
    assert between <= set(left_out) <= between | unrelated
    for shard in unrelated:
        assert not {shard, *lineage.ancestors((shard,)), *lineage.with_descendants((shard,))}.isdisjoint(left_out)
    if not left_out:
        assert offset == rows
        assert read_from(world, offset) >= {
            shard.shard_id for shard in world.open() if not rows.get(shard.shard_id, NUMBER).is_end
        }


def test_parent_before_the_start_does_not_delay_its_merge() -> None:
    p, left, right = Shard("p", (), (0, 9), 1, 2), Shard("l", ("p",), (0, 4), 3, 6), Shard("r", ("p",), (5, 9), 3, 6)
    lineage = Lineage([p, left, right, Shard("m", ("l", "r"), (0, 9), 7)])
    offset, left_out = beginning(lineage, ReadBound(TIME, {"l": NUMBER}, ["m"]))
    assert (offset, left_out) == ({"l": NUMBER, "r": SHARD_END}, [])
    assert lineage.startable({**offset, "l": SHARD_END}) == ["m"]


def test_unlisted_open_shards_are_read() -> None:
    """They were opened after the list of shards was made."""
    lineage = Lineage([Shard("s0", (), (0, 9), first=1, last=5)])
    lineage.merge([ChildShard("s1", ("s0",), 0, 9)], "s0")
    offset, left_out = beginning(lineage, ReadBound(TIME, {}, ("s2", "s3")))
    assert (offset["s2"], offset["s3"], left_out) == (TIME, TIME, ["s1"]), "this list of shards is too old to know"
    assert lineage.too_new(offset)
