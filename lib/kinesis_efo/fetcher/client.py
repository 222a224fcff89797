"""The client of a fetcher's Arrow Flight service, for Spark's tasks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.connection import Connection
from kinesis_efo.fetcher.kept import KEPT, KeptClients
from kinesis_efo.fetcher.messages import GetTicket, RangeLabel
from kinesis_efo.positions import ShardRange


class RangePayloads(NamedTuple):
    """The answer for one range.

    Attributes:
        wanted: The range.
        hash_range: First and last hash key of its shard, where the fetcher knows them.
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
        options: The options of `Connection`.
    """

    def __init__(self, address: FetcherAddress, secret: str, *, kept: KeptClients = KEPT, **options: Any) -> None:
        super().__init__(address, secret, kept=kept, **options)

    def get(self, ranges: Sequence[ShardRange]) -> Generator[RangePayloads, None, None]:
        """The raw event payloads that cover some ranges, range by range, in order. A range without any is left out.

        Payloads of a range that are not taken before the next range is asked for are dropped.
        """
        with self.translated():
            ticket = flight.Ticket(msgspec.json.encode(GetTicket.of(ranges)))
            reader = self.call(lambda client: client.do_get(ticket, self.options(timeout=None)))
            try:
                for metadata, chunks in groupby(reader, lambda chunk: chunk.app_metadata.to_pybytes()):
                    label = msgspec.json.decode(metadata, type=RangeLabel)
                    payloads = chain.from_iterable(_rows(chunk.data) for chunk in chunks)
                    yield RangePayloads(ranges[label.index], label.hash_range, self._translating(payloads))
            finally:
                reader.cancel()

    def _translating(self, payloads: Iterator[memoryview]) -> Iterator[memoryview]:
        with self.translated():
            yield from payloads


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
