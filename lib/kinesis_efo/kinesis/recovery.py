"""Decides, for all subscriptions to one shard, how long to wait after an error, or when to give up."""

from __future__ import annotations

import logging
import random as standard_random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import describe
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.decisions.losses import written_at
from kinesis_efo.errors import AccessRefusedError, ConsumerNotFoundError, StreamNotFoundError
from kinesis_efo.kinesis.faults import Backoff, Fault, Verdict, classify, fatal, former_position, lost_after, replaced
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.topology import SKEW_SECONDS, Presence, Topology
from kinesis_efo.kinesis.transport import Transport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter
from kinesis_efo.positions import Position, PositionKind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, and the count `takeovers`. They follow from Kinesis' limits, so users cannot change them; tests shorten them.

    Attributes:
        between_calls: Minimum time between two calls for a shard: Kinesis allows one per second.
        after_success: Minimum time from a successful call to the next: Kinesis rejects an earlier call.
        opening: Maximum time for a SubscribeToShard call, which may hang, for example because all connections are in use.
        silence: A connection without an event for this long is dead: Kinesis sends an event every 5 s even if a shard is idle.
        full: How long a sink may be full before the subscription is closed on purpose.
        too_short: A subscription that ends within this time, without an event, has failed rather than expired.
        patience: Maximum time for a consumer to become ACTIVE. Also the period within which `takeovers` are counted.
        takeovers: Reading fails if other programs subscribe to the shard with the same consumer this many times within `patience`.
        shortest_retention: The minimum retention of any stream.
    """

    between_calls: float = 1.0
    after_success: float = 5.0
    opening: float = 60.0
    silence: float = 35.0
    full: float = 20.0
    too_short: float = 1.0
    patience: float = 300.0
    takeovers: int = 5
    shortest_retention: float = 24 * 3600.0


KINESIS_LIMITS: Final = Limits()


LOG_SECONDS: Final = 10.0
"""Minimum seconds between two warnings about the same kind of failure in the shards of one stream."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The settings and services shared by all subscriptions to one stream with one transport, and the state of its shards.

    Attributes:
        source: Where the consumer's ARN came from, for messages.
        random: Returns numbers in `[0, 1)`, for jitter.
        presence: Looks up the shards and the consumer through `topology`. Concurrent lookups share one call.
        stats: The statistics of each shard that has been subscribed to.
    """

    stream: StreamRef
    source: str
    transport: Transport
    topology: Topology
    retry: RetrySettings = field(default_factory=RetrySettings)
    limits: Limits = KINESIS_LIMITS
    clock: Clock = field(default_factory=SystemClock)
    random: Callable[[], float] = standard_random.random
    presence: Presence = field(init=False)
    stats: dict[str, SubscriptionStats] = field(default_factory=dict, init=False)
    recoveries: dict[str, Recovery] = field(default_factory=dict, init=False)
    # When each kind of failure was last logged, monotonic seconds
    logged: dict[str, float] = field(default_factory=dict, init=False)
    # By kind of failure: the number of failures in each shard since a failure of this kind was last logged
    others: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter), init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "presence", Presence(self.stream, self.topology, self.clock))

    @property
    def way(self) -> str:
        """How shards are read, for messages: "polling" or "subscription"."""
        return "polling" if self.stream.polled else "subscription"

    def recovery(self, shard_id: str) -> Recovery:
        """Return a shard's `Recovery`, which its successive subscriptions share."""
        if shard_id not in self.recoveries:
            self.recoveries[shard_id] = Recovery(self, shard_id)
        return self.recoveries[shard_id]

    def warn(self, kind: str, shard_id: str, text: str) -> None:
        """Log a failure of a shard, at most one of each kind per `LOG_SECONDS`. The next message contains the number of unlogged failures.
        `text` is the message, which begins with the shard's name."""
        seconds = self.clock.monotonic() - self.logged.get(kind, -inf)
        others = self.others[kind]
        if seconds < LOG_SECONDS:
            others[shard_id] += 1
            logger.debug("%s", text)
            return
        more = f"; {others.total()} more like it in {len(others)} shards in the last {seconds:.0f} s" if others else ""
        logger.warning("%s%s", text, more)
        self.logged[kind] = self.clock.monotonic()
        others.clear()

    def describe(self, shard_id: str) -> str:
        """Describe the subscription to a shard, for messages."""
        return self.stats.get(shard_id, SubscriptionStats()).describe(self.clock.monotonic())


class Recovery:
    """Handles the errors of all successive subscriptions to a shard. Does not reference their sinks, so that buffered records can be freed.

    `next_call` is when Kinesis allows the next call for this shard, monotonic seconds.
    """

    def __init__(self, context: ReadContext, shard_id: str) -> None:
        self._context = context
        self._stream = context.stream
        self._shard_id = shard_id
        self._limits = context.limits
        self._backoff = Backoff(context.retry, context.random)
        self._takeovers: deque[float] = deque()
        self._refusals: deque[float] = deque()
        self._expired = False
        self.stats = SubscriptionStats()
        self.next_call = -inf

    def opened(self) -> None:
        """Reset the count of rejections after Kinesis has accepted a subscription."""
        self._refusals.clear()
        self._expired = False

    def progressed(self) -> None:
        """Reset the count of failures after an event has arrived."""
        self._backoff.reset()

    async def delay(self, fault: Fault, position: Position) -> float:
        """Return how many seconds to wait before the next attempt, or raise the fatal error if retrying cannot help. `position` is how far
        the shard has been read."""
        match fault.verdict:
            case Verdict.RETRY | Verdict.KEY:
                return self._count(fault)
            case Verdict.EXPIRED if not self._expired:
                self._expired = True
                return self._count(fault)
            case Verdict.TOO_SOON:
                self._count_refusal(fault)
                # Retry soon: if an earlier run opened the last subscription, Kinesis' minimum interval of 5 s may be almost over.
                return self._limits.between_calls
            case Verdict.NOT_ACTIVE:
                self._count_refusal(fault)
                return self._jitter(len(self._refusals))
            case Verdict.INVALID if self._may_be_ahead(position):
                self._count_refusal(fault)
                return self._limits.between_calls
            case Verdict.TAKEN_OVER:
                return self._count_takeover(fault)
            case Verdict.MISSING:
                return await self._find_missing(fault, position)
        raise self._fatal(fault) from fault.error

    def _count(self, fault: Fault) -> float:
        delay = self._backoff.failed(fault.error, self._context.clock.monotonic())
        if delay is None:
            raise self._fatal(fault, self._backoff) from self._backoff.first
        self._warn(fault, f"{self._name}: {fault}; retry {self._backoff.failures} in {delay:.1f} s")
        return delay

    def _warn(self, fault: Fault, text: str) -> None:
        self._context.warn(fault.code, self._shard_id, text)

    def _count_refusal(self, fault: Fault) -> None:
        now = self._context.clock.monotonic()
        if self._refusals and now - self._refusals[-1] > 2 * self._limits.opening:
            # The previous attempt was long ago, for example because the lease was lost meanwhile, so restart the timeout.
            self._refusals.clear()
        self._refusals.append(now)
        if now - self._refusals[0] >= self._limits.patience:
            raise self._fatal(fault) from fault.error
        logger.debug("%s: %s; waiting", self._name, fault)

    def _may_be_ahead(self, position: Position) -> bool:
        """Whether a position is a timestamp that may still be in the future for Kinesis, because this machine's clock may be fast."""
        timed = position.kind is PositionKind.AT_TIMESTAMP
        return timed and position.value / 1000 >= self._context.clock.time() - SKEW_SECONDS

    def _count_takeover(self, fault: Fault) -> float:
        now = self._context.clock.monotonic()
        self._takeovers.append(now)
        while self._takeovers[0] < now - self._limits.patience:
            self._takeovers.popleft()
        if len(self._takeovers) >= self._limits.takeovers:
            raise self._fatal(fault) from fault.error
        self._warn(fault, f"{self._name}: another program uses consumer {self._stream.consumer_arn}: {fault}")
        return self._jitter(len(self._takeovers))

    async def _find_missing(self, fault: Fault, position: Position) -> float:
        """Find out whether the stream, the shard or the consumer is missing. Return the seconds to wait before the next attempt.

        Kinesis returns the same error for all three, and also right after a reshard, when all of them exist.
        """
        where, source = f"stream {self._stream.name!r}, shard {self._shard_id}", self._context.source
        try:
            listed = await self._context.presence.shards(self._shard_id)
        except Exception as error:
            found = classify(error)
            if found.verdict is Verdict.MISSING:
                raise StreamNotFoundError(
                    f"{where}: stream {self._stream.stream_arn} (from {source}) does not exist (any more): "
                    f"{describe(error)}",
                    remedy="Deploy it again, and start from a new checkpoint: its records are gone",
                ) from fault.error
            if found.verdict is Verdict.REFUSED and isinstance(error, ClientError):
                raise AccessRefusedError(
                    f"{where}: {fault}. It is unknown whether the stream, the shard or {self._stream.reader} is missing, because "
                    f"kinesis:ListShards was denied: {describe(error)}",
                    remedy="Allow it to the job's role",
                ) from fault.error
            return self._count(found)
        if self._shard_id not in listed:
            # Within a stream, shard ids increase. An id above all listed ones is of a deleted stream with the same name, or too new to be listed.
            if self._shard_id > max(listed, default=""):
                if await self._is_older_than_stream(position):
                    raise replaced(self._stream, former_position(self._shard_id, position), source) from fault.error
                return self._count(fault)
            cause = f"{where}: the shard does not exist any more and was read up to {position} only: its later records are gone (retention)"
            raise lost_after(cause, self._stream.name, self._shard_id, position) from fault.error
        if self._stream.polled:
            # Stream and shard exist, and polling does not use a consumer, so the error may be transient.
            return self._count(fault)
        return await self._find_consumer(fault, where)

    async def _is_older_than_stream(self, position: Position) -> bool:
        """Whether a position certainly belongs to an earlier stream of the same name. False if that is unknown."""
        if (number := position.sequence_number) is None or (created := await self._context.presence.created()) is None:
            return False
        written = written_at(number, self._shard_id, self._context.clock.time() + SKEW_SECONDS)
        return written is not None and written < created

    async def _find_consumer(self, fault: Fault, where: str) -> float:
        unsure = ""
        try:
            exists = await self._context.presence.consumer()
        except Exception as error:
            exists = False
            found = classify(error)
            if found.verdict is not Verdict.REFUSED or not isinstance(error, ClientError):
                return self._count(found)
            unsure = (
                ". Stream and shard exist, so it must be the consumer; to make sure of that, allow kinesis:DescribeStreamConsumer "
                f"to the job's role: {describe(error)}"
            )
        if exists:
            return self._count(fault)
        raise ConsumerNotFoundError(
            f"{where}: consumer {self._stream.consumer_arn} does not exist (any more); its ARN came from {self._context.source}. "
            "A consumer that is registered again has another ARN: declare it again where it was declared, give the new ARN there, and restart "
            f"the query{unsure}"
        ) from fault.error

    def _jitter(self, failures: int) -> float:
        return jitter(self._context.retry, failures, self._context.random)

    def _fatal(self, fault: Fault, retries: Backoff | None = None) -> Exception:
        return fatal(fault, self._stream, self._shard_id, self._context.source, retries)

    @property
    def _name(self) -> str:
        return f"{self._stream.name}:{self._shard_id}"
