"""Lineage: on any history of splits and merges, every shard is read once, parents first, and nothing falls through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Lineage, Shard
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo.records.events import ChildShard
from tests.support.examples import EXAMPLES

TOP = 2**10
Steps = list[tuple[Callable[[Any, int], None], int]]


class World:
    """A stream that is resharded and trimmed while a query reads it as the lineage says."""

    def __init__(self, shards: int) -> None:
        self.listed: dict[str, Shard] = {}
        self.all: dict[str, Shard] = {}
        self.positions: dict[str, Position] = {}
        self.started: list[str] = []
        self.ended: set[str] = set()
        self.tick = 0
        for index in range(shards):
            self._create((), (index * TOP // shards, (index + 1) * TOP // shards - 1))

    def _create(self, parents: tuple[str, ...], hashes: tuple[int, int]) -> None:
        self.tick += 1
        shard = Shard(f"shardId-{len(self.all):012}", parents, hashes, first=self.tick)
        self.listed[shard.shard_id] = self.all[shard.shard_id] = shard

    def _close(self, shard: Shard) -> None:
        self.tick += 1
        self.listed[shard.shard_id] = self.all[shard.shard_id] = replace(shard, last=self.tick)

    def open(self) -> list[Shard]:
        return sorted((shard for shard in self.all.values() if shard.last is None), key=lambda shard: shard.hash_range)

    def split(self, choice: int) -> None:
        shard = self.open()[choice % len(self.open())]
        low, high = shard.hash_range
        if high - low < 2:
            return
        self._close(shard)
        middle = (low + high) // 2
        self._create((shard.shard_id,), (low, middle))
        self._create((shard.shard_id,), (middle + 1, high))

    def merge(self, choice: int) -> None:
        shards = self.open()
        if len(shards) < 2:
            return
        left, right = shards[choice % (len(shards) - 1) :][:2]
        self._close(left)
        self._close(right)
        self._create((left.shard_id, right.shard_id), (left.hash_range[0], right.hash_range[1]))

    def read_to_end(self, choice: int) -> None:
        ready = [key for key, position in self.positions.items() if not position.is_end and self.all[key].last]
        if ready:
            shard_id = ready[choice % len(ready)]
            self.positions[shard_id] = SHARD_END
            self.ended.add(shard_id)

    def read_a_bit(self, choice: int) -> None:
        reading = [key for key, position in self.positions.items() if not position.is_end]
        if reading:
            self.positions[reading[choice % len(reading)]] = Position.after(self.tick)

    def trim(self, choice: int) -> None:
        """Let the oldest closed shards expire that were read, up to some number of them."""
        for shard_id in [key for key, shard in self.listed.items() if shard.last][: choice % 4]:
            if shard_id in self.positions and not self.positions[shard_id].is_end:
                return
            if shard_id not in self.started and shard_id not in self.skipped:
                return
            del self.listed[shard_id]

    skipped: frozenset[str] = frozenset()

    def lineage(self) -> Lineage:
        return Lineage(reversed(self.listed.values()))

    def plan(self, _: int = 0) -> None:
        lineage = self.lineage()
        finished = lineage.droppable(self.positions)
        for shard_id in lineage.startable(self.positions):
            assert shard_id not in self.started, "started twice"
            assert all(parent in self.ended or parent in self.skipped for parent in self.all[shard_id].parents), (
                "too early"
            )
            self.positions[shard_id] = TRIM_HORIZON
            self.started.append(shard_id)
        assert lineage.lost(self.positions) == []
        for shard_id in finished:
            assert self.positions.pop(shard_id).is_end

    def check(self) -> None:
        """Whatever is open is being read, or descends from what is: no key range is forgotten."""
        covered = set(self.positions)
        for shard in self.all.values():
            if shard.shard_id not in covered and any(parent in covered for parent in shard.parents):
                covered.add(shard.shard_id)
        assert {shard.shard_id for shard in self.open()} <= covered

    def drain(self) -> None:
        for _ in range(2 * len(self.all) + 2):
            self.plan()
            for _ in range(len(self.positions)):
                self.read_to_end(0)
        self.plan()

    def read(self, positions: dict[str, Position], during: Steps) -> None:
        """Start at positions, and read all that comes."""
        self.positions, self.started = positions, list(positions)
        for step, choice in during:
            step(self, choice)
            self.check()
        self.drain()


class StaleWorld(World):
    """The query's run lists the shards now and then. In between, and after an old list, it knows what the ends of shards announced."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.known = dict(self.listed)
        self.told: dict[str, list[ChildShard]] = {}
        self.lists = [self.known]

    def replace_run(self, choice: int) -> None:
        """Another run takes over. Its list may be older than that of the run before."""
        self.told = {}
        self.known = self.lists[-1 - choice % len(self.lists)]

    def list_again(self, _: int = 0) -> None:
        self.known = dict(self.listed)

    def go_on(self, choice: int) -> None:
        self.lists.append(dict(self.listed))
        self.read_to_end(choice)
        self.plan()

    def read_to_end(self, choice: int) -> None:
        before = set(self.ended)
        super().read_to_end(choice)
        for ended in self.ended - before:
            self.told[ended] = [
                ChildShard(child.shard_id, child.parents, *child.hash_range)
                for child in self.all.values()
                if ended in child.parents
            ]

    def lineage(self) -> Lineage:
        lineage = Lineage(reversed(self.known.values()))
        for parent, children in self.told.items():
            if parent in lineage or lineage.too_new((parent,)):
                lineage.merge(children, parent)
        return lineage

    def drain(self) -> None:
        # Nobody lists unless the lineage asks for it, but for the safety net in the end.
        for _ in range(2 * len(self.all) + 2):
            self.plan()
            for _ in range(len(self.positions)):
                self.read_to_end(0)
            if self.lineage().outdated or self.lineage().too_new(self.positions):
                self.list_again()
        self.list_again()
        super().drain()


STEPS = (World.split, World.merge, World.read_to_end, World.read_a_bit, World.trim, World.plan)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=60)


def resharded(shards: int, before: Steps) -> World:
    """A stream after its splits and merges among some steps."""
    world = World(shards)
    for step, choice in before:
        if step in (World.split, World.merge):
            step(world, choice)
    return world


# Shows 53, 59.
@settings(max_examples=4 * EXAMPLES)
@given(st.integers(1, 4), steps, steps)
def test_start_at_the_horizon_reads_each_shard_after_parents(shards: int, before: Steps, during: Steps) -> None:
    world = resharded(shards, before)
    world.read(dict.fromkeys(Lineage(world.listed.values()).roots(), TRIM_HORIZON), during)
    assert sorted(world.started) == sorted(world.all)
    left = world.positions.keys() - {shard.shard_id for shard in world.open()}
    assert not any(world.lineage().children(shard) for shard in left), "only shards whose children were trimmed stay"
    assert all(world.positions[shard].is_end for shard in left)


STALE = (StaleWorld.list_again, StaleWorld.replace_run)
stale_steps = st.lists(
    st.tuples(
        st.sampled_from((World.split, World.merge, *[StaleWorld.go_on] * 4, World.read_a_bit, *STALE)),
        st.integers(0, 20),
    ),
    min_size=10,
    max_size=60,
)


# Shows 54, 59.
@settings(max_examples=4 * EXAMPLES)
@given(st.integers(1, 4), stale_steps)
def test_outdated_list_starts_nothing_early_and_drops_nothing(shards: int, during: Steps) -> None:
    world = StaleWorld(shards)
    world.read(dict.fromkeys(world.lineage().roots(), TRIM_HORIZON), during)
    assert sorted(world.started) == sorted(world.all)


# Shows 58.
@settings(max_examples=4 * EXAMPLES)
@given(st.integers(1, 4), steps, steps)
def test_start_at_a_time_skips_shards_closed_before(shards: int, before: Steps, during: Steps) -> None:
    world = resharded(shards, before)
    starts = {shard.shard_id: Position.at_timestamp(1) for shard in world.open()}
    world.skipped = frozenset(world.all) - frozenset(starts)
    world.read(starts, during)
    assert sorted(world.started) == sorted(set(world.all) - world.skipped)


P, L, R, M = "shardId-000000000000", "shardId-000000000001", "shardId-000000000002", "shardId-000000000003"
FAMILY = [
    Shard(P, (), (0, 9), 1, 2),
    Shard(L, (P,), (0, 4), 3, 4),
    Shard(R, (P,), (5, 9), 3, 4),
    Shard(M, (L, R), (0, 9), 5),
]
READING = Position.after(7)


# Shows 51.
@pytest.mark.parametrize(
    ("positions", "startable", "droppable"),
    [
        ({}, [P], []),
        ({P: TRIM_HORIZON}, [], []),
        ({P: SHARD_END}, [L, R], []),
        ({P: SHARD_END, L: TRIM_HORIZON}, [R], []),
        ({P: SHARD_END, L: TRIM_HORIZON, R: READING}, [], [P]),
        ({L: SHARD_END, R: READING}, [], []),
        ({L: SHARD_END, R: SHARD_END}, [M], []),
        ({L: SHARD_END, R: SHARD_END, M: TRIM_HORIZON}, [], [L, R]),
        ({M: READING}, [], []),
        ({L: SHARD_END}, [R], []),
    ],
)
def test_a_split_and_a_merge(positions: dict[str, Position], startable: list[str], droppable: list[str]) -> None:
    lineage = Lineage(FAMILY)
    assert lineage.startable(positions) == startable
    assert lineage.droppable(positions) == droppable
    assert lineage.lost(positions) == []


# Shows 52.
def test_an_ended_shard_without_known_children_stays() -> None:
    assert Lineage(FAMILY[:1]).droppable({P: SHARD_END}) == []


# After two runs in a row with old lists, a shard that had been read started again.
def test_outdated_list_drops_no_shard() -> None:
    child = "shardId-000000000004"
    lineage = Lineage(FAMILY[:1])
    lineage.merge([ChildShard(child, (M,), 0, 9)], M)
    assert lineage.droppable({L: SHARD_END, R: SHARD_END, M: SHARD_END, child: TRIM_HORIZON}) == []


def test_children_that_listshards_does_not_know_yet() -> None:
    lineage = Lineage(FAMILY[:1])
    lineage.merge([ChildShard(L, (P,), 0, 4), ChildShard(R, (P,), 5, 9)], P)
    assert lineage.children(P) == [L, R]
    assert lineage[R].hash_range == (5, 9)
    assert lineage.startable({P: SHARD_END}) == [L, R]
    lineage.merge([ChildShard(L, (P,), 0, 4)], P)
    assert lineage.children(P) == [L, R]
    assert len(lineage) == 3 and L in lineage and M not in lineage


# Shows 56.
def test_merge_with_an_unlisted_parent_waits_for_the_list() -> None:
    """P was split, then L merged with a child of Q: P's reader hears of the merged shard before it hears of that child."""
    q, x = "shardId-000000000009", "shardId-000000000010"
    lineage = Lineage([Shard(P, (), (0, 9), 1, 2), Shard(q, (), (10, 19), 1)])
    lineage.merge([ChildShard(L, (P,), 0, 9)], P)
    assert not lineage.outdated
    lineage.merge([ChildShard(M, (L, x), 0, 14)], L)
    positions = {L: SHARD_END, q: TRIM_HORIZON}
    assert lineage.outdated
    assert lineage.startable(positions) == []
    assert Lineage([*FAMILY[:1], Shard(M, (L, x), (0, 14), 7)]).startable({P: SHARD_END}) == [M], (
        "listed: x was trimmed"
    )


def test_a_shard_trimmed_while_it_was_read_is_lost() -> None:
    lineage = Lineage(FAMILY[1:])
    assert lineage.lost({P: READING}) == [P]
    assert lineage.lost({P: SHARD_END}) == []
    # It still bars its children: whoever takes the loss says so by ending it.
    assert lineage.startable({P: READING}) == []
    assert lineage.startable({P: SHARD_END}) == [L, R]


def test_children_trimmed_before_they_were_started_are_lost() -> None:
    lineage = Lineage(FAMILY[3:])
    assert lineage.lost({P: SHARD_END}) == [L, R]
    assert lineage.startable({P: SHARD_END}) == [M]


def test_a_shard_newer_than_the_list_is_not_lost() -> None:
    assert Lineage(FAMILY[:1]).lost({P: SHARD_END, L: TRIM_HORIZON}) == []


def test_a_new_query_loses_nothing() -> None:
    assert Lineage(FAMILY[1:]).lost({}) == []
    assert Lineage(FAMILY[1:]).roots() == [L, R]


def test_nothing_starts_with_a_listing_before_the_offset() -> None:
    """After a restart, ListShards may lack children whose parent has left the offset."""
    parent, other = Shard("s0", (), (0, 9), 1), Shard("s1", (), (10, 19), 1)
    positions = {"s1": SHARD_END, "s2": Position.after(7), "s3": Position.after(8)}
    assert Lineage([parent, other]).startable(positions) == []
    children = [Shard("s2", ("s0",), (0, 4), 3), Shard("s3", ("s0",), (5, 9), 3), Shard("s4", ("s1",), (10, 19), 4)]
    assert Lineage([parent, other, *children]).startable(positions) == ["s4"]


def test_announcement_does_not_renew_an_old_listing() -> None:
    """s2 and s3 are children of s1 that the listing lacks; the end of s0 announces s4 and s5."""
    lineage = Lineage([Shard("s0", (), (0, 9), 1), Shard("s1", (), (10, 19), 1)])
    lineage.merge([ChildShard("s4", ("s0",), 0, 4), ChildShard("s5", ("s0",), 5, 9)], "s0")
    positions = {"s0": SHARD_END, "s2": Position.after(7), "s3": Position.after(8)}
    assert lineage.startable(positions) == ["s4", "s5"], "s1 was read long ago"
    assert lineage.lost(positions) == []
    assert lineage.startable({"s0": SHARD_END, "s1": SHARD_END}) == ["s4", "s5"]


def test_grandchild_waits_while_a_trimmed_shard_lies_between() -> None:
    """p was split into l and r, which were merged into m. l and r were trimmed before p was read, so nothing names them any more."""
    lineage = Lineage([FAMILY[0], FAMILY[3]])
    assert FAMILY[3].parents == (L, R)
    for listed in (lineage, Lineage([FAMILY[3]])):
        assert listed.startable({P: READING}) == []
    assert lineage.lost({P: READING}) == []
    assert lineage.startable({P: SHARD_END}) == [M]
    assert lineage.lost({P: SHARD_END}) == [L, R], "it is a loss before m starts"


def test_parent_trimmed_before_the_start_is_no_loss() -> None:
    """c was merged from a and b. b was trimmed before a query started, which then began with a."""
    a, c = Shard("s0", (), (0, 9), 1, 5), Shard("s2", ("s0", "s1"), (0, 19), 6)
    for positions in ({"s0": READING}, {"s0": SHARD_END}):
        assert Lineage([a, c]).lost(positions) == []
    assert Lineage([a, c]).startable({"s0": SHARD_END}) == ["s2"]
    assert Lineage([c]).lost({"s0": SHARD_END}) == []
    other = Shard("s3", (), (20, 29), 1, 5)
    assert Lineage([a, c, other]).lost({"s0": SHARD_END, "s3": SHARD_END}) == [], "it has other hash keys"


def test_hash_keys_of_shards_read_reveal_a_lost_parent() -> None:
    """s1 was split into s2 and s3, and s2 was merged with s0 into s4. s2 was trimmed unread."""
    s0, s1 = Shard("s0", (), (0, 9), 1, 5), Shard("s1", (), (10, 29), 1, 3)
    s4 = Shard("s4", ("s0", "s2"), (0, 19), 6)
    lineage = Lineage([s0, s1, s4])
    assert lineage.lost({"s0": SHARD_END, "s1": SHARD_END}) == ["s2"]
    assert lineage.startable({"s0": SHARD_END, "s1": READING}) == [], "s4 follows s1"
