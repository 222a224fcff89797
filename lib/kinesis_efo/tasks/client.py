"""The client that Spark tasks use to read from a fetcher."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.connection import CONNECTIONS, Connection, ConnectionCache
from kinesis_efo.calls.wire import Frame, Kind, LostError, Request, Wire
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.work import GET, GetTicket
from kinesis_efo.positions import ShardRange

SILENT_SECONDS: Final = 20.0
"""Maximum seconds to wait for a message from a fetcher, which sends a heartbeat every few seconds while it waits for data."""

CALL_SECONDS: Final = 300.0
"""Maximum seconds for one call. It limits how long a fetcher retains resources for a frozen task. A live task starts a new call."""


class RangePayloads(NamedTuple):
    """The raw payloads of the events that cover the range `wanted`, in order."""

    wanted: ShardRange
    payloads: Iterator[memoryview]


class FetcherClient(Connection):
    """A task's connection to one fetcher. `query` is the name of the task's query in its run.

    It waits at most `silent_seconds` for a message from the fetcher, and at most `call_seconds` for the end of a call. For the other
    arguments, see `Connection`.
    """

    def __init__(
        self,
        address: FetcherAddress,
        secret: str,
        *,
        kept: ConnectionCache = CONNECTIONS,
        silent_seconds: float = SILENT_SECONDS,
        call_seconds: float = CALL_SECONDS,
        query: str = "",
        **options: Any,
    ) -> None:
        # Receive into memory that Arrow allocates. This is cheaper than a `bytearray`, because the memory is not zeroed.
        super().__init__(address, secret, kept=kept, allocate=pa.allocate_buffer, **options)
        self._silent_seconds = silent_seconds
        self._call_seconds = call_seconds
        self._query = query

    def get(self, ranges: Sequence[ShardRange]) -> Generator[RangePayloads, None, None]:
        """Yield the raw event payloads that cover the given ranges, range by range, in order. Ranges without payloads may be missing.

        Read all payloads of a range before the next range: unread payloads are dropped. Raises the fetcher's error, or
        FetcherUnreachableError if the fetcher is unreachable, silent or too slow. After that error, call again for the remaining ranges.
        """
        with self._limited() as give_up_at:
            ticket = msgspec.json.encode(GetTicket(ranges, self._query))
            wire, first = self.call(Request(GET, self._call_seconds), ticket, self._silent_seconds)
            try:
                for index, parts in groupby(self._parts(wire, first, give_up_at), itemgetter(0)):
                    payloads = chain.from_iterable(payloads for _, payloads in parts)
                    yield RangePayloads(ranges[index], self._limiting(payloads, give_up_at))
            except BaseException:
                # Do not reuse the connection: the next call would receive the rest of this reply.
                self.drop()
                raise

    def _parts(self, wire: Wire, frame: Frame, give_up_at: float) -> Iterator[tuple[int, list[memoryview]]]:
        """Receive the frames of a reply. Yields the index of a range, with payloads of this range."""
        while frame.kind is Kind.EVENTS:
            at = 0
            for index, sizes in _HEADS.decode(frame.head):
                payloads = []
                for size in sizes:
                    payloads.append(frame.body[at : at + size])
                    at += size
                yield index, payloads
            if (left := give_up_at - time.monotonic()) <= 0:
                raise TimeoutError
            frame = self.checked(wire.receive(min(left, self._silent_seconds)))
        if frame.kind is not Kind.END:
            raise LostError(f"a frame without events: {frame.kind.name}")

    def _limiting(self, payloads: Iterator[memoryview], give_up_at: float) -> Iterator[memoryview]:
        with self._limited(give_up_at):
            yield from payloads

    @contextmanager
    def _limited(self, give_up_at: float | None = None) -> Iterator[float]:
        """Convert errors during a call, including timeouts, to this library's errors. Yields the call's deadline, in monotonic seconds."""
        give_up_at = time.monotonic() + self._call_seconds if give_up_at is None else give_up_at
        with self.translated():
            try:
                yield give_up_at
            except (TimeoutError, LostError) as error:
                if time.monotonic() >= give_up_at:
                    raise FetcherUnreachableError(
                        f"a call to the fetcher at {self._location} has reached the limit of {self._call_seconds:.0f} s"
                    ) from None
                if isinstance(error, LostError):
                    raise
                raise FetcherUnreachableError(
                    f"the fetcher at {self._location} has sent nothing for {self._silent_seconds:.0f} s: it is paused or overloaded, or "
                    "its host has vanished"
                ) from None


_HEADS: Final = msgspec.json.Decoder(list[tuple[int, list[int]]])
