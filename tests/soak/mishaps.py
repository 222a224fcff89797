"""Injects a fault every few seconds into what is in use: events, and calls of reader, leases and producer.

No fault loses, doubles or reorders a record in the stream: a refused PutRecords has written nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from kinesis_efo_local import AwsError, NoFaults, Request
from kinesis_efo_local.fault_injection import Step
from tests.emulator.faults import changed
from tests.emulator.script import BROKEN, EXCEPTIONS, HTTP2, Fault

FRAME: Final = "an event"
FRAMES: Final = (*BROKEN, *HTTP2, "stall", "bytewise", "duplicate", "empty with lag", "empty at the tip", *EXCEPTIONS)
CALLS: Final = ("slow", "InternalFailure", "ServiceUnavailable")
THROTTLED: Final = "ProvisionedThroughputExceededException"
KINDS: Final = {
    FRAME: FRAMES,
    "SubscribeToShard": (*CALLS, "LimitExceededException", "KMSThrottlingException", "ResourceInUseException"),
    "GetShardIterator": (*CALLS, THROTTLED),
    "GetRecords": (*CALLS, THROTTLED, "ExpiredIteratorException", "KMSThrottlingException"),
    "ListShards": (*CALLS, "LimitExceededException"),
    "UpdateItem": ("slow", "InternalServerError", THROTTLED),
    "PutRecords": (*CALLS, "KMSThrottlingException"),
}
WEIGHTS: Final = {FRAME: 6, "SubscribeToShard": 3, "GetRecords": 3}
OUTAGE_SECONDS: Final = 2.5
"""How long the lease table is throttled; less than the lease timeout."""

_STATUS: Final = {"InternalFailure": 500, "InternalServerError": 500, "ServiceUnavailable": 503}
_WAIT_SECONDS: Final = 2.0
_RECENT_SECONDS: Final = 10.0
_TAKEN: Final = "Another active subscription exists for this consumer: soak"


class Mishaps(NoFaults):
    """Injects faults into the local AWS.

    Args:
        random: Determines the faults and their times.
        every: Seconds between two faults, on average.
        clock: Returns monotonic seconds.

    Attributes:
        struck: Number of faults so far, by (target, kind).
    """

    def __init__(self, random: Random, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.struck: Counter[tuple[str, str]] = Counter()
        self._random = random
        self._every = every
        self._clock = clock
        self._out_until = 0.0
        self._seen: dict[str, float] = {}
        self._aim()

    def _aim(self) -> None:
        now = self._clock()
        recent = [target for target in KINDS if self._seen.get(target, 0.0) > now - _RECENT_SECONDS] or list(KINDS)
        self._target = self._random.choices(recent, [WEIGHTS.get(target, 1) for target in recent])[0]
        self._kind = self._random.choice(KINDS[self._target])
        self._due = now + self._random.uniform(0.5, 1.5) * self._every

    def strikes(self, target: str) -> str | None:
        now = self._seen[target] = self._clock()
        if now > self._due + _WAIT_SECONDS:
            # The target is not in use any more.
            self._aim()
            self._due = now
        if target != self._target or now < self._due:
            return None
        kind = self._kind
        self.struck[target, kind] += 1
        self._aim()
        return kind

    async def before(self, request: Request) -> None:
        """See `FaultInjection`."""
        if request.operation == "UpdateItem" and self._clock() < self._out_until:
            raise AwsError(THROTTLED, "soak")
        if request.operation not in KINDS or (kind := self.strikes(request.operation)) is None:
            return
        if kind == "slow":
            await asyncio.sleep(self._random.uniform(0.5, 3.0))
            return
        if request.operation == "UpdateItem" and kind == THROTTLED:
            self._out_until = self._clock() + OUTAGE_SECONDS
        raise AwsError(kind, _TAKEN if kind == "ResourceInUseException" else "soak", _STATUS.get(kind, 400))

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        """See `FaultInjection`."""
        if not subscription.events or (kind := self.strikes(FRAME)) is None:
            return (frame,)
        if kind in EXCEPTIONS:
            return changed(Fault("exception", 0, code=kind), frame, subscription)
        return changed(Fault(kind, 0, seconds=self._random.choice((1.0, 10.0, 50.0))), frame, subscription)
