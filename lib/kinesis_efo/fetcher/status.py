"""How shards are read: what fetchers tell the planner, and the planner tells tools. Pure."""

from __future__ import annotations

import base64
import ssl
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from kinesis_efo.fetcher.address import FetcherAddress
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
        done: The position up to which it is processed; None if that is not known.
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


class StatusRequest(msgspec.Struct, frozen=True):
    """Asks a run how it reads its shards."""


class RunStatus(msgspec.Struct, frozen=True):
    """How a run reads its shards.

    Attributes:
        at: When that was so, epoch seconds by the run's own clock.
        shards: Its shards.
        room: Bytes that its fetchers may buffer.
        cpu: CPU time that the process of the planner has used so far, seconds; if nobody else fetches, it is the fetcher's, too.
    """

    at: float
    shards: list[ShardStatus]
    room: int = 0
    cpu: float = 0.0


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
        packed = _Packed(
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
            packed = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text, validate=True)), type=_Packed)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(f"not the access to a status: {error}") from None
        pem = None if packed.certificate is None else ssl.DER_cert_to_PEM_cert(packed.certificate)
        return cls(FetcherAddress(packed.namespace, packed.port, packed.hosts, pem), packed.token)


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    port: int
    hosts: tuple[str, ...]
    certificate: bytes | None
    token: str
