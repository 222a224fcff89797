"""Lag, shard by shard: which shards matter, who is alive, what lies behind a position."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Scan
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo_tools.operate.backlog import MOST_CALLS, Backlog, backlog
from kinesis_efo_tools.operate.lag import Movement, ReaderState, ShardLag, Sightings, rows
from kinesis_efo_tools.operate.shard_tree import tree
from kinesis_efo_tools.operate.watch import WatchResult
from tests.support.answers import FixedClock
from tests.support.virtual_time import LoopClock, run

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")


NOW = FixedClock(1_700_000_000.0)


def _shard(name: str, *parents: str) -> Shard:
    return Shard(name, parents, (0, 9), first=int(name[1:]), last=None)


# s1 is split into s2 and s3, s2 into s4 and s5; s3 and s4 are merged into s6
SHARDS = [_shard(*each.split()) for each in ("s1", "s2 s1", "s3 s1", "s4 s2", "s5 s2", "s6 s3 s4")]
WAITING = dict.fromkeys(("s2", "s3", "s4", "s5", "s6"), "waiting")


def _rows(positions: Mapping[str, Position | None]) -> dict[str, ShardLag]:
    leases = {shard: Lease(shard, checkpoint=position) for shard, position in positions.items()}
    found = rows(REF, SHARDS, leases, None, Sightings(10), NOW)
    assert len({row.key for row in found}) == len(found)
    return {row.key.shard: row for row in found}


@pytest.mark.parametrize(
    ("positions", "states"),
    [
        ({"s1": Position.after(5)}, {"s1": "free", **WAITING}),
        ({"s1": SHARD_END}, {**WAITING, "s1": "ended", "s2": "unstarted", "s3": "unstarted"}),
        # What was read, and what its children were begun for, is history.
        (
            {"s1": SHARD_END, "s2": SHARD_END, "s3": TRIM_HORIZON, "s4": TRIM_HORIZON},
            {"s2": "ended", "s3": "free", "s4": "free", "s5": "unstarted", "s6": "waiting"},
        ),
        ({"s5": Position.after(9), "s6": None}, {"s5": "free", "s6": "free"}),
        # Nothing was ever read.
        ({}, {"s1": "unstarted", **WAITING}),
    ],
)
def test_shards_have_their_states(positions: dict[str, Position | None], states: dict[str, str]) -> None:
    assert {shard: row.state.value for shard, row in _rows(positions).items()} == states
    assert _rows({"s1": SHARD_END})["s2"].position == TRIM_HORIZON, "unread from its beginning"
    assert _rows({})["s1"].position is None


def test_time_until_which_a_shard_was_read() -> None:
    number = 49590338271490256608559692538361571095921575989136588898
    shard = "shardId-000000000006"
    for lease, expected in (
        (Lease(shard, checkpoint=Position.after(number)), 1_545_084_650.0),
        (Lease(shard, checkpoint=Position.after(number), read_until=1_600_000_000.0), 1_600_000_000.0),
        (Lease(shard, checkpoint=Position.at_timestamp(1_500_000_000_000)), 1_500_000_000.0),
        (Lease(shard, checkpoint=Position.after(7)), None),
        (Lease(shard, checkpoint=None), None),
    ):
        [row] = rows(REF, [], {shard: lease}, None, Sightings(10), NOW)
        assert row.read_until == expected


def _seen(*leases: Lease, live: str = "", moved: str = "", seconds: float = 0.0) -> WatchResult:
    return WatchResult(Scan({lease.key: lease for lease in leases}), frozenset(live), frozenset(moved), seconds)


def test_live_owners_become_silent_after_the_timeout() -> None:
    lease, sightings = Lease("a", owner="w"), Sightings(10)
    sightings.add(_seen(lease, seconds=4), now=104)
    assert sightings.state(lease, lease, 104) is ReaderState.HELD
    sightings.add(_seen(lease, live="a", seconds=4), now=108)
    assert sightings.state(lease, lease, 117) is ReaderState.READING
    assert sightings.state(lease, lease, 118) is ReaderState.SILENT
    assert sightings.state(lease, replace(lease, owner=None), 109) is ReaderState.FREE
    assert sightings.state(replace(lease, checkpoint=SHARD_END), lease, 109) is ReaderState.ENDED
    never = Sightings(10)
    never.add(_seen(lease, seconds=10), now=110)
    assert never.state(lease, lease, 110) is ReaderState.SILENT


def test_owner_of_the_run_reads_shards_without_owner() -> None:
    sightings, run = Sightings(10), Lease("#run:orders", owner="w", checkpoint=None)
    kcl = Lease("s2", owner="kcl", checkpoint=TRIM_HORIZON)
    leases = {"s1": Lease("s1", checkpoint=TRIM_HORIZON), "s2": kcl}
    sightings.add(WatchResult(Scan({run.key: run, **leases}), frozenset({run.key}), frozenset(), 4.0), now=NOW.up)
    found = {row.key.shard: row for row in rows(REF, [], leases, run, sightings, NOW)}
    assert {shard: (row.owner, row.state.value) for shard, row in found.items()} == {
        "s1": ("w", "reading"),
        "s2": ("kcl", "held"),
    }


def test_movement_of_a_position_is_measured() -> None:
    sightings = Sightings(10)
    lease = Lease("a", checkpoint=Position.after(1))
    sightings.add(_seen(lease), now=100)
    assert sightings.movement("a", 100) == Movement(None, False)
    sightings.add(_seen(lease, seconds=5), now=107)
    assert sightings.movement("a", 107) == Movement(7, False)
    sightings.add(_seen(replace(lease, checkpoint=Position.after(2))), now=110)
    assert sightings.movement("a", 112) == Movement(2, True)
    sightings.add(_seen(lease, moved="a"), now=120)
    assert sightings.movement("a", 121) == Movement(1, True)
    assert sightings.movement("unknown", 121) == Movement(None, False)


class Pages:
    """A shard that answers with these numbers of records, and these distances to the tip."""

    def __init__(self, *pages: tuple[int, int], ends: bool = False) -> None:
        self._pages = list(pages)
        self._ends = ends
        self.limits: list[int] = []

    async def get_shard_iterator(self, **request: Any) -> dict[str, Any]:
        return {"ShardIterator": "0"}

    async def get_records(self, *, StreamARN: str, ShardIterator: str, Limit: int) -> dict[str, Any]:
        number = int(ShardIterator)
        count, behind = self._pages[min(number, len(self._pages) - 1)]
        self.limits.append(Limit)
        page = {
            "Records": [{"ApproximateArrivalTimestamp": datetime.fromtimestamp(number, UTC)}] * min(count, Limit),
            "MillisBehindLatest": behind,
        }
        last = self._ends and number == len(self._pages) - 1
        return page if last else {**page, "NextShardIterator": str(number + 1)}


@pytest.mark.parametrize(
    ("pages", "most", "expected", "calls"),
    [
        # One empty answer proves nothing.
        (Pages((0, 0)), 5, Backlog(0, True, None, 0), 3),
        (Pages((3, 0)), 5, Backlog(3, True, 0.0, 0), 1),
        # As many as asked for: there may be more.
        (Pages((9, 0)), 5, Backlog(5, False, 0.0, 0), 1),
        (Pages((3, 70), (4, 0)), 10, Backlog(7, True, 0.0, 0), 2),
        # Empty pages lie between.
        (Pages((0, 900), (0, 700), (2, 0)), 5, Backlog(2, True, 2.0, 0), 3),
        (Pages((0, 900)), 5, Backlog(0, False, None, 900), MOST_CALLS),
        (Pages((2, 50), (1, 20), ends=True), 5, Backlog(3, True, 0.0, 20), 2),
    ],
)
def test_what_lies_behind_a_position(pages: Pages, most: int, expected: Backlog, calls: int) -> None:
    assert run(backlog(pages, LoopClock(), "arn", "shard", TRIM_HORIZON, most)) == expected
    assert len(pages.limits) == calls
    assert max(pages.limits) <= most


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
