"""How shards are read: what fetchers tell the planner, and the planner tells tools. Pure."""

from __future__ import annotations

import base64
import ssl
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.positions import ShardKey

if TYPE_CHECKING:
    from kinesis_efo.kinesis.stats import SubscriptionStats

STATUS: Final = "status"
"""The action that tells how a run reads its shards."""


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """What happened to the subscriptions of a shard.

    Attributes:
        state: What the present one is doing, a `kinesis.stats.State`.
        opened: How many were opened.
        failures: How many failed.
        arrived: Bytes that they brought.
        age: Seconds since the last event, when this was told; None before the first.
        records: Kinesis records that they brought; None if the run is of a version that does not tell.
    """

    state: str
    opened: int
    failures: int
    arrived: int
    age: float | None = None
    records: int | None = None

    @classmethod
    def of(cls, stats: SubscriptionStats, now: float) -> Subscription:
        """The message for a shard's counts, at a monotonic time in seconds."""
        failures = sum(stats.failures.values())
        return cls(stats.state.value, stats.opened, failures, stats.bytes, stats.silence(now), stats.records)


class ShardStatus(msgspec.Struct, frozen=True, array_like=True):
    """How one shard is read.

    Attributes:
        stream: Logical name of its stream.
        shard: Shard id.
        fetched: The position up to which it was fetched.
        buffered: Bytes fetched and not yet processed.
        records: Kinesis records in them.
        waiting: For how long the oldest of these records waits to be processed, seconds; None if none waits.
        behind: How far behind the tip the last event was, milliseconds, with the silence since if that is longer than usual; None before
            the first.
        fetcher: Which fetcher reads it, as `<number> on <host>`; None if there is only one.
        subscription: What happened to its subscriptions; None if that is not known yet.
        done: The position up to which it is processed; None if that is not known. If several queries read it: by the slowest of them.
        query: The number of that query; None if there is only one.
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

    @property
    def key(self) -> ShardKey:
        """The shard."""
        return ShardKey(self.stream, self.shard)

    @property
    def millis(self) -> int | None:
        """How far behind the tip processing is, milliseconds: what was fetched counts for as long as it waits.

        >>> ShardStatus("orders", "shardId-000000000000", "AFTER:7", 5_000, 10, waiting=1.5, behind=200).millis
        1700
        """
        return None if self.behind is None else self.behind + round(1000 * (self.waiting or 0.0))


class QueryShard(msgspec.Struct, frozen=True, array_like=True):
    """Where one of several queries of a run is in one shard.

    Attributes:
        stream: Logical name of its stream.
        shard: Shard id.
        done: The position up to which the query has processed it.
        records: Kinesis records fetched behind this position; if the query reads apart, more of them may be unread.
        bytes: Bytes of the events that have them.
        millis: How far behind the tip the query is, milliseconds; None if that is not known.
        held: Bytes of the shared buffer that are kept for it.
        apart: Whether it reads the shard apart from the other queries.
    """

    stream: str
    shard: str
    done: str
    records: int
    bytes: int
    millis: int | None
    held: int = 0
    apart: bool = False


class QueryStatus(msgspec.Struct, frozen=True):
    """How one of several queries of a run does.

    Attributes:
        number: Tells it from the others, in the order in which they joined the run.
        streams: Logical names of what it reads.
        checkpoint: The id that its offsets carry, as in Spark's checkpoint; None before it has begun.
        millis: How far behind the tip its worst shard is, milliseconds; None if that is known of none.
        stream: That shard's stream.
        shard: That shard's id.
        records: Kinesis records fetched for it that it has not processed.
        bytes: Bytes of the events that have them.
        records_done: Kinesis records that it has processed since it joined, in micro-batches that were planned since.
        bytes_done: Bytes of their events.
        held: Bytes of the shared buffer that are kept for it.
        apart: The number of shards that it reads apart from the other queries, with GetRecords.
        calls: Answers that it got there.
        arrived: Bytes of these answers.
        shards: Each of its shards, if that was asked for.
        name: Its name in Spark; None if it has none, or that is not known.
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
        """Names it in texts.

        >>> QueryStatus(2, ["orders"], "7c1f09ab").label
        'query 2 (checkpoint 7c1f09ab)'
        >>> QueryStatus(2, ["orders"], "7c1f09ab", name="archive").label
        'query archive'
        """
        if self.name is not None:
            return f"query {self.name}"
        return f"query {self.number}" + ("" if self.checkpoint is None else f" (checkpoint {self.checkpoint})")


class StatusRequest(msgspec.Struct, frozen=True):
    """Asks a run how it reads its shards.

    Attributes:
        query_shards: Whether each shard of each of several queries is to be told.
    """

    query_shards: bool = False


class RunStatus(msgspec.Struct, frozen=True):
    """How a run reads its shards.

    Attributes:
        at: When that was so, epoch seconds by the run's own clock.
        shards: Its shards.
        room: Bytes that its fetchers may buffer.
        cpu: CPU time that the process of the planner has used so far, seconds; if nobody else fetches, it is the fetcher's, too.
        queries: Its queries, if there are several; or the last one that is left, while it still reads apart.
    """

    at: float
    shards: list[ShardStatus]
    room: int = 0
    cpu: float = 0.0
    queries: list[QueryStatus] = []


class StatusAccess(msgspec.Struct, frozen=True):
    """How tools ask a run. Its row in the lease table says so: whoever may read the table may ask, and learns no data.

    Attributes:
        address: Where it serves.
        token: What the caller has to know; it opens nothing else.
    """

    address: FetcherAddress
    token: str

    def to_text(self) -> str:
        """The text for the row. It is packed: a row of over 1 KB costs twice as much to renew."""
        address, pem = self.address, self.address.certificate
        packed = _PackedAccess(
            address.namespace,
            address.port,
            address.hosts,
            None if pem is None else ssl.PEM_cert_to_DER_cert(pem),
            self.token,
        )
        return base64.b64encode(zlib.compress(msgspec.msgpack.encode(packed), 9)).decode()

    @classmethod
    def parse(cls, text: str) -> StatusAccess:
        """Read the text of a row.

        Raises:
            ValueError: It is none.
        """
        try:
            packed = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text, validate=True)), type=_PackedAccess)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(f"not the access to a status: {error}") from None
        pem = None if packed.certificate is None else ssl.DER_cert_to_PEM_cert(packed.certificate)
        return cls(FetcherAddress(packed.namespace, packed.port, packed.hosts, pem), packed.token)


class _PackedAccess(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    port: int
    hosts: tuple[str, ...]
    certificate: bytes | None
    token: str
