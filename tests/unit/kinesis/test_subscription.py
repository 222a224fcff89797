"""A shard's subscription in virtual time: when it calls, from where, what it bears and what it gives up on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import NO_FACTS, Facts
from kinesis_efo.errors import (
    AccessRefusedError,
    ConsumerNotFoundError,
    DataLossError,
    KeyUnusableError,
    RetriesExhaustedError,
    SequenceNumberError,
    StreamReplacedError,
    SubscriptionError,
)
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.subscription import OpenSubscription, ShardSubscription
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo.records.events import ChildShard, Event
from kinesis_efo_local.sequence import Numbering
from tests.support.transports import (
    Large,
    Opening,
    OpenSink,
    Script,
    ScriptedTopology,
    ScriptedTransport,
    Silence,
    Trickle,
    Wait,
    broken_off,
    payload,
    refused,
)
from tests.support.virtual_time import LoopClock

DAY = 24 * 3600
SHARD = "shardId-000000000000"
STREAM_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER_ARN = f"{STREAM_ARN}/consumer/lake:1700000000"
STREAM = StreamRef("orders", "dev-orders", STREAM_ARN, CONSUMER_ARN)
SOURCE = "ssm:///kinesis-efo/dev/lake"
END = payload(None, children=["c1", "c2"])
TOO_SOON = refused("ResourceInUseException", f"Another active subscription exists for this consumer: {CONSUMER_ARN}")
TAKEN_OVER = broken_off("ResourceInUseException", "Another subscription took over")
MISSING = refused("ResourceNotFoundException", "Consumer does not exist")


TEN = RetrySettings(max_retries=10)
"""Counts, so that tests need not wait for the ten minutes of the defaults."""


class Sink(OpenSink):
    """Takes every event, some of them late."""

    def __init__(self, clock: LoopClock, delays: dict[int, float]) -> None:
        self._clock = clock
        self._delays = delays
        self.events: list[Event] = []
        self.times: list[float] = []

    async def admit(self, event: Event) -> None:
        await self._clock.sleep(self._delays.get(len(self.events), 0))
        self.events.append(event)
        self.times.append(self._clock.monotonic())

    @property
    def continuations(self) -> list[int | None]:
        return [event.head.continuation for event in self.events]


async def not_listed(_: str) -> None:
    """Nothing is known about any shard."""


class ScriptedWorld:
    """A subscription with everything around it scripted."""

    def __init__(
        self,
        *scripts: Script | Exception | Opening,
        start: Position = TRIM_HORIZON,
        topology: ScriptedTopology | None = None,
        delays: dict[int, float] | None = None,
        retry: RetrySettings = TEN,
        fail_on_data_loss: bool | None = None,
        known: Facts = NO_FACTS,
    ) -> None:
        self.clock = LoopClock()
        self.began = self.clock.monotonic()
        self.transport = ScriptedTransport(self.clock, *scripts)
        self.topology = topology or ScriptedTopology([SHARD])
        self.sink = Sink(self.clock, delays or {})
        self.context = ReadContext(
            STREAM, SOURCE, self.transport, self.topology, retry, clock=self.clock, random=lambda: 1.0
        )
        retention = None
        if fail_on_data_loss is not None:
            retention = Retention(STREAM, self.topology, self.clock, not_listed, fail=fail_on_data_loss, shortest=DAY)
        self.subscription = self.subscribe(start, retention=retention, known=known)

    def subscribe(self, start: Position = TRIM_HORIZON, **more: Any) -> ShardSubscription:
        return ShardSubscription(self.context, SHARD, start, self.sink, **more)

    def poll(self) -> None:
        """Read without a consumer."""
        self.context = replace(self.context, stream=replace(STREAM, consumer_arn=None))
        self.subscription = self.subscribe()

    @property
    def stats(self) -> Any:
        return self.subscription.stats

    @property
    def elapsed(self) -> float:
        return round(self.clock.monotonic() - self.began, 6)

    async def ends(self) -> ScriptedWorld:
        await self.subscription.run()
        assert self.subscription.position == SHARD_END
        assert self.stats.state is State.ENDED
        self.check_closed()
        return self

    async def fails(self, kind: type[Exception], *texts: str) -> Exception:
        with pytest.raises(kind) as caught:
            await self.subscription.run()
        assert type(caught.value) is kind
        for text in texts:
            assert text in str(caught.value)
        assert self.stats.state is State.FAILED
        self.check_closed()
        return caught.value

    def check_closed(self) -> None:
        assert all(stream.closed for stream in self.transport.streams)


# -- the happy path


# Shows 2, 4, 13, 39.
async def test_events_are_delivered_in_order_up_to_the_end() -> None:
    world = await ScriptedWorld([payload(5, 3, behind=700), payload(9, 2), END]).ends()
    assert world.sink.continuations == [5, 9, None]
    assert [child.shard_id for child in world.sink.events[-1].head.children] == ["c1", "c2"]
    assert world.transport.positions == ["TRIM_HORIZON"]
    stats = world.stats
    assert (stats.opened, stats.renewed, stats.events, stats.records, stats.failures) == (1, 0, 3, 5, {})
    assert stats.bytes == sum(len(event.payload) for event in world.sink.events)
    assert stats.last_event == world.clock.monotonic()


# -- silence and back-pressure


# Shows 34, 35.
async def test_35_seconds_of_silence_reopen_behind_the_last_event() -> None:
    world = await ScriptedWorld([payload(7), Silence()], [END]).ends()
    assert world.transport.positions == ["TRIM_HORIZON", "AFTER:7"]
    assert world.transport.gaps == [36.0]  # and the first backoff
    assert world.stats.failures == {"TimeoutError": 1}


async def test_slow_large_event_is_no_silence() -> None:
    world = await ScriptedWorld([payload(1), Trickle(200), payload(2), END]).ends()
    assert (len(world.transport.calls), world.elapsed) == (1, 200)
    world = await ScriptedWorld([Trickle(50), Silence()], [END]).ends()
    assert 85 <= world.transport.gaps[0] <= 50 + 35 + 36


# Shows 7.
@pytest.mark.parametrize("blocked", [1.0, 19.0, 19.9])
async def test_sink_full_for_19_seconds_only_pauses_reading(blocked: float) -> None:
    world = ScriptedWorld([payload(1), payload(2), payload(3), END], delays={1: blocked, 2: blocked})
    await world.ends()
    assert world.elapsed == 2 * blocked
    assert (world.stats.opened, world.stats.paused) == (1, 0)


# Shows 10, 26.
@pytest.mark.parametrize(("early", "late"), [(0, 0), (0, 0.5), (7, 0), (19.9, 0.2), (19.9, 19.9), (30, 1), (34, 34)])
async def test_sink_full_for_20_seconds_closes_the_subscription(early: float, late: float) -> None:
    script = [payload(1), Wait(early), payload(2), Wait(late), payload(3), payload(4)]
    world = ScriptedWorld(script, [payload(4), END], delays={2: 200.0})
    task = asyncio.ensure_future(world.subscription.run())
    await world.clock.sleep(early + late + 19.99)
    assert not world.transport.streams[0].closed
    assert world.transport.streams[0].read == 3, "nothing is read while the sink is full"
    await world.clock.sleep(0.02)
    assert world.transport.streams[0].closed
    assert world.stats.state is State.PAUSED
    await task
    assert world.elapsed == pytest.approx(early + late + 200)
    assert world.sink.continuations == [1, 2, 3, 4, None]
    assert world.transport.positions == ["TRIM_HORIZON", "AFTER:3"]
    assert (world.stats.paused, world.stats.renewed, world.stats.failures) == (1, 0, {})


# Shows 27, 29.
async def test_pauses_never_add_up_to_a_failure() -> None:
    scripts = [[payload(number), payload(number + 1)] for number in range(20)]
    world = await ScriptedWorld(*scripts, [END], delays=dict.fromkeys(range(20), 60.0)).ends()
    assert (world.stats.paused, world.stats.failures) == (20, {})
    assert world.sink.continuations == [*range(20), None]


# -- failures that pass


# Shows 21, 38.
@pytest.mark.parametrize("step", [ClientPayloadError("not completed"), b"{}"], ids=str)
async def test_broken_stream_continues_behind_the_last_event(step: Any) -> None:
    world = await ScriptedWorld([payload(1), payload(2), Wait(60 - 30), step], [payload(3), END]).ends()
    assert world.transport.positions == ["TRIM_HORIZON", "AFTER:2"]
    assert world.sink.continuations == [1, 2, 3, None]
    assert world.transport.gaps == [31.0]
    assert world.stats.failures.total() == 1


# Shows 28, 30.
async def test_eleventh_failure_in_a_row_is_fatal() -> None:
    errors = [refused("InternalFailureException", f"number {number}", 500) for number in range(11)]
    await ScriptedWorld(*errors[:10], [END]).ends()
    world = ScriptedWorld(*errors, [END])
    error = await world.fails(
        RetriesExhaustedError,
        "stream 'orders', shard shardId-000000000000",
        CONSUMER_ARN,
        SOURCE,
        "number 10",
        "the first was InternalFailureException: number 0",
    )
    assert error.__cause__ is errors[0]
    assert len(world.transport.calls) == 11


# Shows 30.
@pytest.mark.parametrize(
    "failure",
    [
        refused("InternalFailureException", "down", 500),
        [broken_off("InternalFailureException", "down")],
        Opening(10_000),
        [Silence()],
    ],
    ids=["refused", "broken off", "hangs", "silent"],
)
async def test_by_default_ten_minutes_without_progress_are_fatal(failure: Any) -> None:
    world = ScriptedWorld(*[failure] * 500, retry=RetrySettings())
    error = await world.fails(RetriesExhaustedError, "without any progress, ", "'retryTimeout'")
    assert 600 <= world.elapsed <= 600 + 2 * (60 + 35 + 10)
    assert f"progress, {len(world.transport.calls)} in 6" in str(error)


# -- ResourceInUse


# Shows 25.
async def test_too_soon_is_waited_out_and_not_counted() -> None:
    world = await ScriptedWorld(*[TOO_SOON] * 20, [END]).ends()
    assert set(world.transport.gaps) == {1.0}


# -- fatal at once


# Shows 22.
async def test_errors_that_are_fatal_at_once() -> None:
    code, message = "UnrecognizedClientException", "The security token is invalid"
    for script in (refused(code, message), [payload(1), broken_off(code, message)]):
        world = ScriptedWorld(script)
        error = await world.fails(AccessRefusedError, "shard shardId-000000000000", message, "check keys, region")
        assert error.__cause__ is not None
        assert len(world.transport.calls) == 1


async def test_expired_credentials_have_one_chance_to_refresh() -> None:
    expired = refused("ExpiredTokenException", "The security token included in the request is expired")
    world = ScriptedWorld(expired, expired)
    await world.fails(AccessRefusedError, "expired and do not refresh themselves", CONSUMER_ARN)
    assert len(world.transport.calls) == 2
    await ScriptedWorld(expired, [payload(1)], expired, [END]).ends()
    # Whatever went wrong before, it is the first time that the credentials did.
    await ScriptedWorld(refused("InternalFailure", status=500), expired, [END]).ends()
    await ScriptedWorld(expired, [ClientPayloadError("cut")], expired, [END]).ends()


async def test_unusable_key_is_named() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    message = f"User is not authorized to perform: kms:Decrypt on resource: {key} because of its policy"
    world = ScriptedWorld(*[refused("KMSAccessDeniedException", message)] * 11)
    await world.fails(KeyUnusableError, f"encrypted with key {key}", "allow the role kms:Decrypt")
    assert len(world.transport.calls) == 11


async def test_unexpected_errors_are_not_retried() -> None:
    bug = KeyError("EventStream")
    assert (await ScriptedWorld(bug).fails(SubscriptionError, "unexpected KeyError: 'EventStream'")).__cause__ is bug


# -- ResourceNotFound


@pytest.mark.parametrize("polled", [False, True])
async def test_without_listshards_nothing_is_guessed(polled: bool) -> None:
    denied = refused("AccessDeniedException", "not authorized", operation="ListShards")
    world = ScriptedWorld(MISSING, topology=ScriptedTopology(denied))
    if polled:
        world.poll()
    reader = f"stream {STREAM_ARN}" if polled else f"consumer {CONSUMER_ARN}"
    await world.fails(AccessRefusedError, "kinesis:ListShards was denied", "is unknown", f" {reader} is missing")


async def test_missing_permission_to_describe_the_consumer_is_named() -> None:
    denied = refused("AccessDeniedException", "not authorized", operation="DescribeStreamConsumer")
    world = ScriptedWorld(MISSING, topology=ScriptedTopology([SHARD], consumer=[denied]))
    await world.fails(ConsumerNotFoundError, CONSUMER_ARN, "allow kinesis:DescribeStreamConsumer to the job's role")


async def test_numbers_with_leading_zeros_end_the_query_at_once() -> None:
    zeros = payload(5).replace(b'"5"', b'"005"')
    world = ScriptedWorld(SequenceNumberError("ContinuationSequenceNumber '005' has leading zeros"))
    await world.fails(SequenceNumberError, SHARD, STREAM_ARN, "has leading zeros")
    await ScriptedWorld([payload(4), zeros]).fails(SequenceNumberError, SHARD, "'005' has leading zeros")


# -- the end that Kinesis does not announce

CHILDREN = (ChildShard("c1", (SHARD,), 0, 9),)


# Shows end that is not announced.
async def test_closed_shard_ends_at_its_last_number() -> None:
    world = ScriptedWorld([payload(5), Wait(5), payload(8), Wait(5), payload(12), Wait(5), payload(13)])
    world.subscription.close_at(10, CHILDREN)
    await world.ends()
    assert world.sink.continuations == [5, 8, 12, None]
    assert world.sink.events[-1] == Event(b"", world.sink.events[-1].head)
    assert world.sink.events[-1].head.children == CHILDREN
    assert len(world.transport.calls) == 1


CLOSED = (Shard(SHARD, (), (0, 9), first=1, last=5), Shard("c1", (SHARD,), (0, 9), first=7))


# Shows end that is not announced.
async def test_unannounced_end_is_looked_up() -> None:
    world = await ScriptedWorld([payload(5)], *[[]] * 20, topology=ScriptedTopology(CLOSED)).ends()
    assert world.sink.continuations == [5, None]
    assert world.sink.events[-1].head.children == CHILDREN
    assert (len(world.transport.calls), world.topology.calls, world.stats.failures) == (2, 1, {})


async def test_clean_end_is_a_fault_without_a_list() -> None:
    topology = ScriptedTopology(refused("InternalFailure", status=500), CLOSED)
    world = await ScriptedWorld([payload(5)], *[[]] * 20, topology=topology).ends()
    assert world.stats.failures == {"FrameError": 1}


# -- the log


# Shows 3, 36.
async def test_openings_and_endings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kinesis_efo")
    five_minutes = [step for number in range(60) for step in (Wait(5), payload(number))]
    await ScriptedWorld(five_minutes, [Wait(3), TAKEN_OVER], [END]).ends()
    name, taken_over = f"orders:{SHARD}", "ResourceInUseException: Another subscription took over"
    assert [line.message for line in caplog.records] == [
        f"{name}: subscribed at TRIM_HORIZON",
        f"{name}: subscription ended after 300.0 s and 60 events at AFTER:59: expired",
        f"{name}: subscribed at AFTER:59",
        f"{name}: subscription ended after 3.0 s and 0 events at AFTER:59: {taken_over}",
        f"{name}: another program uses consumer {CONSUMER_ARN}: {taken_over}",
        f"{name}: subscribed at AFTER:59",
        f"{name}: subscription ended after 0.0 s and 1 events at SHARD_END: the shard has ended",
    ]


# -- what was trimmed before it was read


def aged(seconds: float) -> int:
    """The number of a record that is so old when a test begins."""
    begin = 1_700_001_000
    return int(Numbering(0, begin - 10 * DAY).record(int((begin - seconds) * 1e9)))


async def test_full_socket_does_not_hide_a_loss() -> None:
    """Those after the first were sent while the sink was full for 19 s. Their numbers have no times."""
    events = [payload(number, 1) for number in range(1, 6)]
    world = ScriptedWorld(
        [*events, Wait(2.5), payload(6, 1), payload(7, 1), Silence()],
        [END],
        start=Position.after(0),
        delays={0: 19.0, 5: DAY - 11.5},
        fail_on_data_loss=True,
    )
    await world.fails(DataLossError, SHARD, "AFTER:6")


class SlowTopology(ScriptedTopology):
    """Takes five seconds to return the retention."""

    async def summary(self, stream_arn: str) -> Any:
        await LoopClock().sleep(5.0)
        return await super().summary(stream_arn)


# The lag of an event counted from the end of the check, as did those of events that waited in the socket meanwhile.
async def test_event_that_waited_for_a_slow_check_is_read_again() -> None:
    start, last = Position.after(aged(DAY - 5)), aged(0)
    world = ScriptedWorld(
        [Wait(10.0), payload(last, 1), Silence()],
        [payload(last, 1), END],
        start=start,
        topology=SlowTopology([SHARD], retention=[2 * DAY]),
        fail_on_data_loss=True,
    )
    await world.ends()
    assert world.transport.positions == [str(start), str(start)]


AT_START = Facts(horizon=1_700_001_000 - DAY)
"""What is known of a query that starts at the trim horizon when a test begins."""


@pytest.mark.parametrize("less", [0, 1])
async def test_late_reader_fails_after_the_first_commit(less: int) -> None:
    """The micro-batch may end within the first event."""
    script = [payload(aged(DAY), 1, behind=DAY * 1000), Wait(60), payload(aged(DAY - 60), 1, behind=DAY * 1000)]
    world = ScriptedWorld(script, fail_on_data_loss=True, known=AT_START)
    world.sink.committed = Position.after(aged(DAY) - less)
    await world.fails(DataLossError, SHARD)
    assert len(world.sink.events) == 1


async def test_late_reader_is_tolerated_before_the_first_commit() -> None:
    late = payload(aged(DAY - 60), 1, behind=DAY * 1000)
    script = [payload(aged(DAY), 1, behind=DAY * 1000), Wait(60), late]
    world = ScriptedWorld(script, [late, END], fail_on_data_loss=True, known=AT_START)
    world.sink.committed = TRIM_HORIZON
    await world.ends()


async def test_unlisted_newest_shard_is_waited_for() -> None:
    shard_id, created = "shardId-000000000004", 1_700_000_000
    listed = ScriptedTopology(["shardId-000000000000"], created=created)

    def read(start: Position, *scripts: Any) -> ScriptedWorld:
        world = ScriptedWorld(*scripts, start=start, topology=listed)
        world.subscription = ShardSubscription(world.context, shard_id, start, world.sink)
        return world

    def written(at: int) -> Position:
        return Position.after(int(Numbering(4, at - 100).record(at * 10**9)))

    await read(written(created - 1), MISSING).fails(StreamReplacedError, shard_id, "new checkpoint")
    for start in (written(created), Position.after(5), TRIM_HORIZON):
        await read(start, MISSING, MISSING, [END]).ends()
    await read(written(created), *[MISSING] * 400).fails(RetriesExhaustedError, shard_id, "ResourceNotFoundException")


async def test_shard_missing_in_shared_list_is_listed_again() -> None:
    incomplete, whole = ["shardId-000000000005"], [SHARD, "shardId-000000000005"]
    listed = ScriptedTopology(incomplete, whole, consumer=(True,))
    world = ScriptedWorld(MISSING, MISSING, [END], start=Position.after(5), topology=listed)
    await world.context.presence.shards("shardId-000000000005")
    await asyncio.sleep(1)
    await world.ends()
    assert listed.calls == 2

    await ScriptedWorld(MISSING, topology=ScriptedTopology(incomplete)).fails(DataLossError, SHARD)


# -- room in the sink


class NarrowSink(Sink):
    """Has room for what it is told to have room for."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock, {})
        self.open = asyncio.Event()
        self.taken = self.waiting = 0

    def try_reserve(self, size: int) -> bool:
        if not self.open.is_set() and not self.taken:
            return False
        self.taken = max(self.taken, size)
        return True

    async def reserve(self, size: int) -> None:
        self.waiting += 1
        try:
            await self.open.wait()
            self.taken = size
        finally:
            self.waiting -= 1

    def release(self) -> None:
        self.taken = 0

    async def admit(self, event: Event) -> None:
        self.taken = 0
        await super().admit(event)


def narrow(world: ScriptedWorld) -> NarrowSink:
    """Let the subscription have such a sink."""
    world.sink = sink = NarrowSink(world.clock)
    world.subscription = world.subscribe()
    return sink


async def test_cancelled_subscription_stops_waiting_for_room() -> None:
    for seconds in (5, 100):
        world = ScriptedWorld([Large(payload(1))])
        sink = narrow(world)
        running = asyncio.ensure_future(world.subscription.run())
        await asyncio.sleep(seconds)
        assert sink.waiting == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0)
        assert sink.waiting == 0
        assert sink.taken == 0


# -- what is told of it


async def state_after(world: ScriptedWorld, seconds: float) -> State:
    """What the subscription does so long after its start."""
    running = asyncio.ensure_future(world.subscription.run())
    await asyncio.sleep(seconds)
    state: State = world.subscription.stats.state
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.subscription.stats.state is State.CLOSED
    return state


async def test_state_shows_what_is_waited_for() -> None:
    assert await state_after(ScriptedWorld(Opening(10)), 5) is State.OPENING
    assert await state_after(ScriptedWorld([Silence()]), 5) is State.STREAMING
    # 1 s after the error, and 4 s more until Kinesis allows the next call.
    reset = [ConnectionResetError("reset")]
    assert await state_after(ScriptedWorld(reset), 0.5) is State.WAITING
    assert await state_after(ScriptedWorld(reset), 3) is State.WAITING
    assert await state_after(ScriptedWorld([payload(1)], [Silence()]), 3) is State.WAITING
    ahead = Position.at_timestamp(1_700_001_060_000)
    assert await state_after(ScriptedWorld([Silence()], start=ahead), 30) is State.WAITING
    assert await state_after(ScriptedWorld([Silence()], start=ahead), 61) is State.STREAMING
    world = ScriptedWorld([Large(payload(1))])
    narrow(world)
    assert await state_after(world, 100) is State.PAUSED


# -- silence


async def test_silence_begins_with_each_admitted_event() -> None:
    world = ScriptedWorld([Wait(10)], [END])
    await asyncio.sleep(100)
    await world.ends()
    assert (world.stats.failures, world.stats.renewed) == ({}, 1)
    # The sink takes 19 s for the event, and 20 s more bring nothing.
    world = await ScriptedWorld([payload(1)], [Wait(20)], [END], delays={0: 19}).ends()
    assert (world.stats.failures, world.stats.renewed) == ({}, 2)


# -- waiting for room


async def test_waiting_for_room_is_no_silence() -> None:
    world = ScriptedWorld([Wait(20), Large(payload(1)), END])
    sink = narrow(world)
    running = asyncio.ensure_future(world.subscription.run())
    await asyncio.sleep(38)
    sink.open.set()
    await running
    assert (sink.continuations, world.stats.failures, world.stats.opened) == ([1, None], {}, 1)


# Shows 27.
async def test_waiting_for_room_between_failures_is_no_failing() -> None:
    retry = RetrySettings(base_ms=1, max_ms=1, timeout=120)
    world = ScriptedWorld([Silence()], [Large(payload(1))], [Silence()], [payload(1), END], retry=retry)
    sink = narrow(world)
    running = asyncio.ensure_future(world.subscription.run())
    await asyncio.sleep(200)
    sink.open.set()
    await running
    assert (world.stats.paused, world.stats.failures) == (1, {"TimeoutError": 2})


@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_event_that_arrives_during_a_suspension_is_outdated(seconds: float) -> None:
    """The overdue timer runs before the reader of the event, and must not hide that it was late."""
    loop: Any = asyncio.get_running_loop()
    event: asyncio.Future[Event] = loop.create_future()

    class Waiting:
        received = 0

        def __aiter__(self) -> Waiting:
            return self

        def __anext__(self) -> asyncio.Future[Event]:
            return event

        def close(self) -> None: ...

    def suspend() -> None:
        loop.now += seconds
        loop.call_soon(event.set_result, None)

    opened = OpenSubscription(Waiting(), LoopClock(), replace(KINESIS_LIMITS, full=0.1), SubscriptionStats())
    loop.call_soon(suspend)
    await opened.next()
    opened.close()
    assert opened.outdated is (seconds > 0)
