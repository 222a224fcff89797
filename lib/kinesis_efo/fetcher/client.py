"""The client of a fetcher's Arrow Flight service, for Spark's tasks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.connection import Connection
from kinesis_efo.fetcher.connection_cache import CONNECTIONS, ConnectionCache
from kinesis_efo.fetcher.messages import GetTicket, RangeLabel
from kinesis_efo.fetcher.pulling import Pulled, Silence
from kinesis_efo.positions import ShardRange

OPEN_SECONDS: Final = 25.0
"""Longest time until a fetcher begins to answer; longer than a connection may take."""

SILENT_SECONDS: Final = 20.0
"""Longest time without a word. While a fetcher has nothing to send, it says so every few seconds."""

CALL_SECONDS: Final = 300.0
"""Longest time for one call. It ends what a fetcher holds for a task that is frozen; one that is alive calls again."""


class CallEndedError(FetcherUnreachableError):
    """A call ended before its ranges did. The fetcher may be as well as ever: a new call goes on where it ended."""


class RangePayloads(NamedTuple):
    """The answer for one range.

    Attributes:
        wanted: The range.
        hash_range: First and last hash key of its shard, if the fetcher knows them.
        payloads: Raw events that cover it, in order.
    """

    wanted: ShardRange
    hash_range: tuple[int, int] | None
    payloads: Iterator[memoryview]


class FetcherClient(Connection):
    """One connection to one fetcher; see `Connection`.

    Args:
        address: How to reach it.
        secret: The secret of the run.
        kept: Where connections within the machine stay open for the next task.
        silent_seconds: Longest time without a word of the fetcher.
        call_seconds: Longest time for one call.
        query: The name of the query among those of its run.
        options: The options of `Connection`.
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
        super().__init__(address, secret, kept=kept, **options)
        self._silent_seconds = silent_seconds
        self._call_seconds = call_seconds
        self._query = query

    def get(self, ranges: Sequence[ShardRange]) -> Generator[RangePayloads, None, None]:
        """The raw event payloads that cover some ranges, range by range, in order. A range without any may be left out.

        Payloads of a range that are not taken before the next range is asked for are dropped.

        Raises:
            CallEndedError: The fetcher says nothing, or the call has lasted too long; ask again for what is left.
            FetcherUnreachableError: Nobody answers.
            KinesisEfoError: The error of the fetcher.
        """
        with self._limited():
            ticket = flight.Ticket(msgspec.json.encode(GetTicket.of(ranges, self._query)))
            pulled = self.call(lambda client: self._open(client, ticket))
            try:
                coming = pulled.items(self._silent_seconds)
                for metadata, chunks in groupby(coming, lambda chunk: chunk.app_metadata.to_pybytes()):
                    label = msgspec.json.decode(metadata, type=RangeLabel)
                    payloads = chain.from_iterable(_rows(chunk.data) for chunk in chunks)
                    yield RangePayloads(ranges[label.index], label.hash_range, self._limiting(payloads))
            finally:
                pulled.close()

    def _open(self, client: flight.FlightClient, ticket: flight.Ticket) -> Pulled[Any]:
        options = self.options(self._call_seconds)
        return Pulled[Any](lambda: client.do_get(ticket, options)).opened(OPEN_SECONDS)

    def _limiting(self, payloads: Iterator[memoryview]) -> Iterator[memoryview]:
        with self._limited():
            yield from payloads

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Raise Flight's errors as this library's, and say when a limit of time has ended the call."""
        with self.translated():
            try:
                yield
            except Silence:
                raise CallEndedError(
                    f"the fetcher at {self._location} has not said anything for {self._silent_seconds:.0f} s: it is paused or overloaded, or its "
                    "host has vanished"
                ) from None
            except flight.FlightTimedOutError:
                raise CallEndedError(
                    f"a call to the fetcher at {self._location} has lasted {self._call_seconds:.0f} s, as long as one may"
                ) from None


def _rows(batch: pa.RecordBatch) -> Iterator[memoryview]:
    # Slices of the batch's own memory: a bytes object per event would copy everything once more.
    column = batch.column(0)
    _, offsets_buffer, data_buffer = column.buffers()
    if data_buffer is None:
        return
    offsets = memoryview(offsets_buffer).cast("i")[column.offset : column.offset + len(column) + 1]
    data = memoryview(data_buffer)
    for index in range(len(column)):
        yield data[offsets[index] : offsets[index + 1]]
