"""The state of Kinesis in one account and region: streams, scheduled actions, and a trace of all calls.

Only the server's thread may change it; other threads (tests) may read it. Returned lists and dictionaries are copies.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import msgspec

from .consumers import Consumer, KeptConsumer, Subscription
from .errors import in_use, invalid, limit_exceeded, not_found, partition_of
from .sequence import Ticks
from .settings import Settings
from .streams import KeptStream, Moment, Stream, Traits
from .wrong_answers import WrongAnswers, parse_kinds

HOUR = 3600.0
MAX_CONSUMERS = 20
MAX_CONSUMERS_ADVANTAGE = 50
MAX_CREATING = 5


class Clock(Protocol):
    """The two clocks that the state needs. The module `time` implements this protocol."""

    def time(self) -> float:
        """Epoch seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One API call in the trace.

    Attributes:
        time: Epoch seconds.
        operation: Name of the operation.
        params: The parameters, without the data of records.
        outcome: `"ok"` or the error code.
    """

    time: float
    operation: str
    params: Mapping[str, Any]
    outcome: str


class KeptKinesis(msgspec.Struct):
    """Streams and consumers of one region, as stored in a data directory."""

    streams: list[KeptStream]
    consumers: list[KeptConsumer]


class Kinesis:
    """Streams and consumers of one account and region.

    Args:
        settings: Settings of the local AWS.
        region: The region, used in ARNs.
        clock: Source of all times.
        ticks: Source of the ticks in sequence numbers.

    Attributes:
        wrong: Decides which responses are deliberately wrong, for tests.
        readers: Issues the numbers that identify readers (GetShardIterator calls).
    """

    def __init__(self, settings: Settings, region: str, clock: Clock, ticks: Ticks) -> None:
        self.settings = settings
        self.region = region
        self.account_id = settings.account_id
        self.wrong = WrongAnswers(
            parse_kinds(settings.wrong_answers), settings.wrong_answers_rate, settings.wrong_answers_in_a_row, Random(1)
        )
        self.readers = itertools.count()
        self._clock = clock
        self._ticks = ticks
        self._streams: dict[str, Stream] = {}
        self._agenda: list[tuple[float, int, Callable[[Moment], None]]] = []
        self._order = itertools.count()
        self._trace: deque[Call] = deque(maxlen=settings.trace_length)
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def streams(self) -> dict[str, Stream]:
        """The streams by name."""
        return dict(self._streams)

    @property
    def subscriptions(self) -> list[Subscription]:
        """All open subscriptions."""
        return [
            subscription
            for stream in tuple(self._streams.values())
            for consumer in tuple(stream.consumers.values())
            for subscription in tuple(consumer.subscriptions.values())
        ]

    @property
    def trace(self) -> list[Call]:
        """The last `Settings.trace_length` calls, oldest first."""
        return list(self._trace)

    def calls(self, operation: str, outcome: str | None = None) -> int:
        """Number of calls of an operation; only those with `outcome` (`"ok"` or an error code) if it is given."""
        return sum(
            count
            for (name, result), count in tuple(self._counts.items())
            if name == operation and outcome in (None, result)
        )

    def remember(self, operation: str, params: Mapping[str, Any], outcome: str) -> None:
        """Add a call to the trace."""
        self._trace.append(Call(self._clock.time(), operation, params, outcome))
        self._counts[operation, outcome] += 1

    def now(self) -> Moment:
        """Read the clocks."""
        return Moment(self._clock.time(), self._clock.monotonic())

    def later(self, seconds: float, action: Callable[[Moment], None]) -> None:
        """Carry out an action after `seconds`: immediately for 0, otherwise in the first `settle` call after that time."""
        now = self.now()
        if seconds <= 0:
            action(now)
        else:
            heapq.heappush(self._agenda, (now.monotonic + seconds, next(self._order), action))

    def settle(self) -> float | None:
        """Carry out all due actions. Returns the monotonic time of the next action, or None."""
        while self._agenda:
            now = self.now()
            if self._agenda[0][0] > now.monotonic:
                return self._agenda[0][0]
            heapq.heappop(self._agenda)[2](now)
        return None

    def keep(self) -> KeptKinesis:
        """Return the state to store in a data directory. First carries out all scheduled actions, such as a stream becoming ACTIVE."""
        while self._agenda:
            heapq.heappop(self._agenda)[2](self.now())
        streams = self._streams.values()
        return KeptKinesis(
            [stream.keep() for stream in streams],
            [consumer.keep() for stream in streams for consumer in stream.consumers.values()],
        )

    def restore(self, kept: KeptKinesis) -> None:
        """Restore the stored state. Must be called while there are no streams yet."""
        for each in kept.streams:
            arn = self.arn(f"stream/{each.name}")
            self._streams[each.name] = Stream.restored(each, arn, self._ticks, self.now())
        for one in kept.consumers:
            consumer = Consumer(one.name, one.arn, self._streams[one.stream], one.created_at)
            consumer.status, consumer.tags, consumer.policy = "ACTIVE", one.tags, one.policy
            consumer.stream.consumers[one.name] = consumer

    def stream(self, params: Mapping[str, Any]) -> Stream:
        """Find the stream that a request names by `StreamName`, `StreamARN` or both, and remove its expired records.

        Raises:
            AwsError: `ResourceNotFoundException`, or `InvalidArgumentException` if neither is given or they contradict each other.
        """
        name, arn = params.get("StreamName"), params.get("StreamARN")
        if arn is not None:
            parts = str(arn).split(":", 5)
            if len(parts) != 6 or not parts[5].startswith("stream/"):
                raise invalid(f"StreamARN {arn} is not the ARN of a stream")
            from_arn = parts[5].removeprefix("stream/").split("/")[0]
            if name is not None and name != from_arn:
                raise invalid(f"StreamName {name} does not match StreamARN {arn}")
            if parts[3] != self.region or parts[4] != self.account_id:
                raise not_found(f"Stream {from_arn} under account {parts[4]} not found in region {self.region}: {arn}")
            name = from_arn
        if name is None:
            raise invalid("Either StreamName or StreamARN should be provided.")
        stream = self._streams.get(name)
        if stream is None:
            raise not_found(f"Stream {name} under account {self.account_id} not found.")
        stream.expire(self.now().wall)
        return stream

    def create_stream(
        self, name: str, shard_count: int, mode: str, max_record_bytes: int, tags: dict[str, str]
    ) -> Stream:
        """Create a stream; it becomes ACTIVE after `stream_creating_seconds`."""
        if name in self._streams:
            raise in_use(f"Stream {name} under account {self.account_id} already exists.")
        if sum(stream.status == "CREATING" for stream in self._streams.values()) >= MAX_CREATING:
            raise limit_exceeded(f"Only {MAX_CREATING} streams can be in the CREATING state at a time")
        self.check_shard_limit(shard_count)
        traits = Traits(self.settings.retention_seconds or 24 * HOUR, mode, max_record_bytes, None, tags)
        stream = Stream(name, self.arn(f"stream/{name}"), shard_count, traits, self._ticks, self.now())
        self._streams[name] = stream

        def activate(_: Moment) -> None:
            if stream.status == "CREATING":
                stream.status = "ACTIVE"

        self.later(self.settings.stream_creating_seconds, activate)
        return stream

    def delete_stream(self, stream: Stream, *, with_consumers: bool) -> None:
        """Delete a stream; open subscriptions end with `ResourceNotFoundException`."""
        if stream.consumers and not with_consumers:
            raise in_use(
                f"Stream {stream.name} under account {self.account_id} has consumers registered with it; "
                "set EnforceConsumerDeletion to delete it."
            )
        stream.status = "DELETING"
        gone = not_found(f"Stream {stream.name} under account {self.account_id} not found.")
        for consumer in stream.consumers.values():
            consumer.status = "DELETING"
            consumer.fail_all(gone)

        def forget(_: Moment) -> None:
            if self._streams.get(stream.name) is stream:
                del self._streams[stream.name]

        self.later(self.settings.stream_creating_seconds, forget)

    def update(self, stream: Stream, change: Callable[[Moment], None]) -> None:
        """Apply a change to an ACTIVE stream after `reshard_seconds`; until then, the stream is UPDATING."""

        def apply(now: Moment) -> None:
            change(now)
            if stream.status == "UPDATING":
                stream.status = "ACTIVE"

        stream.status = "UPDATING"
        self.later(self.settings.reshard_seconds, apply)

    def check_shard_limit(self, more: int) -> None:
        """Raise `LimitExceededException` if `more` additional open shards would exceed the limit."""
        taken = sum(len(stream.open_shards) for stream in self._streams.values())
        if taken + more > self.settings.max_shards:
            raise limit_exceeded(
                f"This request would exceed the shard limit for the account {self.account_id} in {self.region}. Current shard "
                f"count for the account: {taken}. Limit: {self.settings.max_shards}."
            )

    def consumer(self, arn: str) -> Consumer:
        """Find a consumer by its ARN.

        Raises:
            AwsError: `ResourceNotFoundException`, or `InvalidArgumentException` if `arn` is not the ARN of a consumer.
        """
        parts = arn.split("/")
        if len(parts) != 4 or parts[2] != "consumer" or not parts[0].endswith(":stream"):
            raise invalid(f"ConsumerARN {arn} is not the ARN of a stream consumer")
        stream = self.stream({"StreamARN": "/".join(parts[:2])})
        for consumer in stream.consumers.values():
            if consumer.arn == arn:
                return consumer
        raise not_found(f"Consumer {arn} not found.")

    def consumer_named(self, params: Mapping[str, Any]) -> Consumer:
        """Find the consumer that a request names by `ConsumerARN`, or by `StreamARN` and `ConsumerName`."""
        arn, stream_arn, name = (params.get(key) for key in ("ConsumerARN", "StreamARN", "ConsumerName"))
        if arn is not None:
            consumer = self.consumer(arn)
            if (name or consumer.name) != consumer.name or (stream_arn or consumer.stream.arn) != consumer.stream.arn:
                raise invalid(f"ConsumerARN {arn} does not match StreamARN {stream_arn} and ConsumerName {name}")
            return consumer
        if stream_arn is None or name is None:
            raise invalid("Either ConsumerARN, or both StreamARN and ConsumerName, should be provided.")
        stream = self.stream({"StreamARN": stream_arn})
        if name not in stream.consumers:
            raise not_found(f"Consumer {name} under stream {stream.name} not found for account {self.account_id}.")
        return stream.consumers[name]

    def register_consumer(self, stream: Stream, name: str, tags: dict[str, str], stamp: int | None = None) -> Consumer:
        """Register a consumer; it becomes ACTIVE after `consumer_creating_seconds`.

        Args:
            stream: The stream.
            name: Name of the consumer.
            tags: Tags of the consumer.
            stamp: Creation time in the consumer's ARN, epoch seconds; None for now.
        """
        if name in stream.consumers:
            raise in_use(f"Consumer {name} under stream {stream.name} already exists for account {self.account_id}.")
        _check_room(stream)
        if sum(consumer.status == "CREATING" for consumer in stream.consumers.values()) >= MAX_CREATING:
            raise limit_exceeded(f"Only {MAX_CREATING} consumers of a stream can be in the CREATING state at a time")
        at = self.now().wall if stamp is None else float(stamp)
        if stamp is None:
            # A consumer that is registered again within a second must still get a new ARN.
            stamp = max(int(at), stream.last_consumer_stamp + 1)
        stream.last_consumer_stamp = max(stamp, stream.last_consumer_stamp)
        consumer = Consumer(name, f"{stream.arn}/consumer/{name}:{stamp}", stream, at)
        consumer.tags = tags
        stream.consumers[name] = consumer

        def activate(_: Moment) -> None:
            if consumer.status == "CREATING":
                consumer.status = "ACTIVE"

        self.later(self.settings.consumer_creating_seconds, activate)
        return consumer

    def create_queue(self, stream: Stream, name: str) -> float:
        """Create a queue, which counts towards the limit of consumers, but does not deliver records. Returns the creation time."""
        if stream.traits.mode != "ON_DEMAND":
            raise invalid(
                f"Queues are only supported for streams with StreamMode ON_DEMAND; {stream.name} is PROVISIONED"
            )
        if any(name in each.queues for each in self.streams.values()):
            raise in_use(f"Queue {name} already exists for account {self.account_id}.")
        _check_room(stream)
        stream.queues[name] = self.now().wall
        return stream.queues[name]

    def deregister_consumer(self, consumer: Consumer) -> None:
        """Deregister a consumer; open subscriptions end with `ResourceNotFoundException`."""
        consumer.status = "DELETING"
        consumer.fail_all(not_found(f"Consumer {consumer.arn} not found."))

        def forget(_: Moment) -> None:
            if consumer.stream.consumers.get(consumer.name) is consumer:
                del consumer.stream.consumers[consumer.name]

        self.later(self.settings.consumer_deleting_seconds, forget)

    def arn(self, resource: str) -> str:
        """The ARN of a Kinesis resource in this account and region."""
        return f"arn:{partition_of(self.region)}:kinesis:{self.region}:{self.account_id}:{resource}"


def _check_room(stream: Stream) -> None:
    """Raise `LimitExceededException` if no consumer or queue can be added. The limits are those of accounts with On-demand Advantage."""
    most = MAX_CONSUMERS_ADVANTAGE if stream.traits.mode == "ON_DEMAND" else MAX_CONSUMERS
    if len(stream.consumers) + len(stream.queues) >= most:
        raise limit_exceeded(
            f"Stream {stream.name} already has {most} registered consumers, {len(stream.queues)} queues included"
        )
