"""The status of subscriptions, shards and queries. Fetchers report it to the run, and the run reports it to tools."""

from __future__ import annotations

import base64
import ssl
import zlib
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.positions import ShardKey

if TYPE_CHECKING:
    from kinesis_efo.kinesis.stats import SubscriptionStats

_PackedAccess: TypeAlias = tuple[str, int, tuple[str, ...], bytes | None, str]

STATUS: Final = "status"
"""Name of the service action that returns the status of a run."""


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """The state of a shard's current subscription, and totals of all its subscriptions so far."""

    state: str  # The value of a `kinesis.stats.State`
    opened: int  # Number of subscriptions opened so far
    failures: int  # Number of errors so far
    arrived: int  # Received bytes
    age: float | None = None  # Seconds from the last event to the report; None before the first event
    records: int | None = None  # Received Kinesis records; None if the run has an earlier library version

    @classmethod
    def of(cls, stats: SubscriptionStats, now: float) -> Subscription:
        """Create a `Subscription` from a shard's statistics, at `now` (monotonic seconds)."""
        failures = sum(stats.failures.values())
        return cls(stats.state.value, stats.opened, failures, stats.bytes, stats.silence(now), stats.records)


class ShardStatus(msgspec.Struct, frozen=True, array_like=True):
    """The status of one shard.

    Attributes:
        stream: Logical name of the shard's stream.
        fetched: The position up to which the shard was fetched.
        buffered: Bytes that were fetched and not yet processed.
        records: Kinesis records in these bytes.
        waiting: Seconds since the oldest unprocessed record was fetched; None if all were processed.
        behind: By how many milliseconds the fetched position is behind the shard's tip; None if unknown.
        fetcher: The shard's fetcher, as `<number> on <host>`; None in a run with a single fetcher.
        subscription: The state of the shard's subscription; None if unknown.
        done: The position up to which the slowest query has processed the shard; None if unknown.
        query: The slowest query's number; None in a run with a single query.
        oldest: Milliseconds since the oldest unprocessed record arrived in the stream; None if all were processed, or in earlier versions.
    """

    stream: str
    shard: str
    fetched: str
    buffered: int
    records: int
    waiting: float | None
    behind: int | None
    fetcher: str | None = None
    subscription: Subscription | None = None
    done: str | None = None
    query: int | None = None
    oldest: int | None = None

    @property
    def key(self) -> ShardKey:
        return ShardKey(self.stream, self.shard)

    @property
    def millis(self) -> int | None:
        """The shard's lag in milliseconds: the age of the oldest unprocessed record, counted from its arrival in the stream.

        >>> ShardStatus("orders", "shardId-000000000000", "AFTER:7", 5_000, 10, waiting=1.5, behind=200, oldest=142_000).millis
        142000
        >>> ShardStatus("orders", "shardId-000000000000", "AFTER:7", 5_000, 10, waiting=1.5, behind=200).millis
        1700
        """
        if self.behind is None:
            return self.oldest
        waiting = round(1000 * (self.waiting or 0.0))
        return self.behind + waiting if self.oldest is None else max(self.behind, self.oldest)


class QueryShard(msgspec.Struct, frozen=True, array_like=True):
    """The progress of one query in one shard."""

    stream: str
    shard: str
    done: str  # The position up to which the query has processed the shard
    records: int  # Kinesis records fetched after `done`. There may be more in the shard while the query is catching up
    bytes: int  # Size of these records' events
    millis: int | None  # The query's lag behind the tip in milliseconds; None if unknown
    held: int = 0  # Bytes in the shared buffer that are retained only for this query
    apart: bool = False  # Whether the query is catching up in this shard with separate GetRecords calls


class QueryStatus(msgspec.Struct, frozen=True):
    """The status of one query of a run.

    Attributes:
        number: The query's number in the run: queries are numbered in the order in which they join.
        streams: Logical names of the query's streams.
        checkpoint: The id of the query's Spark checkpoint, taken from its offsets; None before the first micro-batch.
        millis: The query's lag in milliseconds, in the shard with the largest lag (`shard` of `stream`); None if unknown for all shards.
        records: Kinesis records fetched for the query and not yet processed; `bytes` is the size of their events.
        records_done: Kinesis records in completed micro-batches that were planned since the query joined; `bytes_done` is their size.
        held: Bytes in shared buffers that are retained only for this query.
        apart: The number of shards in which the query is catching up with GetRecords.
        calls: The number of the query's GetRecords responses; `arrived` is their total size in bytes.
        shards: The progress in each shard, if requested.
        name: The query's name in Spark; None if unnamed or unknown.
    """

    number: int
    streams: list[str]
    checkpoint: str | None = None
    millis: int | None = None
    stream: str | None = None
    shard: str | None = None
    records: int = 0
    bytes: int = 0
    records_done: int = 0
    bytes_done: int = 0
    held: int = 0
    apart: int = 0
    calls: int = 0
    arrived: int = 0
    shards: list[QueryShard] | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The query's name in log lines and messages.

        >>> QueryStatus(2, ["orders"], "7c1f09ab").label
        'query 2 (checkpoint 7c1f09ab)'
        >>> QueryStatus(2, ["orders"], "7c1f09ab", name="archive").label
        'query archive'
        """
        if self.name is not None:
            return f"query {self.name}"
        return f"query {self.number}" + ("" if self.checkpoint is None else f" (checkpoint {self.checkpoint})")


class StatusRequest(msgspec.Struct, frozen=True):
    """Requests the status of a run. `query_shards`: include each query's progress by shard if there are several queries."""

    query_shards: bool = False


class RunStatus(msgspec.Struct, frozen=True):
    at: float  # The time of the status, epoch seconds by the run's clock
    shards: list[ShardStatus]
    room: int = 0  # Bytes that the run's fetchers may buffer
    cpu: float = 0.0  # CPU seconds of the run's process, including a fetcher that runs in it
    queries: list[QueryStatus] = []  # Status of each query; empty if there is only one query and it is not catching up


_MOST_ACCESS: Final = 64 << 10
"""Maximum decompressed bytes of a stored `StatusAccess`, which anyone with write access to the lease table may have forged."""


class StatusAccess(msgspec.Struct, frozen=True):
    """How tools reach a run: the address of its service, and a secret for status requests only.

    Stored in the run's lease rows. Read access to the lease table therefore gives access to the run's status, but not to its data.
    """

    address: FetcherAddress
    token: str

    def to_text(self) -> str:
        """Encode the access for the run's lease rows. It is compressed, because a row of over 1 KB costs twice as much to renew."""
        address, pem = self.address, self.address.certificate
        der = None if pem is None else ssl.PEM_cert_to_DER_cert(pem)
        packed = (address.namespace, address.port, address.hosts, der, self.token)
        return base64.b64encode(zlib.compress(msgspec.msgpack.encode(packed), 9)).decode()

    @classmethod
    def parse(cls, text: str) -> StatusAccess:
        """Decode the result of `to_text`, read from a lease row. Raises `ValueError` if it is invalid."""
        try:
            inflating = zlib.decompressobj()
            packed = inflating.decompress(base64.b64decode(text, validate=True), _MOST_ACCESS)
            if not inflating.eof:
                raise ValueError("not a valid status access: it is cut off, or unpacks to too many bytes")
            namespace, port, hosts, der, token = msgspec.msgpack.decode(packed, type=_PackedAccess)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(f"not a valid status access: {error}") from None
        pem = None if der is None else ssl.DER_cert_to_PEM_cert(der)
        return cls(FetcherAddress(namespace, port, hosts, pem), token)
