"""A shard read with GetRecords in virtual time: the pace, the iterators, what ends it and what is said of errors."""

import asyncio
import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from kinesis_efo.errors import AccessRefusedError, FrameError
from kinesis_efo.kinesis.polling import CALLS_FOR_NOTHING, Pace, PollingTransport, polling_limits, separate_pace
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, ReadContext
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.records.events import Event, read_answer
from tests.support.decoders import decoder as decoder
from tests.support.model_stream import ModelStream
from tests.support.polled_stream import PolledClient
from tests.support.transports import OpenSink, refused
from tests.support.virtual_time import LoopClock

SHARD = "shardId-000000000000"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
REF = StreamRef("orders", "dev-orders", ARN, None)
CHILD = {"ShardId": "c", "ParentShards": ["p"], "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}


class PolledWorld(OpenSink):
    """A subscription that polls one shard of a model stream."""

    def __init__(self, *sizes: int, interval: float = 1.0, start: Position = TRIM_HORIZON, **limits: Any) -> None:
        self.clock = LoopClock()
        self.stream = ModelStream()
        self.stream.put(0, *sizes)
        self.client = PolledClient(self.stream, self.clock, **limits)
        self.times: list[float] = []
        self.client.faults = lambda _: self.times.append(self.clock.monotonic())
        self.transport = PollingTransport(self.client, self.clock, interval)
        self.topology: Any = self.stream
        self.events: list[Event] = []
        self.start = start
        self.limits = polling_limits(KINESIS_LIMITS)

    async def admit(self, event: Event) -> None:
        self.events.append(event)

    def subscribe(self, retry: RetrySettings = RetrySettings(max_retries=10)) -> ShardSubscription:  # noqa: B008
        context = ReadContext(
            REF, "the manifest", self.transport, self.topology,
            retry, self.limits, self.clock, lambda: 1.0,
        )  # fmt: skip
        return ShardSubscription(context, SHARD, self.start, self)

    async def run_for(self, seconds: float, **changes: Any) -> ShardSubscription:
        subscription = self.subscribe(**changes)
        task = asyncio.ensure_future(subscription.run())
        await asyncio.wait({task}, timeout=seconds)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None, task.exception()
        return subscription

    async def fails(self, kind: type[Exception], *texts: str, **changes: Any) -> ShardSubscription:
        subscription = self.subscribe(**changes)
        with pytest.raises(kind) as caught:
            await subscription.run()
        assert type(caught.value) is kind
        for text in texts:
            assert text in str(caught.value)
        return subscription

    @property
    def gaps(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in pairwise(self.times)]

    @property
    def records(self) -> int:
        return sum(event.head.records for event in self.events)


# -- answers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"Records":[]}', "neither an iterator nor child shards"),
        (
            json.dumps({"Records": [], "NextShardIterator": "i", "ChildShards": [CHILD]}).encode(),
            "an iterator and child",
        ),
        (b"{}", "missing required field `Records`"),
        (b'{"Records":[{"Data":"","SequenceNumber":"x"}],"NextShardIterator":"i"}', "SequenceNumber of an event"),
        (b'{"Records":[{"Data":"","SequenceNumber":[]}],"NextShardIterator":"i"}', "SequenceNumber of an event"),
        (b'{"Records":[', "cannot be read"),
        (b"", "an answer of 0 bytes cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_body_that_is_not_an_answer_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        read_answer(body)


# -- the pace


@pytest.mark.slow
async def test_busy_shard_is_polled_five_times_a_second() -> None:
    world = PolledWorld(*[10] * 60_000)
    await world.run_for(4)
    assert world.gaps[:5] == [0.2] * 5
    assert not world.client.refused
    assert world.records == 1000 + 5 * 10_000 + 9_000, "as many as there may be, once their size is known"


async def test_many_shards_are_polled_less_often() -> None:
    world = PolledWorld(10, interval=1.0)
    others = [
        await world.transport.subscribe(REF, SHARD, TRIM_HORIZON, Unlimited()) for _ in range(3 * CALLS_FOR_NOTHING - 1)
    ]
    await world.run_for(60)
    assert set(world.gaps) == {3.0}
    world.times.clear()
    others.clear()
    await world.run_for(60)
    assert set(world.gaps) == {1.0}


async def test_failed_call_lowers_the_record_limit() -> None:
    world = PolledWorld(*[100] * 2000)

    def broken(_: str) -> None:
        if len(world.client.limits_asked) <= 3:
            raise ConnectionResetError

    world.client.faults = broken
    await world.run_for(30)
    assert world.client.limits_asked[:4] == [1000, 250, 62, 15]
    assert world.records == 2000


# -- iterators, the end, back-pressure


async def test_closing_ends_a_read_that_waits_at_once() -> None:
    world = PolledWorld()
    events = await world.transport.subscribe(REF, SHARD, TRIM_HORIZON, world)
    first = (await anext(aiter(events))).head
    assert first.still
    assert first.stuck, "its lag is not compared with that of an earlier subscription"
    reading = asyncio.ensure_future(anext(aiter(events), None))
    await asyncio.sleep(0.1)
    began = world.clock.monotonic()
    events.close()
    events.close()
    assert await reading is None
    assert world.clock.monotonic() == began
    assert await anext(aiter(events), None) is None
    unread = await world.transport.subscribe(REF, SHARD, TRIM_HORIZON, world)
    unread.close()
    assert await anext(aiter(unread), None) is None
    assert len(world.client.limits_asked) == 1


class NarrowRoom:
    """Room that is given when the test says so."""

    share = 0

    def __init__(self, *, free: bool) -> None:
        self.free = free
        self.taken: list[int] = []
        self.waited: list[int] = []
        self.grown = asyncio.Event()

    def try_reserve(self, size: int) -> bool:
        self.taken.append(size)
        return self.free

    async def reserve(self, size: int) -> None:
        self.waited.append(size)
        await self.grown.wait()


async def test_room_is_reserved_for_the_largest_answer_first() -> None:
    world = PolledWorld(*[10] * 3000)
    room = NarrowRoom(free=True)
    events = aiter(await world.transport.subscribe(REF, SHARD, TRIM_HORIZON, room))
    await anext(events)
    await anext(events)
    assert room.taken == [14 << 20, 3 << 19]
    assert room.waited == [], "there was room"


async def test_no_request_before_there_is_room() -> None:
    world = PolledWorld(10)
    room = NarrowRoom(free=False)
    events = await world.transport.subscribe(REF, SHARD, TRIM_HORIZON, room)
    reading = asyncio.ensure_future(anext(aiter(events)))
    await asyncio.sleep(100)
    assert (room.waited, world.client.limits_asked) == ([14 << 20], [])
    room.grown.set()
    assert (await reading).head.records == 1


def test_call_without_an_answer_counts_for_the_pace() -> None:
    pace = Pace()
    pace.asking(100.0)
    assert pace.next_call == 100.2


# -- the tip


async def tip_of(world: PolledWorld, position: Position = TRIM_HORIZON) -> tuple[Position, int]:
    """The tip, and how many times it was looked for."""
    stream = Stream(
        REF, world.transport, world.stream, RetrySettings(), "the manifest", world.clock, polling_limits(KINESIS_LIMITS)
    )
    tip = await stream.tip(SHARD, position)
    assert tip.record == (world.stream[0].records[-1][0] if world.stream[0].records else None)
    return tip.position, len(world.client.opened)


async def test_shard_that_always_lags_has_a_tip() -> None:
    world = PolledWorld(10)
    world.client.lag = [5_000]
    assert await tip_of(world) == (Position.after(world.stream[0].records[-1][0]), 1)
    world = PolledWorld()
    world.client.lag = [5_000]
    assert await tip_of(world, Position.after(7)) == (Position.after(7), 1)


async def test_fast_clock_searches_the_tip_further_back() -> None:
    world = PolledWorld(*[10] * 2500)
    asked: list[dict[str, Any]] = []
    iterator = world.client.get_shard_iterator

    async def in_the_future_at_first(**request: Any) -> dict[str, Any]:
        asked.append(request)
        if len(asked) in (2, 3):
            raise refused("InvalidArgumentException", "the timestamp is in the future", operation="GetShardIterator")
        return await iterator(**request)

    world.client.get_shard_iterator = in_the_future_at_first  # type: ignore[method-assign]
    world.client.behind = lambda *_: 10_000
    assert await tip_of(world) == (Position.after(world.stream[0].records[-1][0]), 2)
    assert len(asked) == 4


# -- errors


async def test_missing_permission_is_named() -> None:
    world = PolledWorld(10)

    def deny(_: str) -> None:
        raise refused("AccessDeniedException", "not authorized", operation="GetRecords")

    world.client.faults = deny
    await world.fails(AccessRefusedError, "Allow kinesis:GetRecords", "unless the application has `polling: false`")


@pytest.mark.slow
async def test_no_more_than_two_megabytes_a_second_are_read() -> None:
    world = PolledWorld(*[1 << 20] * 40)
    await world.run_for(19)
    assert not world.client.refused
    assert world.client.limits_asked[:3] == [1000, 1, 1]
    assert 34 <= world.records <= 40
    # 10 MB at once, since nothing was known of the records; then as much as an event holds.
    assert world.gaps[0] == pytest.approx(5, abs=0.1)
    assert world.gaps[1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
async def test_pause_after_a_large_answer_is_no_silence() -> None:
    rate = 64 << 10
    world = PolledWorld(*[10_000] * 3000)
    world.limits = polling_limits(KINESIS_LIMITS, rate)
    world.transport = PollingTransport(world.client, world.clock, 1.0, partial(separate_pace, rate))
    subscription = await world.run_for(600)
    assert world.gaps[0] > 150
    assert (subscription.stats.failures, world.records) == ({}, 3000)
