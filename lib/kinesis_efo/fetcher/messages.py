"""The messages between tasks and fetchers, and the form in which errors cross the wire.

They are JSON by msgspec, the heads and bodies of the frames of `wire`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from kinesis_efo import errors
from kinesis_efo.errors import FetcherError, KinesisEfoError, OptionsError
from kinesis_efo.positions import Position, ShardKey, ShardRange

TOGETHER_BYTES: Final = 1 << 20
"""Payloads are sent together, about this many bytes at a time: what fits into the processor's cache is fastest."""

GET: Final = "get"


class Request(msgspec.Struct, frozen=True):
    """Begins every call.

    Attributes:
        secret: The secret of the run, or a token that opens less.
        name: What is asked.
        seconds: How long the caller waits for the whole answer; None: without limit.
    """

    secret: str
    name: str
    seconds: float | None = None


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
    """Tells which range payloads of a `get` belong to.

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


class _Failure(msgspec.Struct):
    kind: str
    message: str


def pack_error(error: KinesisEfoError) -> bytes:
    """Encode an error of this library."""
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
