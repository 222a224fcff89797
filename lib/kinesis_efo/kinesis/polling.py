"""Reads shards with GetRecords: the transport of `readMode=polling`, with the same events, positions and errors as subscriptions.

For each shard, Kinesis allows five calls and 2 MB per second, shared by all programs that poll it, and responses of up to 10 MB
(https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html). Responses stay raw bytes: tasks decode the records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final
from weakref import WeakSet

from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import code_of
from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.transport import Quota, starting_position
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position
from kinesis_efo.raw_bodies import RAW_BODY, keep_answers
from kinesis_efo.records.events import Event, GetRecordsAnswer, read_answer

POLLING_CONFIG: Final[dict[str, Any]] = {
    "retries": {"total_max_attempts": 1},
    "connect_timeout": 10,
    "read_timeout": 20,
}
"""Client configuration, except `max_pool_connections`. The client does not retry, because subscriptions retry failed calls."""

CALL_SECONDS: Final = 0.2
"""Minimum number of seconds between two calls for a shard: Kinesis allows five calls per second."""

BYTES_PER_SECOND: Final = 2 << 20
"""Bytes per second that may be read from a shard. After a large response, the next call is delayed to keep to this rate."""

MOST_RECORDS: Final = 10_000
"""The largest `Limit` (records per call) that Kinesis allows."""

ANSWER_BYTES: Final = 1 << 20
"""Target size of a response. Larger responses would not be faster and would wait in memory."""

CALLS_FOR_NOTHING: Final = 500
"""Maximum calls per second, in total, to shards that were read to their tip. Each call costs about 0.7 ms of CPU time."""

_LARGEST_ANSWER: Final = 10 << 20
_FIRST_RECORDS: Final = 1_000
_FIRST_BYTES: Final = 14 << 20
_USUAL_BYTES: Final = 3 << 19


async def iterator_at(client: Any, stream_arn: str, shard_id: str, position: Position | None) -> str:
    """Return a shard iterator for the records after `position`, or for new records if it is None."""
    names = {"Type": "ShardIteratorType", "SequenceNumber": "StartingSequenceNumber"}
    request = {names.get(name, name): value for name, value in starting_position(position).items()}
    answer = await client.get_shard_iterator(StreamARN=stream_arn, ShardId=shard_id, **request)
    return str(answer["ShardIterator"])


def polling_limits(limits: Limits, rate: int | None = None) -> Limits:
    """Return `limits` adapted to polling, for which Kinesis allows five calls per second and shard.

    `rate` is the bytes per second to read; None: Kinesis' limit. A lower `rate` requires longer pauses, so `silence` is increased.
    """
    return replace(
        limits,
        between_calls=min(limits.between_calls, CALL_SECONDS),
        after_success=min(limits.after_success, CALL_SECONDS),
        silence=limits.silence + (_LARGEST_ANSWER / rate if rate is not None else 0.0),
    )


@dataclass(slots=True)
class Pace:
    """Determines when a shard may be polled next, and how many records to request.

    >>> pace = Pace()
    >>> pace.asking(now=100.0), pace.next_call
    (1000, 100.2)
    >>> pace.answered(GetRecordsAnswer((), "next", 5_000, bytes=10 << 20, records=100), now=101.0, interval=1.0)
    >>> pace.next_call, pace.limit
    (106.0, 10)
    """

    next_call: float = -inf  # The earliest time of the next call, monotonic seconds
    limit: int = _FIRST_RECORDS  # How many records the next call requests
    size: int = _FIRST_BYTES  # Bytes to reserve for the next response, including its base64 encoding
    call_seconds: float = CALL_SECONDS  # Minimum seconds between two calls
    bytes_per_second: float = BYTES_PER_SECOND
    answer_bytes: int = ANSWER_BYTES  # Target size of a response

    def asking(self, now: float) -> int:
        """Record a call at `now`. Return how many records to request."""
        asked = self.limit
        self.next_call = now + self.call_seconds
        # If the call fails, request fewer records next time, in case the network is slow. After a response, `answered` resets the limit.
        self.limit = max(1, asked // 4)
        return asked

    def answered(self, answer: GetRecordsAnswer, now: float, interval: float) -> None:
        """Process a response received at `now`. At the shard's tip, the next call is at least `interval` seconds later."""
        wait = max(self.call_seconds, answer.bytes / self.bytes_per_second, 0.0 if answer.millis_behind else interval)
        self.next_call = now + wait
        self.size = _USUAL_BYTES
        average = max(1, answer.bytes // answer.records) if answer.records else 0
        self.limit = min(MOST_RECORDS, max(1, self.answer_bytes // average)) if average else _FIRST_RECORDS


def separate_pace(rate: int) -> Pace:
    """Create the pace of a query that is catching up: `rate` bytes per second. It makes few calls, since all programs share Kinesis' limit.

    >>> separate_pace(1 << 20).call_seconds, separate_pace(64 << 10).call_seconds, separate_pace(2 << 20).call_seconds
    (1.0, 1.0, 0.5)
    """
    return Pace(call_seconds=min(1.0, ANSWER_BYTES / rate), bytes_per_second=rate, answer_bytes=min(rate, ANSWER_BYTES))


class PollingTransport:
    """Reads shards with GetRecords through an aiobotocore client; implements `Transport`.

    Args:
        client: Created with `POLLING_CONFIG` for this transport only; the caller closes it.
        interval: Minimum seconds between calls to a shard that was read to its tip. It is longer for many shards (`CALLS_FOR_NOTHING`).
        pace: Creates the pace of a shard at its first subscription.
    """

    def __init__(self, client: Any, clock: Clock, interval: float, pace: Callable[[], Pace] = Pace) -> None:
        self._client = client
        self._clock = clock
        self._least_interval = interval
        self._pace = pace
        self._open_events: WeakSet[PolledEvents] = WeakSet()
        # Each shard's pace outlives its subscriptions, so that a new subscription does not call too soon after the previous one.
        self._paces: dict[tuple[str, str], Pace] = {}
        keep_answers(client, "GetRecords")

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> PolledEvents:
        iterator = await iterator_at(self._client, stream.stream_arn, shard_id, position)
        pace = self._paces.setdefault((stream.stream_arn, shard_id), self._pace())
        events = PolledEvents(self._client, stream.stream_arn, iterator, pace, self._clock, self._interval, room)
        self._open_events.add(events)
        return events

    def _interval(self) -> float:
        return max(self._least_interval, len(self._open_events) / CALLS_FOR_NOTHING)


class PolledEvents:
    """The events of one shard, starting at a shard iterator; implements `EventStream`.

    Iteration ends at the shard's end, or when the shard iterator has expired. The reader then subscribes again, as after the end of a
    SubscribeToShard call. `interval` returns the seconds between two calls at the shard's tip.
    """

    def __init__(
        self,
        client: Any,
        stream_arn: str,
        iterator: str,
        pace: Pace,
        clock: Clock,
        interval: Callable[[], float],
        room: Quota,
    ) -> None:
        self.received = 0
        self._room = room
        self._client = client
        self._stream_arn = stream_arn
        self._iterator: str | None = iterator
        self._pace = pace
        self._clock = clock
        self._interval = interval
        self._events: deque[Event] = deque()
        self._waiting: asyncio.Timeout | None = None
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._events and not self._closed:
            try:
                async with asyncio.timeout(None) as self._waiting:
                    await self._ask()
            except TimeoutError:
                if not self._closed:
                    raise
            finally:
                self._waiting = None
        if not self._events or self._closed:
            raise StopAsyncIteration
        return self._events.popleft()

    def close(self) -> None:
        self._closed = True
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _ask(self) -> None:
        if self._iterator is None:
            return
        await self._clock.sleep(max(0.0, self._pace.next_call - self._clock.monotonic()))
        if not self._room.try_reserve(self._pace.size):
            await self._room.reserve(self._pace.size)
        limit = self._pace.asking(self._clock.monotonic())
        try:
            response = await self._client.get_records(
                StreamARN=self._stream_arn, ShardIterator=self._iterator, Limit=limit
            )
        except ClientError as error:
            if code_of(error) != "ExpiredIteratorException":
                raise
            return
        answer = read_answer(response[RAW_BODY], asked=self._iterator if self.received else None)
        self.received += len(response[RAW_BODY])
        self._pace.answered(answer, self._clock.monotonic(), self._interval())
        self._iterator = answer.iterator
        self._events.extend(answer.events)
