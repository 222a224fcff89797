"""The fetcher's service: the events of ranges, for tasks that know the run's secret."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from kinesis_efo.calls.service import Call, Service, decoded
from kinesis_efo.calls.wire import Kind
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.sharer import ElsewhereError
from kinesis_efo.fetcher.work import GET, TOGETHER_BYTES, GetTicket, RangeLabel
from kinesis_efo.positions import ShardKey, ShardRange

WORD_SECONDS: Final = 5.0
"""While a call has nothing to send, it sends a part without payloads this often: its caller knows then that somebody is there."""

Chunks = list[tuple[RangeLabel, list[bytes]]]


class RangeSource(Protocol):
    """What the service needs of a fetcher. Every method runs in the fetcher's event loop."""

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """First and last hash key of a shard; None if they are not known."""

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """Begin to read what some ranges wait for that are read soon; returns when that was, monotonic seconds."""

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover a range, some at a time, which was asked for at a monotonic time."""


class RangeSources(Protocol):
    """Finds what serves the tasks of a query: a fetcher is the same for all of them."""

    def of(self, query: str) -> RangeSource:
        """What serves the tasks of a query.

        Args:
            query: Its name.

        Raises:
            FetcherUnreachableError: It is not there.
        """


class FetcherService(Service):
    """Serves one fetcher; see `Service`.

    Args:
        fetcher: The fetcher.
        arguments, options: Those of `Service`.
        word_seconds: How often a call that has nothing to send says so.
    """

    def __init__(
        self, fetcher: RangeSources, *arguments: Any, word_seconds: float = WORD_SECONDS, **options: Any
    ) -> None:
        self._fetcher = fetcher
        self._word_seconds = word_seconds
        super().__init__(*arguments, **options)

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        if name != GET:
            return super().act(call, name, body)
        self._get(call, decoded(body, GetTicket))
        return None

    def _get(self, call: Call, ticket: GetTicket) -> None:
        """Send the payloads of some ranges, with the labels of their ranges."""
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
                    # A client that waits has to know that it is not in vain. The event loop says so, so that it has to live.
                    some = self.run(call, getting.so_far())
                if some:
                    head = [(label, [len(payload) for payload in payloads]) for label, payloads in some]
                    call.send(
                        Kind.EVENTS, msgspec.json.encode(head), chain.from_iterable(payloads for _, payloads in some)
                    )
        finally:
            self.run(None, getting.close())

    async def _served(self, query: str) -> RangeSource:
        return self._fetcher.of(query)


class _Getting:
    """What one call still has to get of its ranges."""

    def __init__(self, fetcher: RangeSource, ranges: Sequence[ShardRange]) -> None:
        self._label = RangeLabel(0, None)
        self._chunks = self._read(fetcher, ranges)
        self._ready: Chunks = []
        self._reading: asyncio.Task[Any] | None = None

    async def some(self) -> Chunks:
        """The next payloads, of several ranges if they are small: a hop between threads costs as much as copying kilobytes."""
        self._reading = asyncio.current_task()
        size = 0
        async for label, payloads in self._chunks:
            self._ready.append((label, payloads))
            size += sum(map(len, payloads))
            if size >= TOGETHER_BYTES:
                break
        return self._taken()

    async def so_far(self) -> Chunks:
        """What `some` has found until now, or nothing of the range that it waits for. Never overtakes what `some` returns."""
        if self._reading is None or self._reading.done():
            return []
        return self._taken() or [(self._label, [])]

    def _taken(self) -> Chunks:
        ready, self._ready = self._ready, []
        return ready

    async def close(self) -> None:
        """Let go of the buffers."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._chunks.aclose()

    async def _read(
        self, fetcher: RangeSource, ranges: Sequence[ShardRange]
    ) -> AsyncGenerator[tuple[RangeLabel, list[bytes]], None]:
        asked_at = fetcher.expect(ranges)
        for index, wanted in enumerate(ranges):
            if index == 1:
                fetcher.expect(ranges)  # after a restart, nothing may be read before the first one is
            self._label = RangeLabel(index, await fetcher.hash_range(wanted.key))
            reader = fetcher.read(wanted, asked_at)
            try:
                async for payloads in reader:
                    yield self._label, payloads
            except ElsewhereError:
                raise FetcherUnreachableError(
                    f"shard {wanted.key}: the query of this task does not read it here any more"
                ) from None
            finally:
                await reader.aclose()
