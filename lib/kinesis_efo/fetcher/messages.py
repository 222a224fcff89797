"""The messages between tasks and fetchers, and the form in which errors cross the wire.

They are JSON by msgspec, inside Arrow Flight actions and tickets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

import msgspec
import pyarrow as pa

from kinesis_efo import errors
from kinesis_efo.errors import FetcherError, KinesisEfoError, OptionsError
from kinesis_efo.positions import Position, ShardKey, ShardRange

PAYLOAD_SCHEMA: Final = pa.schema([pa.field("payload", pa.binary(), nullable=False)])
"""A `get` streams the JSON payloads of SubscribeToShard events as they came, one per row."""

UNCOPIED_BYTES: Final = 64 << 10
"""A payload of this size or more is sent alone and uncopied: one more batch costs as much as copying that."""

TOGETHER_BYTES: Final = 1 << 20
"""Smaller payloads are sent together, about this many bytes at a time: what fits into the processor's cache is fastest."""

SECRET_HEADER: Final = "x-kinesis-efo-secret"
"""The header that carries the secret of the run in every call."""


class GetTicket(msgspec.Struct, frozen=True):
    """Asks for the events that cover some ranges, one after the other. A task makes one call for all of them: each has its price.

    Attributes:
        ranges: Stream, shard, the two positions and the last record of each range; it is empty if none is known.
        query: The name of the query among those of its run.
    """

    # Sequence numbers have more digits than JSON numbers are trusted with.
    ranges: list[tuple[str, str, str, str, str]]
    query: str = ""

    @classmethod
    def of(cls, wanted: Iterable[ShardRange], query: str = "") -> GetTicket:
        """The ticket for some ranges of a query."""
        return cls(
            [
                (*key, str(after), str(through), "" if last is None else str(last))
                for key, after, through, last in wanted
            ],
            query,
        )

    def parsed(self) -> list[ShardRange]:
        """The ranges that a ticket asks for."""
        return [
            ShardRange(
                ShardKey(stream, shard), Position.parse(after), Position.parse(through), int(last) if last else None
            )
            for stream, shard, after, through, last in self.ranges
        ]


class RangeLabel(msgspec.Struct, frozen=True, array_like=True):
    """Tells which range a batch of a `get` belongs to.

    Attributes:
        index: Index of the range in the ticket.
        hashes: First and last hash key of the shard, as text, if the fetcher knows them.
    """

    index: int
    hashes: tuple[str, str] | None

    @classmethod
    def of(cls, index: int, hash_range: tuple[int, int] | None) -> RangeLabel:
        """The label of a range."""
        # Hash keys have 128 bits, more than JSON numbers are trusted with.
        return cls(index, None if hash_range is None else (str(hash_range[0]), str(hash_range[1])))

    @property
    def hash_range(self) -> tuple[int, int] | None:
        """The hash keys as numbers."""
        return None if self.hashes is None else (int(self.hashes[0]), int(self.hashes[1]))


def payload_batches(payloads: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Put payloads into batches to send, in order: large ones alone and uncopied, small ones together."""
    small: list[bytes] = []
    size = 0
    for payload in payloads:
        if len(payload) >= UNCOPIED_BYTES:
            if small:
                yield payload_batch(small)
                small, size = [], 0
            yield payload_batch([payload])
            continue
        small.append(payload)
        size += len(payload)
        if size >= TOGETHER_BYTES:
            yield payload_batch(small)
            small, size = [], 0
    if small:
        yield payload_batch(small)


def payload_batch(payloads: list[bytes]) -> pa.RecordBatch:
    """One batch with these payloads."""
    # pa.array() would import pandas where it is installed: half a second and 40 MB, for nothing.
    offsets = array("i", accumulate(map(len, payloads), initial=0))
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    column = pa.Array.from_buffers(pa.binary(), len(payloads), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.record_batch([column], schema=PAYLOAD_SCHEMA)


class _Failure(msgspec.Struct):
    kind: str
    message: str


def pack_error(error: KinesisEfoError) -> bytes:
    """Encode an error of this library, to be sent along with Flight's own."""
    return msgspec.json.encode(_Failure(type(error).__name__, str(error)))


def unpack_error(data: bytes) -> KinesisEfoError:
    """Decode what `pack_error` encoded, to an error of the same type."""
    try:
        failure = msgspec.json.decode(data, type=_Failure)
    except msgspec.MsgspecError:
        return FetcherError(f"the fetcher failed without saying why: {data[:200]!r}")
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, KinesisEfoError) and kind is not OptionsError:
        return kind(failure.message)
    return FetcherError(failure.message)
