"""A stream as a writer meets it, at the level of request bodies: shards with limits, faults and reshards that a seed planned.

It shares no code with the producer, and unpacks aggregates with AWS' own message classes.
"""

import asyncio
import json
import re
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

from aws_kinesis_agg.aggregator import messages_pb2
from botocore.exceptions import ClientError, CredentialRetrievalError, EndpointConnectionError

from kinesis_efo.raw_bodies import RAW_BODY

RING = 1 << 128
MAGIC = b"\xf3\x89\x9a\xc2"
PLAIN = re.compile(r"0|([1-9]\d{0,38})")
"""The pattern of a hash key in AWS' model."""
THROTTLED = "ProvisionedThroughputExceededException"


@dataclass
class Shard:
    name: str
    start: int
    end: int
    open: bool = True
    second: int = 0
    used: int = 0
    failed_at: list[float] = field(default_factory=list)
    """When it refused a record, or a request with its records failed, since it last took one."""


@dataclass(frozen=True)
class Outage:
    """A period in which requests, or the records for one shard, fail."""

    start: float
    end: float
    kind: str
    shard: int = 0


class WrittenStream:
    def __init__(self, random: Random, now: Callable[[], float], begin: float) -> None:
        self.random = random
        self.now = now
        count = random.randint(1, 4)
        self.shards = _shards(count)
        self.limit = 4096
        self.auto = random.random() < 0.1
        self.rate = random.choice([3, 20, 1_000, 1_000])
        self.seen: list[bytes] = []
        """The data that a KCL reader gets, in the order in which it was written."""
        self.lost: Counter[bytes] = Counter()
        """How often the answer was lost after a record was written."""
        self.taken: Counter[bytes] = Counter()
        """How often it was acknowledged, and each reader gets it."""
        self.taken_at: dict[bytes, float] = {}
        self.places: dict[bytes, set[str]] = defaultdict(set)
        """The shards to which it was written."""
        self.unkeyed_from: int | None = 0 if self.auto else None
        """How many records were written before Kinesis distributed records itself for the first time."""
        self.progress_at: list[float] = []
        """When a request was answered in which a shard took something."""
        self.end = begin + 30
        self.outages: list[Outage] = []
        for _ in range(random.randint(0, 4)):
            start = begin + random.uniform(0, 20)
            kind = random.choice(
                ["shard", "shard", "records", "poison", "request", "lost", "unreachable", "key", "lists"]
            )
            if kind == "key" and random.random() < 0.7:
                kind = "shard"
            lasts = random.choice([0.5, 3.0, 15.0, 60.0])
            self.outages.append(Outage(start, start + lasts, kind, random.randrange(count)))
        self.changes: list[tuple[float, str]] = sorted(
            (begin + random.uniform(0, 25), random.choice(["split", "split", "limit", "limit", "mode"]))
            for _ in range(random.randint(0, 3))
        )
        self.smallest = 2048 if any(what == "limit" for _, what in self.changes) else self.limit
        self.gone = inf, inf
        """When it is deleted, and when it is created again, with other shards."""
        if random.random() < 0.2:
            start = begin + random.uniform(1, 12)
            self.gone = start, start + random.uniform(10, 15)
        self.renewed = False
        """Whether the SDK has new credentials in the place of expired ones."""
        self.created = 1
        self.resharded_at = inf
        self.lists_failed = False
        self.lists_failed_at: list[float] = []
        self.failures: list[tuple[float, int, int]] = []
        """When the records of a range of hash keys were refused."""
        self.first_sent: dict[bytes, tuple[float, int]] = {}
        """When a record was sent first, and its hash."""
        self.requests: list[list[float]] = []
        """When each request began and ended."""
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))

    def only_one_fails(self, begin: float, lasts: float) -> None:
        """Let one of three shards fail for some time, and nothing else."""
        self.shards = _shards(3)
        self.outages, self.changes, self.gone = [Outage(begin, begin + lasts, "shard")], [], (inf, inf)
        self.smallest, self.rate, self.auto, self.unkeyed_from = self.limit, 1_000, False, None

    # -- the calls

    async def put_records(self, Records: bytes, **_: Any) -> dict[str, Any]:
        entries = json.loads(Records)["Records"]
        for entry in entries:
            for key, hash_key, data in unpacked(entry, b64decode(entry["Data"])):
                self.first_sent.setdefault(data, (self.now(), hash_of(key, hash_key)))
        self.requests.append(times := [self.now(), inf])
        try:
            await self._sign(entries)
            return await self._answer(entries)
        finally:
            times[1] = self.now()

    async def _sign(self, entries: list[dict[str, str]]) -> None:
        """Fail if the credentials cannot be had, or have expired and no answer said so yet."""
        if self._now_in("credentials") is not None:
            await asyncio.sleep(0.02)
            self._fails(entries)
            raise CredentialRetrievalError(provider="iam-role", error_msg="x")
        if not self.renewed and self._now_in("expired") is not None:
            await asyncio.sleep(3.0)
            self._fails(entries)
            self.renewed = True
            raise refusal("ExpiredTokenException", 400)

    async def _answer(self, entries: list[dict[str, str]]) -> dict[str, Any]:
        await asyncio.sleep(self.random.choice([0.001, 0.02, 0.3]))
        stored: list[bytes] = []
        readable: list[bytes] = []
        taken: list[Shard] = []
        answer = self._carry_out(entries, stored, readable, taken)
        lost = self._now_in("lost") is not None and self.random.random() < 0.6
        await asyncio.sleep(self.random.choice([0.001, 0.02, 0.3]))
        if lost:
            self.lost.update(stored)
            self._fails(entries)
            raise EndpointConnectionError(endpoint_url="https://kinesis")
        self.taken.update(readable)
        self.taken_at.update(dict.fromkeys(readable, self.now()))
        for shard in taken:
            shard.failed_at = []
        if taken:
            self.progress_at.append(self.now())
        return {RAW_BODY: json.dumps({"Records": answer}).encode()}

    async def list_shards(self, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self._change()
        if self.requests and self._now_in("lists", "unreachable") is not None:
            self.lists_failed = True
            self.lists_failed_at.append(self.now())
            raise EndpointConnectionError(endpoint_url="https://kinesis")
        self.lists_failed_at = []
        return {
            "Shards": [
                {
                    "ShardId": shard.name,
                    "HashKeyRange": {"StartingHashKey": str(shard.start), "EndingHashKey": str(shard.end)},
                    "SequenceNumberRange": {"StartingSequenceNumber": str(self.created)}
                    | ({} if shard.open else {"EndingSequenceNumber": "2"}),
                }
                for shard in self.shards
            ]
        }

    async def describe_stream_summary(self, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self._change()
        how = "AUTO" if self.auto else "USER_PARTITION_KEY"
        return {
            "StreamDescriptionSummary": {
                "MaxRecordSizeInKiB": self.limit >> 10,
                "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
                "RecordDistributionStrategy": how,
            }
        }

    # -- parts

    def _now_in(self, *kinds: str) -> Outage | None:
        now = self.now()
        return next((one for one in self.outages if one.kind in kinds and one.start <= now < one.end), None)

    def _change(self) -> None:
        start, end = self.gone
        if self.requests and start <= self.now() < end:
            raise refusal("ResourceNotFoundException", 400)
        if end <= self.now() and self.created == 1:
            self.created = 2
            self.resharded_at = min(self.resharded_at, self.now())
            failed_at = max((shard.failed_at for shard in self.shards), key=len)
            self.shards = _shards(self.random.randint(1, 4), failed_at)
        while self.changes and self.changes[0][0] <= self.now():
            _, what = self.changes.pop(0)
            if what == "limit":
                self.limit = self.smallest
            elif what == "mode":
                self.auto = not self.auto
                if self.unkeyed_from is None:
                    self.unkeyed_from = len(self.seen)
            else:
                parent = self.random.choice([shard for shard in self.shards if shard.open])
                parent.open = False
                self.resharded_at = min(self.resharded_at, self.now())
                middle = (parent.start + parent.end) // 2
                for start, end in ((parent.start, middle), (middle + 1, parent.end)):
                    self.shards.append(
                        Shard(f"shardId-{len(self.shards):012d}", start, end, failed_at=list(parent.failed_at))
                    )

    def _carry_out(
        self, entries: list[dict[str, str]], stored: list[bytes], readable: list[bytes], taken: list[Shard]
    ) -> list[dict[str, str]]:
        self._change()
        if self._now_in("unreachable") is not None:
            self._fails(entries)
            raise EndpointConnectionError(endpoint_url="https://kinesis")
        if self._now_in("request") is not None and self.random.random() < 0.7:
            self._fails(entries)
            raise refusal("InternalFailure", 500)
        if self._now_in("key") is not None:
            raise refusal("KMSDisabledException", 400)
        if len(entries) > 500 or not entries:
            raise refusal("ValidationException", 400)
        decoded = [b64decode(entry["Data"]) for entry in entries]
        for entry, data in zip(entries, decoded, strict=True):
            key = entry.get("ExplicitHashKey")
            if key is not None and not (PLAIN.fullmatch(key) and int(key) < RING):
                raise refusal("ValidationException", 400)
            if len(data) + len(entry["PartitionKey"].encode()) > self.limit:
                raise refusal("InvalidArgumentException", 400)
        # Kinesis does not promise to write the records of a request in their order.
        order = list(range(len(entries)))
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        answers: dict[int, dict[str, str]] = {
            n: self._one(entries[n], decoded[n], stored, readable, taken) for n in order
        }
        return [answers[n] for n in range(len(entries))]

    def _fails(self, entries: list[dict[str, str]]) -> None:
        for shard in [self._place(entry) for entry in entries]:
            self._refuses(shard)
        self.failures.append((self.now(), 0, RING))

    def _refuses(self, shard: Shard) -> None:
        shard.failed_at.append(self.now())
        self.failures.append((self.now(), shard.start, shard.end))

    def _place(self, entry: dict[str, str]) -> Shard:
        opened = [shard for shard in self.shards if shard.open]
        place = hash_of(entry["PartitionKey"], entry.get("ExplicitHashKey"))
        return self.random.choice(opened) if self.auto else next(one for one in opened if one.start <= place <= one.end)

    def _one(
        self, entry: dict[str, str], data: bytes, stored: list[bytes], readable: list[bytes], taken: list[Shard]
    ) -> dict[str, str]:
        opened = [shard for shard in self.shards if shard.open]
        shard = self._place(entry)
        down = self._now_in("shard")
        if down is not None and opened.index(shard) == down.shard % len(opened):
            self._refuses(shard)
            return {"ErrorCode": "InternalFailure", "ErrorMessage": "x"}
        keys = {key for key, _, _ in unpacked(entry, data)}
        poison = self._now_in("poison")
        if poison is not None and f"0-{poison.shard}" in keys:
            self._refuses(shard)
            return {"ErrorCode": "InternalFailure", "ErrorMessage": "x"}
        if self._now_in("records") is not None and self.random.random() < 0.5:
            self._refuses(shard)
            return {"ErrorCode": "InternalFailure", "ErrorMessage": "x"}
        if shard.second != int(self.now()):
            shard.second, shard.used = int(self.now()), 0
        if shard.used >= self.rate:
            self._refuses(shard)
            return {"ErrorCode": THROTTLED, "ErrorMessage": "x"}
        shard.used += 1
        taken.append(shard)
        aggregate = data.startswith(MAGIC)
        inside = [
            one
            for key, hash_key, one in unpacked(entry, data)
            if not aggregate or shard.start <= hash_of(key, hash_key) <= shard.end
        ]
        self.seen += inside
        stored += inside
        for one in inside:
            self.places[one].add(shard.name)
        # The producer writes an aggregate of which readers drop a part again, as the page says.
        if len(inside) == len(unpacked(entry, data)):
            readable += inside
        return {"ShardId": shard.name, "SequenceNumber": "1"}


def _shards(count: int, failed_at: Sequence[float] = ()) -> list[Shard]:
    return [
        Shard(f"shardId-{n:012d}", RING * n // count, RING * (n + 1) // count - 1, failed_at=[*failed_at])
        for n in range(count)
    ]


def hash_of(key: str, hash_key: str | None) -> int:
    return int.from_bytes(md5(key.encode()).digest(), "big") if hash_key is None else int(hash_key)


def unpacked(entry: dict[str, str], data: bytes) -> list[tuple[str, str | None, bytes]]:
    """The records in an entry: partition key, explicit hash key, data."""
    if not data.startswith(MAGIC):
        return [(entry["PartitionKey"], entry.get("ExplicitHashKey"), data)]
    message = messages_pb2.AggregatedRecord()
    message.ParseFromString(data[4:-16])
    assert md5(data[4:-16]).digest() == data[-16:]
    return [
        (
            message.partition_key_table[one.partition_key_index],
            message.explicit_hash_key_table[one.explicit_hash_key_index]
            if one.HasField("explicit_hash_key_index")
            else None,
            one.data,
        )
        for one in message.records
    ]


def refusal(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutRecords"
    )
