"""Decides independently of the library with which error a query must fail, if any, and checks the rate of its calls.

Implements the rules of `kinesis.recovery` once more. Wraps the transport, and sees every call, event and error of every shard.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from botocore.exceptions import ClientError, EventStreamError

from kinesis_efo import errors
from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.transport import EventStream, NoRoom, Quota, Transport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.records.events import Event

KMS = {
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
}
PATIENCE = 300.0
TAKEOVERS = 5
SILENCE = 35.0
OPENING = 60.0
MOST_SKEW = 300.0
EPSILON = 1e-6


@dataclass
class Verdict:
    """The failure that a query must end with.

    Attributes:
        at: When it was decided, monotonic seconds.
        shard: Id of the shard that caused it.
        error: Class of the error.
        why: The reason.
    """

    at: float
    shard: str
    error: type[errors.KinesisEfoError]
    why: str


@dataclass
class _Shard:
    first: float
    called: float | None = None
    opened: float | None = None
    failures: int = 0
    expired: bool = False
    refused_since: float | None = None
    takeovers: deque[float] = field(default_factory=deque)


class Oracle:
    """Watches the transport of one fetcher.

    Args:
        clock: Virtual time.
        max_retries: The fetcher's `RetrySettings.max_retries`.
        consumer_exists: Whether the consumer exists now: only a missing one is fatal.
        polled: Whether the query reads with GetRecords: then five calls per second are allowed.

    Attributes:
        verdicts: The failures that the query must end with. The first one counts; if there is none, it must not fail.
        last_event: When the last valid event of each shard arrived.
        faults: Number of faults, by code.
        calls: Number of calls that open a subscription.
    """

    def __init__(
        self, clock: Clock, max_retries: int, consumer_exists: Callable[[], bool], *, polled: bool = False
    ) -> None:
        self._clock = clock
        self._consumer_exists = consumer_exists
        self._polled = polled
        self._max_retries = max_retries
        self._shards: dict[str, _Shard] = {}
        self._undo: dict[str, tuple[float, _Shard | None, int]] = {}
        self.verdicts: list[Verdict] = []
        self.last_event: dict[str, float] = {}
        self.faults: dict[str, int] = {}
        self.calls = 0

    def now(self) -> float:
        return self._clock.monotonic()

    def called(self, shard_id: str) -> None:
        now = self.now()
        shard = self._shards.setdefault(shard_id, _Shard(now))
        self.calls += 1
        if shard.called is not None and self._polled:
            assert now - shard.called >= 0.2 - EPSILON, f"{shard_id}: two calls within {now - shard.called:.3f} s"
        elif shard.called is not None:
            assert now - shard.called >= 1 - EPSILON, f"{shard_id}: two calls within {now - shard.called:.3f} s"
        if shard.opened is not None and not self._polled:
            assert now - shard.opened >= 5 - EPSILON, f"{shard_id}: called {now - shard.opened:.3f} s after a success"
        shard.called = now

    def opened(self, shard_id: str) -> None:
        self._shards[shard_id].opened = self.now()
        self._shards[shard_id].refused_since = None
        self._shards[shard_id].expired = False

    def event(self, shard_id: str, payload: bytes) -> None:
        if self._polled or _is_valid(payload):
            self._shards[shard_id].failures = 0
            self.last_event[shard_id] = self.now()
        else:
            self._count(shard_id, "invalid event", errors.RetriesExhaustedError)

    def interrupted(self, shard_id: str) -> None:
        """A subscription was cancelled. Undoes an error at the same time, which the subscription never handled."""
        at, before, verdicts = self._undo.pop(shard_id, (-1.0, None, 0))
        if before is not None and at == self.now():
            self._shards[shard_id] = before
            self.verdicts = self.verdicts[:verdicts]

    def error(self, shard_id: str, error: Exception, position: Position | None = None) -> None:
        code = _code(error)
        shard, now = self._shards[shard_id], self.now()
        self._undo[shard_id] = (now, replace(shard, takeovers=deque(shard.takeovers)), len(self.verdicts))
        if code in ("AccessDeniedException", "AccessDenied"):
            self._fatal(shard_id, code, errors.AccessRefusedError)
        elif code == "InvalidArgumentException" and position is not None and self._may_lie_ahead(position):
            self._note(code)
            shard.refused_since = now if shard.refused_since is None else shard.refused_since
            if now - shard.refused_since >= PATIENCE:
                self._fatal(shard_id, code, errors.InvalidRequestError)
        elif code == "InvalidArgumentException":
            self._fatal(shard_id, code, errors.InvalidRequestError)
        elif code == "ResourceNotFoundException" and not self._consumer_exists():
            self._fatal(shard_id, code, errors.ConsumerNotFoundError)
        elif code == "ExpiredTokenException":
            if shard.expired:
                self._fatal(shard_id, code, errors.AccessRefusedError)
            else:
                shard.expired = True
                self._count(shard_id, code, errors.AccessRefusedError)
        elif code == "ResourceInUseException" and isinstance(error, EventStreamError):
            shard.takeovers.append(now)
            while shard.takeovers[0] < now - PATIENCE:
                shard.takeovers.popleft()
            self._note(code)
            if len(shard.takeovers) >= TAKEOVERS:
                self._fatal(shard_id, code, errors.ConsumerTakenOverError)
        elif code == "ResourceInUseException":
            self._note(code)
            shard.refused_since = now if shard.refused_since is None else shard.refused_since
            if now - shard.refused_since >= PATIENCE:
                too_soon = "another active subscription" in str(error).lower()
                wanted = errors.ConsumerTakenOverError if too_soon else errors.RetriesExhaustedError
                self._fatal(shard_id, code, wanted)
        else:
            self._count(shard_id, code, errors.KeyUnusableError if code in KMS else errors.RetriesExhaustedError)

    def _may_lie_ahead(self, position: Position) -> bool:
        """Whether Kinesis may refuse a time because it has not come yet, by a clock that is as far off as AWS bears."""
        return position.kind is PositionKind.AT_TIMESTAMP and position.value / 1000 >= self._clock.time() - MOST_SKEW

    def ended(self, shard_id: str, opened: float, last: float | None) -> None:
        """A subscription ended cleanly. That is a fault if it sent no event and ended early, or its shard is silent."""
        heard = self.last_event.get(shard_id, self._shards[shard_id].first)
        if last is None and (self.now() - opened < 1 or self.now() - heard > SILENCE):
            self._count(shard_id, "ended without an event", errors.RetriesExhaustedError)

    def silent(self, shard_id: str) -> None:
        self._count(shard_id, "silence", errors.RetriesExhaustedError)

    def _count(self, shard_id: str, code: str, error: type[errors.KinesisEfoError]) -> None:
        self._note(code)
        self._shards[shard_id].failures += 1
        if self._shards[shard_id].failures > self._max_retries:
            self._fatal(shard_id, f"{self._max_retries + 1} failures in a row, the last {code}", error)

    def _fatal(self, shard_id: str, why: str, error: type[errors.KinesisEfoError]) -> None:
        self.verdicts.append(Verdict(self.now(), shard_id, error, why))

    def _note(self, code: str) -> None:
        self.faults[code] = self.faults.get(code, 0) + 1


class WatchedTransport:
    """A transport that reports to an oracle.

    Args:
        inner: The transport that does the work.
        oracle: Receives every call, event and error.
    """

    def __init__(self, inner: Transport, oracle: Oracle) -> None:
        self._inner = inner
        self._oracle = oracle

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position, room: Quota) -> WatchedEvents:
        self._oracle.called(shard_id)
        asked = self._oracle.now()
        try:
            events = await self._inner.subscribe(stream, shard_id, position, room)
        except asyncio.CancelledError:
            if self._oracle.now() - asked >= OPENING - EPSILON:
                self._oracle.silent(shard_id)
            raise
        except Exception as error:
            self._oracle.error(shard_id, error, position)
            raise
        self._oracle.opened(shard_id)
        return WatchedEvents(events, shard_id, self._oracle)


class WatchedEvents:
    """The events of one subscription, reported to the oracle."""

    def __init__(self, inner: EventStream, shard_id: str, oracle: Oracle) -> None:
        self._inner = inner
        self._events = aiter(inner)
        self._shard_id = shard_id
        self._oracle = oracle
        self._opened = self._asked = oracle.now()
        self._last: float | None = None
        self._closed_by_us = False

    @property
    def received(self) -> int:
        return self._inner.received

    def close(self) -> None:
        self._closed_by_us = True
        self._inner.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        oracle = self._oracle
        self._asked = oracle.now()
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self._ended(None)
            raise
        except NoRoom:
            raise  # neither Kinesis' fault nor an end
        except Exception as error:
            self._ended(error)
            raise
        self._last = oracle.now()
        oracle.event(self._shard_id, event.payload)
        return event

    def _ended(self, error: Exception | None) -> None:
        oracle = self._oracle
        if self._closed_by_us:
            # The library closes a subscription that it reads after 35 s without a byte, and one that it does not read for want of
            # capacity.
            if oracle.now() - self._asked >= SILENCE - EPSILON:
                oracle.silent(self._shard_id)
        elif error is not None:
            oracle.error(self._shard_id, error)
        else:
            oracle.ended(self._shard_id, self._opened, self._last)


def _code(error: Exception) -> str:
    if isinstance(error, ClientError):
        return str(error.response["Error"]["Code"])
    return type(error).__name__


def _is_valid(payload: bytes) -> bool:
    try:
        event: Any = json.loads(payload)
    except ValueError:
        return False
    return (not event.get("ContinuationSequenceNumber")) == bool(event.get("ChildShards"))
