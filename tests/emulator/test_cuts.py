"""A subscription that is cut in the middle of each event makes progress event by event, whatever their size.

Kinesis takes a new subscription five seconds after the last one, so that is the pace: twelve events a minute.
"""

import asyncio
from collections.abc import Iterable

import pytest

from kinesis_efo.errors import RetriesExhaustedError
from kinesis_efo_local import Close, Finish, NoFaults, Pause, Reset
from kinesis_efo_local.consumers import Subscription
from kinesis_efo_local.fault_injection import Step
from tests.emulator.memory_world import MemoryWorld
from tests.emulator.query import Query

EVENTS = 24
AS_KINESIS_ALLOWS = 5.0


class Cuts(NoFaults):
    """Cuts events in their middle; what was sent before has arrived.

    Args:
        how: What ends the connection.
        whole: Number of events that each subscription sends before the one that is cut.
        again: Whether an event that was cut is cut again when it is sent again.

    Attributes:
        cuts: Number of cuts.
    """

    def __init__(self, how: Step, whole: int, *, again: bool = True) -> None:
        self.cuts = 0
        self._how = how
        self._whole = whole
        self._again = again
        self._seen: set[int] = set()

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        if b"initial-response" in frame[:200] or subscription.events < self._whole or b'"Records":[]' in frame[:300]:
            return [frame]
        if not self._again and subscription.cursor in self._seen:
            return [frame]
        self._seen.add(subscription.cursor)
        self.cuts += 1
        return [frame[: len(frame) // 2], Pause(0.01), self._how]


async def arrivals(faults: Cuts, size: int, events: int, buffer_bytes: int) -> list[float]:
    """When the records of a shard were read, each in an event of its own, seconds after the start."""
    settings = {"max_event_records": 1, "read_limit": False}
    world = MemoryWorld(faults=faults, settings=settings, max_record_kib=10 << 10, buffer_bytes=buffer_bytes)
    for _ in range(events):
        world.put("key", size)
    now = asyncio.get_running_loop().time
    began, read = now(), []
    async with Query(world.application) as query:
        offset = await query.begin()
        while not world.all_read:
            offset = await query.batch(offset)
            read += [now() - began] * (len(world.application.rows) - len(read))
    world.check()
    return read


HOWS = {"closed": Close(), "reset": Reset(), "finished": Finish()}
SIZES = {
    "small": (10, EVENTS),
    "100 KB": (100_000, EVENTS),
    "1 MB": (1_000_000, EVENTS),
    "10 MB": ((10 << 20) - 100, 6),
}


# Shows 44.
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_bytes", [1 << 20, 64 << 20])
async def test_each_subscription_brings_the_event_before_the_cut(how: str, size: str, buffer_bytes: int) -> None:
    (length, events), faults = SIZES[size], Cuts(HOWS[how], whole=1)
    read = await arrivals(faults, length, events, buffer_bytes)
    assert faults.cuts == events - 1, "none was sent twice"
    for number, at in enumerate(read):
        assert number * AS_KINESIS_ALLOWS <= at <= (number + 1) * AS_KINESIS_ALLOWS + 1


# Shows invariant 2.
@pytest.mark.parametrize("how", HOWS)
async def test_event_cut_once_is_read_by_the_next_subscription(how: str) -> None:
    faults = Cuts(HOWS[how], whole=0, again=False)
    read = await arrivals(faults, 100_000, EVENTS, 64 << 20)
    assert faults.cuts == EVENTS
    assert read[-1] <= (EVENTS + 1) * (AS_KINESIS_ALLOWS + 1), "the pauses between failures begin anew with each event"


@pytest.mark.parametrize("how", HOWS)
async def test_event_cut_each_time_fails_the_query(how: str) -> None:
    with pytest.raises(RetriesExhaustedError, match=r", 11 in \d+ s\."):
        await arrivals(Cuts(HOWS[how], whole=0), 1000, 2, 64 << 20)
