"""Injects the faults of a script into the local Kinesis."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from h2.errors import ErrorCodes

from kinesis_efo_local import AwsError, Close, Finish, NoFaults, Pause, Request, Reset
from kinesis_efo_local.consumers import Subscription
from kinesis_efo_local.fault_injection import Freeze, GoAway, ResetStream, Step
from kinesis_efo_local.tokens import open_token
from kinesis_efo_local.wire import event_frame, exception_frame
from tests.emulator.script import BROKEN, SLOW, Fault

STATUS = {"InternalFailure": 500, "InternalFailureException": 500, "ServiceUnavailable": 503}
MESSAGES = {
    "ResourceInUseException: too soon": "Another active subscription exists for this consumer: 123456789012:dev-orders:lake",
    "ResourceInUseException: not active": "Consumer arn is not ACTIVE, instead in state CREATING",
    "AccessDeniedException": "User: arn:aws:sts::123456789012:assumed-role/job/me is not authorized to perform: "
    "kinesis:SubscribeToShard on resource",
}
CHILDREN = [
    {
        "ShardId": "shardId-000000000099",
        "ParentShards": ["shardId-000000000000"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
]


class ScriptedFaults(NoFaults):
    """Injects the faults of a script.

    Args:
        script: The faults, in order of time.
        now: Returns the seconds since the start.

    Attributes:
        strikes: The faults injected so far, each with its time in seconds since the start.
        refused: How many of the next calls of an operation are refused, and with which code.
    """

    def __init__(self, script: Sequence[Fault], now: Callable[[], float]) -> None:
        self._left = {index: fault.times for index, fault in enumerate(script)}
        self._script = script
        self._now = now
        self._held: dict[Subscription, bytes] = {}
        self.strikes: list[tuple[float, Fault]] = []
        self.refused: dict[str, tuple[int, str]] = {}

    @property
    def quiet_since(self) -> float:
        """When the last fault so far was over, seconds since the start."""
        return max((at + fault.seconds for at, fault in self.strikes), default=0.0)

    def __repr__(self) -> str:
        return "\n".join(f"{at:8.3f} {fault}" for at, fault in self.strikes)

    async def before(self, request: Request) -> None:
        left, code = self.refused.get(request.operation, (0, ""))
        if left:
            self.refused[request.operation] = left - 1, code
            raise AwsError(code, f"at start: {code}", STATUS.get(code, 400))
        if request.operation in ("GetShardIterator", "GetRecords"):
            await self._before_polling(request)
        if request.operation != "SubscribeToShard":
            return
        shard = int(request.params["ShardId"].rpartition("-")[2])
        consumer = request.params["ConsumerARN"].split("/")[-1].split(":")[0]
        if (slow := self._strike(shard, consumer, {"slow opening"})) is not None:
            await asyncio.sleep(slow.seconds)
        if (fault := self._strike(shard, consumer, {"refuse"})) is not None:
            code = fault.code.split(":")[0]
            raise AwsError(code, MESSAGES.get(fault.code, f"scripted: {fault.code}"), STATUS.get(code, 400))

    async def _before_polling(self, request: Request) -> None:
        """Refuse, break or delay a call of polling. The other faults strike events, which polling has none of."""
        token = open_token(request.params.get("ShardIterator", "")) or {}
        shard = int(request.params.get("ShardId", token.get("shard", "0")).rpartition("-")[2])
        fault = self._strike(shard, "polling", {"refuse", "exception", *BROKEN, *SLOW})
        if fault is None or "ResourceInUse" in fault.code:
            return
        if fault.code:
            raise AwsError(fault.code, f"scripted: {fault.code}", STATUS.get(fault.code, 400))
        if fault.kind in BROKEN:
            raise ConnectionResetError(fault.kind)
        await asyncio.sleep(fault.seconds)

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        shard, consumer = subscription.shard.index, subscription.consumer.name
        if b"initial-response" in frame[:200]:
            slow = self._strike(shard, consumer, {"slow first byte"})
            return [frame] if slow is None else [Pause(slow.seconds), frame]
        if b":exception-type" in frame[:200]:
            return [frame]
        held = self._held.pop(subscription, b"")
        fault = self._strike(shard, consumer, None)
        if fault is None:
            return [held + frame]
        if fault.kind == "joined" and subscription.shard.tip > subscription.cursor:
            # Held back, because the next event follows at once.
            self._held[subscription] = held + frame
            return []
        steps = changed(fault, frame, subscription)
        return [held, *steps] if held else steps

    def _strike(self, shard: int, consumer: str, kinds: set[str] | None) -> Fault | None:
        now = self._now()
        for index, fault in enumerate(self._script):
            if fault.at > now:
                return None
            if not self._left[index] or fault.shard not in (None, shard) or fault.consumer not in (None, consumer):
                continue
            if fault.kind in kinds if kinds else fault.kind not in ("refuse", "slow opening", "slow first byte"):
                self._left[index] -= 1
                self.strikes.append((now, fault))
                return fault
        return None


def changed(fault: Fault, frame: bytes, subscription: Subscription) -> list[Step]:
    """The steps that write a frame with a fault."""
    half = len(frame) // 2
    match fault.kind:
        case "exception":
            return [exception_frame(AwsError(fault.code, f"scripted: {fault.code}")), Finish()]
        case "reset":
            return [Reset()]
        case "close":
            return [Close()]
        case "finish":
            return [Finish()]
        case "half and reset":
            return [frame[:half], Reset()]
        case "half and close":
            return [frame[:half], Close()]
        case "half and finish":
            return [frame[:half], Finish()]
        case "wrong checksum":
            return [frame[:-1] + bytes([frame[-1] ^ 1])]
        case "wrong prelude":
            return [bytes([frame[0] ^ 1]) + frame[1:]]
        case "no JSON":
            return [event_frame(b"<html>")]
        case "continuation and children":
            return [_rewritten(frame, ContinuationSequenceNumber="1", ChildShards=CHILDREN)]
        case "neither continuation nor children":
            return [_rewritten(frame, ContinuationSequenceNumber=None, ChildShards=[])]
        case "bytewise":
            return [bytes([byte]) for byte in frame[:500]] + [frame[500:]]
        case "duplicate":
            return [frame, frame]
        case "empty with lag" | "empty at the tip":
            if subscription.continuation is None:
                return [frame]
            lag = 60_000 if fault.kind == "empty with lag" else 0
            empty = {"ContinuationSequenceNumber": subscription.continuation, "MillisBehindLatest": lag, "Records": []}
            return [event_frame(json.dumps(empty).encode()), frame]
        case "stream reset":
            return [ResetStream()]
        case "stream refused":
            return [ResetStream(ErrorCodes.REFUSED_STREAM)]
        case "goodbye":
            return [GoAway(), frame]
        case "goodbye at once":
            return [GoAway(ErrorCodes.ENHANCE_YOUR_CALM, grace=False)]
        case "freeze":
            return [frame[:half], Freeze(fault.seconds), frame[half:]]
        case "stall":
            return [frame[:half], Pause(fault.seconds), frame[half:]]
    return [frame]


def _rewritten(frame: bytes, **fields: Any) -> bytes:
    headers = int.from_bytes(frame[4:8], "big")
    return event_frame(json.dumps(json.loads(frame[12 + headers : -4]) | fields).encode())
