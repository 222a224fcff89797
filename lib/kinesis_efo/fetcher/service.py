"""The fetcher's service: sends the events of ranges to tasks that authenticate with the run's secret."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from kinesis_efo.calls.service import Call, Service, decoded
from kinesis_efo.calls.wire import Kind
from kinesis_efo.errors import NotFetchedHereError
from kinesis_efo.fetcher.buffer import NotCovered
from kinesis_efo.fetcher.work import GET, TOGETHER_BYTES, GetTicket
from kinesis_efo.positions import ShardRange

WORD_SECONDS: Final = 5.0
"""Seconds between the heartbeats (messages without payloads) that a call sends while it waits for data."""

Chunks = list[tuple[int, list[bytes]]]
"""Groups of payloads, each with the index of its range in the `GetTicket`."""


class RangeSource(Protocol):
    """Reads ranges for the service. Every method runs in the fetcher's event loop."""

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """Prepare for reading these ranges. Return the current time (monotonic seconds), to be passed to `read` as `asked_at`."""

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        """Yield the payloads that cover a range, a few at a time. `asked_at` is the result of `expect`."""


class FetcherService(Service):
    """Sends the payloads of ranges to tasks; see `Service` for the other arguments.

    Args:
        source: Returns the `RangeSource` of the query with the given name, or raises `FetcherUnreachableError`.
        word_seconds: Seconds between the heartbeats that a call sends while it waits for data.
    """

    def __init__(
        self,
        source: Callable[[str], RangeSource],
        *arguments: Any,
        word_seconds: float = WORD_SECONDS,
        **options: Any,
    ) -> None:
        self._source = source
        self._word_seconds = word_seconds
        super().__init__(*arguments, **options)

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        if name != GET:
            return super().act(call, name, body)
        self._get(call, decoded(body, GetTicket))
        return None

    def _get(self, call: Call, ticket: GetTicket) -> None:
        """Send the payloads of the ticket's ranges, each with the index of its range."""
        getting = _Getting(self.run(call, self._served(ticket.query)), ticket.ranges)
        coming: concurrent.futures.Future[Chunks] | None = None
        try:
            while True:
                coming = coming or self.submit(getting.some())
                if self.done(call, coming, self._word_seconds):
                    if not (some := self.result(call, coming)):
                        return
                    coming = None
                else:
                    # Send a heartbeat to the waiting client. `so_far` runs in the event loop, so that heartbeats stop if the loop is stuck.
                    some = self.run(call, getting.so_far())
                if some:
                    head = [(index, [len(payload) for payload in payloads]) for index, payloads in some]
                    call.send(
                        Kind.EVENTS, msgspec.json.encode(head), chain.from_iterable(payloads for _, payloads in some)
                    )
        finally:
            self.run(None, getting.close())

    async def _served(self, query: str) -> RangeSource:
        return self._source(query)


class _Getting:
    """Reads the ranges of one call from a `RangeSource`, and groups small payloads."""

    def __init__(self, fetcher: RangeSource, ranges: Sequence[ShardRange]) -> None:
        self._index = 0
        self._chunks = self._read(fetcher, ranges)
        self._ready: Chunks = []
        self._reading: asyncio.Task[Any] | None = None

    async def some(self) -> Chunks:
        """Return the next payloads; empty after the last range. Small ranges are combined, to save thread switches."""
        self._reading = asyncio.current_task()
        size = 0
        async for index, payloads in self._chunks:
            self._ready.append((index, payloads))
            size += sum(map(len, payloads))
            if size >= TOGETHER_BYTES:
                break
        return self._taken()

    async def so_far(self) -> Chunks:
        """Return the payloads that the current call of `some` has read so far; if there are none, an empty chunk for the current range."""
        if self._reading is None or self._reading.done():
            return []
        return self._taken() or [(self._index, [])]

    def _taken(self) -> Chunks:
        ready, self._ready = self._ready, []
        return ready

    async def close(self) -> None:
        """Stop reading and release the buffers."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._chunks.aclose()

    async def _read(
        self, fetcher: RangeSource, ranges: Sequence[ShardRange]
    ) -> AsyncGenerator[tuple[int, list[bytes]], None]:
        asked_at = fetcher.expect(ranges)
        for index, wanted in enumerate(ranges):
            if index == 1:
                # Request the other ranges again: their shards may not have been readable at the first call.
                fetcher.expect(ranges[index:])
            self._index = index
            try:
                async with aclosing(fetcher.read(wanted, asked_at)) as reader:
                    async for payloads in reader:
                        yield index, payloads
            except NotCovered:
                raise NotFetchedHereError(f"shard {wanted.key} is not buffered here from {wanted.after} on") from None
