"""The messages between tasks and fetchers, and the form in which errors cross the wire.

They are JSON by msgspec, the heads and bodies of the frames of `wire`. Both ends are this library, so positions and numbers of any
length cross as what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from kinesis_efo import errors
from kinesis_efo.errors import FetcherError, KinesisEfoError, OptionsError
from kinesis_efo.positions import ShardRange

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
        ranges: The ranges.
        query: The name of the query among those of its run.
    """

    ranges: Sequence[ShardRange]
    query: str = ""


class RangeLabel(msgspec.Struct, frozen=True, array_like=True):
    """Tells which range payloads of a `get` belong to.

    Attributes:
        index: Index of the range in the ticket.
        hash_range: First and last hash key of the shard, if the fetcher knows them.
    """

    index: int
    hash_range: tuple[int, int] | None


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
