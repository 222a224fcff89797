"""Ranges: on any history of splits and merges, every record of a range is read by exactly one task, and nothing else is."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.batch.ranges import BatchRange, batch_ranges, dated, trimmed, unlisted
from kinesis_efo.decisions.lineage import ReadBound, Shard
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.records.events import ChildShard
from kinesis_efo_local.sequence import Numbering

TOP = 2**10


@dataclass
class World:
    """A stream in which each tick of the clock brings a record, a split or a merge; sequence numbers are ticks."""

    shards: dict[str, Shard] = field(default_factory=dict)
    records: dict[str, list[int]] = field(default_factory=dict)
    tick: int = 0

    def create(self, parents: tuple[str, ...], hashes: tuple[int, int]) -> None:
        name = f"shardId-{len(self.shards):012}"
        self.shards[name] = Shard(name, parents, hashes, first=self.tick)
        self.records[name] = []

    def close(self, shard: Shard) -> None:
        self.shards[shard.shard_id] = replace(shard, last=self.tick)

    def open(self, at: int | None = None) -> list[Shard]:
        at = self.tick if at is None else at
        found = [
            shard for shard in self.shards.values() if shard.first <= at and (shard.last is None or shard.last >= at)
        ]
        return sorted(found, key=lambda shard: shard.hash_range)

    def step(self, what: int) -> None:
        self.tick += 1
        opened = [shard for shard in self.open() if shard.last is None]
        shard = opened[what // 4 % len(opened)]
        low, high = shard.hash_range
        if what % 4 == 0 and high > low:
            self.close(shard)
            self.tick += 1
            self.create((shard.shard_id,), (low, (low + high) // 2))
            self.create((shard.shard_id,), ((low + high) // 2 + 1, high))
        elif what % 4 == 1 and len(opened) > 1:
            left, right = opened[what // 4 % (len(opened) - 1) :][:2]
            self.close(left)
            self.close(right)
            self.tick += 1
            self.create((left.shard_id, right.shard_id), (left.hash_range[0], right.hash_range[1]))
        else:
            self.records[shard.shard_id].append(self.tick)

    def read(self, found: list[BatchRange]) -> list[int]:
        """What tasks read: each range once, by its own shard."""
        assert len({part.key for part in found}) == len(found)
        return sorted(
            tick
            for part in found
            for tick in self.records[part.key.shard]
            if _behind(tick, part.start) and _within(tick, part.end)
        )

    @property
    def all(self) -> list[int]:
        return sorted(tick for ticks in self.records.values() for tick in ticks)


def _behind(tick: int, start: Position) -> bool:
    return {
        PositionKind.TRIM_HORIZON: True,
        PositionKind.AT_TIMESTAMP: tick >= start.value,
        PositionKind.AFTER: tick > start.value,
    }[start.kind]


def _within(tick: int, end: Position) -> bool:
    return {
        PositionKind.SHARD_END: True,
        PositionKind.AT_TIMESTAMP: tick < end.value,
        PositionKind.AFTER: tick <= end.value,
    }[end.kind]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    for index in range(shards := draw(st.integers(1, 3))):
        world.create((), (index * TOP // shards, (index + 1) * TOP // shards - 1))
    for what in draw(st.lists(st.integers(0, 40), max_size=40)):
        world.step(what)
    return world


def names(shards: list[Shard]) -> list[str]:
    return [shard.shard_id for shard in shards]


@given(worlds(), st.data())
def test_ranges_of_time_tile_the_stream(world: World, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, world.tick + 1), max_size=4)))
    margin = data.draw(st.integers(0, 3))
    seen: list[int] = []
    for since, until in zip([None, *cuts], [*cuts, world.tick + 1], strict=True):
        known = data.draw(st.booleans())
        start = (
            ReadBound(TRIM_HORIZON, {})
            if since is None
            else ReadBound(
                Position.at_timestamp(since), {}, names(world.open(max(0, since - margin))) if known else None
            )
        )
        end = ReadBound(
            Position.at_timestamp(until), {}, names(world.open(min(world.tick, until + margin))) if known else None
        )
        found = batch_ranges("orders", world.shards.values(), start, end)
        expected = [tick for tick in world.all if (since is None or tick >= since) and tick < until]
        assert world.read(found) == expected
        if known and since is not None and not margin:
            early = [shard for shard in world.shards.values() if shard.last is not None and shard.last < since]
            late = [shard for shard in world.shards.values() if shard.first > until]
            assert {part.key.shard for part in found}.isdisjoint(names(early + late))
        seen += expected
    assert seen == world.all


@given(worlds(), st.data())
def test_a_consistent_cut_by_sequence_numbers_divides_the_stream(world: World, data: st.DataObject) -> None:
    """What lies up to a cut and what lies behind it are everything, once: as for the offsets of a streaming query."""
    at = data.draw(st.integers(0, world.tick))
    cut = {shard.shard_id: Position.after(at) for shard in world.open(at) if shard.first <= at}
    tip = Position.at_timestamp(world.tick + 1)
    before = batch_ranges("orders", world.shards.values(), ReadBound(TRIM_HORIZON, {}), ReadBound(tip, cut))
    behind = batch_ranges("orders", world.shards.values(), ReadBound(TRIM_HORIZON, cut), ReadBound(tip, {}))
    assert world.read(before) == [tick for tick in world.all if tick <= at]
    assert world.read(behind) == [tick for tick in world.all if tick > at]


PARENT = Shard("p", (), (0, 9), first=1, last=5)
LEFT, RIGHT = Shard("l", ("p",), (0, 4), first=6, last=20), Shard("r", ("p",), (5, 9), first=6, last=21)
MERGED = Shard("m", ("l", "r"), (0, 9), first=22)
FAMILY = [PARENT, LEFT, RIGHT, MERGED]
TIP = Position.at_timestamp(99)


def planned(start: ReadBound, end: ReadBound) -> dict[str, tuple[Position, Position]]:
    return {part.key.shard: (part.start, part.end) for part in batch_ranges("orders", FAMILY, start, end)}


def test_children_end_at_their_parents_time() -> None:
    at = {"l": Position.at_timestamp(7), "r": Position.at_timestamp(9)}
    found = planned(ReadBound(TRIM_HORIZON, {}), ReadBound(TIP, at))
    assert found == {
        shard: (TRIM_HORIZON, at.get(shard, end)) for shard, end in {"p": TIP, "l": TIP, "r": TIP, "m": at["l"]}.items()
    }


def test_unlisted_child_that_was_trimmed_is_a_loss() -> None:
    end, key = Position.at_timestamp(5_000_000), ShardKey("orders", "s0")
    parent = BatchRange(key, (0, 9), TRIM_HORIZON, end, newest="s0", planned=5000.0)
    (found,) = unlisted(parent, [ChildShard("s1", ("s0",), 0, 9)])
    assert trimmed(found, 4900.0, 4902.0, again=True) is None
    assert trimmed(found, 6000.0, 6002.0, again=False) is not None


def child(name: str, parents: str, first: int, last: int) -> ChildShard:
    return ChildShard(name, tuple(parents.split()), first, last)


def followers(key: str, hashes: tuple[int, int], *shards: ChildShard, partly: bool = False) -> list[str]:
    """What is read after a shard, with `!` if that is refused."""
    part = BatchRange(ShardKey("orders", key), hashes, TRIM_HORIZON, TIP, newest="s2", partly=partly)
    return [each.key.shard + "!" * each.refused for each in unlisted(part, shards)]


def test_descendants_of_lost_shards_are_read_once() -> None:
    # s1 and s2 are in the plan. s3 and s6, the lower child of s1 and the upper child of s3, are gone.
    merged = child("s8", "s6 s7", 2, 4)
    listed = [
        child("s4", "s1", 4, 6),
        child("s5", "s3", 0, 1),
        child("s7", "s4", 4, 4),
        merged,
        child("s9", "s4", 5, 6),
        child("sa", "s2", 7, 9),
    ]
    assert followers("s1", (0, 6), *listed) == ["s4", "s5", "s8"]
    assert followers("s1", (0, 6), *listed, child("s1", "", 0, 6)) == ["s4", "s5", "s8"], "an old list may have s1"
    assert followers("s2", (7, 9), *listed) == ["sa"]
    assert followers("s7", (4, 4), merged) == []


def test_shards_of_a_lost_merge_follow_one_parent() -> None:
    listed = [child("s4", "s3", 0, 4), child("s5", "s3", 5, 9)]
    assert (followers("s1", (0, 4), *listed), followers("s2", (5, 9), *listed)) == (["s4", "s5"], [])
    nameless = [child("s4", "", 0, 4), child("s5", "", 5, 9)]
    assert (followers("s1", (0, 4), *nameless), followers("s2", (5, 9), *nameless)) == (["s4"], ["s5"])


def test_shards_newer_than_the_end_are_not_read() -> None:
    def opened(index: int, second: int) -> Shard:
        return Shard(f"shardId-{index:012}", (), (0, 9), first=int(Numbering(index, second).record(second * 10**9)))

    shards = [opened(0, 1000), opened(1, 2010), opened(2, 2011)]
    tip = ReadBound(Position.at_timestamp(2_000_000), {})
    planned = batch_ranges("orders", shards, ReadBound(TRIM_HORIZON, {}), tip)
    assert [part.key.shard for part in planned] == [shards[0].shard_id, shards[1].shard_id]
    late = replace(planned[0], key=ShardKey("orders", shards[2].shard_id), horizon=0.0)
    assert [dated(late, listed).is_empty for listed in ([], shards[:1], shards)] == [False, False, True]
    assert not dated(replace(late, key=planned[1].key), shards).is_empty, "the shard after it is newer, not this one"
    assert (dated(late, shards[:2]).created, dated(late, shards[:2]).horizon) == (2010.0, 2010.0)
