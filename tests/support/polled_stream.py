"""GetShardIterator and GetRecords of a model stream, for tests in virtual time, with Kinesis' limits."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kinesis_efo.clock import Clock
from kinesis_efo.raw_bodies import RAW_BODY
from tests.support.model_stream import BEGAN_MS, ModelShard, ModelStream
from tests.support.transports import refused

ITERATOR_SECONDS = 300.0
_NAMES = "orders under account 123456789012"


class PolledClient:
    """The part of an aiobotocore client that `PollingTransport` uses.

    Args:
        stream: The stream.
        clock: Virtual time.

    Attributes:
        calls: Times of recent GetRecords, by shard.
        limits_asked: `Limit` of each GetRecords.
        opened: (time, shard id, request) of each GetShardIterator.
        refused: Number of calls that were refused because of the limits, by shard.
        faults: Called with the shard before each GetRecords is answered; may raise.
        lag: Milliseconds behind that answers without records tell, one after the other; the last one goes on. None: the truth.
        behind: Milliseconds behind that answers tell which leave something, for a shard and the number that they come to.
        gone: Numbers of records that are not there any more.
        stuck: Whether each answer gives back the iterator that was asked with.
    """

    def __init__(self, stream: ModelStream, clock: Clock) -> None:
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))
        self.calls: dict[str, deque[float]] = defaultdict(deque)
        self.limits_asked: list[int] = []
        self.opened: list[tuple[float, str, dict[str, Any]]] = []
        self.refused: Counter[str] = Counter()
        self.faults: Callable[[str], None] = lambda _: None
        self.lag: list[int] = []
        self.behind: Callable[[ModelShard, int], int] = lambda *_: 1000
        self.gone: set[int] = set()
        self.stuck = False
        self._stream = stream
        self._clock = clock
        self._busy_until: dict[str, float] = defaultdict(float)

    async def get_shard_iterator(self, **request: Any) -> dict[str, Any]:
        now, shard_id = self._clock.monotonic(), request["ShardId"]
        self.opened.append((now, shard_id, request))
        if shard_id not in self._stream.shards_by_id:
            message = f"Shard {shard_id} in stream {_NAMES} does not exist"
            raise refused("ResourceNotFoundException", message, operation="GetShardIterator")
        at = int(request.get("StartingSequenceNumber", 0))
        if "Timestamp" in request:
            at = round(request["Timestamp"].timestamp() * 1000) - BEGAN_MS - 1
        return {"ShardIterator": json.dumps([shard_id, at, now])}

    async def get_records(self, StreamARN: str, ShardIterator: str, Limit: int) -> dict[str, Any]:
        shard_id, at, issued = json.loads(ShardIterator)
        now = self._clock.monotonic()
        self._admit(shard_id, now)
        self.limits_asked.append(Limit)
        self.faults(shard_id)
        if now - issued > ITERATOR_SECONDS:
            message = (
                f"Iterator expired. The iterator was created at time {issued} while right now it is {now} which is further in the "
                f"future than the tolerated delay of {ITERATOR_SECONDS * 1000:.0f} milliseconds."
            )
            raise refused("ExpiredIteratorException", message, operation="GetRecords")
        shard = self._stream.shards_by_id[shard_id]
        records, size = [], 0
        for number, length in shard.records:
            if (
                number > at
                and number not in self.gone
                and len(records) < Limit
                and (size + length <= 10 << 20 or not records)
            ):
                records.append((number, length))
                size += length
        self._busy_until[shard_id] = now + size / (2 << 20)
        at = records[-1][0] if records else at
        left = any(number > at and number not in self.gone for number, _ in shard.records)
        ended = shard.last is not None and not left and not records
        body = {
            "Records": [self._stream.record(*record) for record in records],
            "MillisBehindLatest": self.behind(shard, at) if left else 0,
            "NextShardIterator": None if ended else json.dumps([shard_id, at, now]),
        }
        if ended:
            body["ChildShards"] = [
                {
                    "ShardId": child.shard_id,
                    "ParentShards": list(child.parents),
                    "HashKeyRange": {"StartingHashKey": str(child.hashes[0]), "EndingHashKey": str(child.hashes[1])},
                }
                for child in shard.children
            ]
        if not records and self.lag:
            body["MillisBehindLatest"] = self.lag.pop(0) if len(self.lag) > 1 else self.lag[0]
        if self.stuck and not ended:
            body["NextShardIterator"] = ShardIterator
        return {RAW_BODY: json.dumps(body).encode()}

    def _admit(self, shard_id: str, now: float) -> None:
        recent = self.calls[shard_id]
        # Five times 0.2 s is not exactly 1 s in floating point.
        while recent and recent[0] <= now - 1 + 1e-6:
            recent.popleft()
        if len(recent) >= 5 or now < self._busy_until[shard_id] - 1e-6:
            self.refused[shard_id] += 1
            message = f"Rate exceeded for shard {shard_id} in stream {_NAMES}."
            raise refused("ProvisionedThroughputExceededException", message, operation="GetRecords")
        recent.append(now)
