"""The fetcher's Arrow Flight service: the events of ranges, for tasks that know the run's secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.messages import PAYLOAD_SCHEMA, TOGETHER_BYTES, GetTicket, RangeLabel, payload_batches
from kinesis_efo.fetcher.serving import Service, StatusDesk, decoded, refuse_tools
from kinesis_efo.positions import ShardKey, ShardRange

if TYPE_CHECKING:
    from kinesis_efo.fetcher.certificate import Certificate


class Served(Protocol):
    """What the service needs of a fetcher. Every method runs in the fetcher's event loop."""

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """First and last hash key of a shard; None where they are not known."""

    def read(self, wanted: ShardRange) -> AsyncIterator[list[bytes]]:
        """The payloads that cover a range, some at a time."""


class FetcherService(Service):
    """Serves one fetcher; see `Service`.

    Args:
        fetcher: The fetcher.
        loop: The event loop that it lives in.
        secret: The secret of the run; a call without it is refused.
        listening: Where to listen.
        certificate: Encrypts what is served; None: nothing does.
        desk: Answers tools; None: nobody does.
    """

    def __init__(
        self,
        fetcher: Served,
        loop: asyncio.AbstractEventLoop,
        secret: str,
        listening: Listening,
        certificate: Certificate | None = None,
        desk: StatusDesk | None = None,
    ) -> None:
        self._fetcher = fetcher
        super().__init__(loop, secret, listening, certificate, desk)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Stream the payloads of some ranges, each batch with the label of its range."""
        refuse_tools(context)
        return flight.GeneratorStream(
            PAYLOAD_SCHEMA, self._batches(context, decoded(ticket.ticket, GetTicket).parsed())
        )

    def _batches(
        self, context: flight.ServerCallContext, ranges: Sequence[ShardRange]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        chunks = _chunks(self._fetcher, ranges)
        try:
            while some := self.run(context, _next(chunks)):
                for label, payloads in some:
                    metadata = msgspec.json.encode(label)
                    for batch in payload_batches(payloads):
                        yield batch, metadata
        finally:
            self.run(None, _close(chunks))


async def _chunks(fetcher: Served, ranges: Iterable[ShardRange]) -> AsyncIterator[tuple[RangeLabel, list[bytes]]]:
    for index, wanted in enumerate(ranges):
        label = RangeLabel.of(index, await fetcher.hash_range(wanted.key))
        reader = fetcher.read(wanted)
        try:
            async for payloads in reader:
                yield label, payloads
        finally:
            await _close(reader)


async def _next(chunks: AsyncIterator[tuple[RangeLabel, list[bytes]]]) -> list[tuple[RangeLabel, list[bytes]]]:
    """The next payloads, of several ranges where they are small: a hop between threads costs as much as copying kilobytes."""
    some = []
    size = 0
    async for label, payloads in chunks:
        some.append((label, payloads))
        size += sum(map(len, payloads))
        if size >= TOGETHER_BYTES:
            break
    return some


async def _close(reader: Any) -> None:
    await reader.aclose()
