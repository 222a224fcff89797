"""The fetcher's Arrow Flight service: `poll`, `commit`, `tips` and `get`, for callers that know the run's secret.

Flight answers in threads of its own; every call is handed over to the fetcher's event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.fetcher.messages import (
    PAYLOAD_SCHEMA,
    SECRET_HEADER,
    TOGETHER_BYTES,
    CommitRequest,
    GetTicket,
    PollReply,
    PollRequest,
    RangeLabel,
    TipsReply,
    TipsRequest,
    pack_error,
    payload_batches,
)
from kinesis_efo.positions import Offset, ShardKey, ShardRange

T = TypeVar("T")
_CANCEL_CHECK_SECONDS = 0.5


class Served(Protocol):
    """What the service needs of a fetcher. Every method runs in the fetcher's event loop."""

    async def poll(
        self, offset: Offset, max_bytes: int, max_records: int, at_most: float, *, everything: bool = False
    ) -> PollReply:
        """See `messages.PollRequest`."""

    async def commit(self, offset: Offset) -> None:
        """See `messages.CommitRequest`."""

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        """See `messages.TipsRequest`."""

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """First and last hash key of a shard; None where they are not known."""

    def read(self, wanted: ShardRange) -> AsyncIterator[list[bytes]]:
        """The payloads that cover a range, some at a time."""


class FetcherService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one fetcher until `shutdown`.

    Args:
        fetcher: The fetcher.
        loop: The event loop that it lives in.
        secret: The secret of the run; a call without it is refused.
        host: Address to bind to; the port is any free one.
    """

    def __init__(self, fetcher: Served, loop: asyncio.AbstractEventLoop, secret: str, host: str) -> None:
        self._fetcher = fetcher
        self._loop = loop
        super().__init__(f"grpc://{_bracketed(host)}:0", middleware={"secret": _SecretCheck(secret)})
        self.location = f"grpc://{_bracketed(host)}:{self.port}"

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """Answer `poll`, `commit` or `tips`."""
        body = action.body.to_pybytes()
        match action.type:
            case "poll":
                poll = _decode(body, PollRequest)
                offset = _offset(poll.offset)
                work = self._fetcher.poll(offset, poll.max_bytes, poll.max_records, poll.timeout, everything=True)
                answer: Any = self._run(context, work)
            case "commit":
                answer = self._run(context, self._fetcher.commit(_offset(_decode(body, CommitRequest).offset)))
            case "tips":
                tips = _decode(body, TipsRequest)
                found = self._run(context, self._fetcher.tips(_offset(tips.offset), tips.timeout))
                answer = TipsReply(None if found is None else found.to_dict())
            case unknown:
                raise flight.FlightServerError(f"the fetcher has no action {unknown!r}")
        return [flight.Result(msgspec.json.encode(answer))]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Stream the payloads of some ranges, each batch with the label of its range."""
        return flight.GeneratorStream(
            PAYLOAD_SCHEMA, self._batches(context, _decode(ticket.ticket, GetTicket).parsed())
        )

    def _batches(
        self, context: flight.ServerCallContext, ranges: Sequence[ShardRange]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        chunks = _chunks(self._fetcher, ranges)
        try:
            while some := self._run(context, _next(chunks)):
                for label, payloads in some:
                    metadata = msgspec.json.encode(label)
                    for batch in payload_batches(payloads):
                        yield batch, metadata
        finally:
            self._run(None, _close(chunks))

    def _run(self, context: flight.ServerCallContext | None, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise flight.FlightUnavailableError("the fetcher has stopped") from None
        while True:
            try:
                return future.result(_CANCEL_CHECK_SECONDS)
            except concurrent.futures.CancelledError:
                raise flight.FlightUnavailableError("the fetcher is stopping") from None
            except TimeoutError:
                if future.done():
                    raise flight.FlightServerError("the fetcher timed out") from None
                # The caller does not wait any more: its task was killed, or the query stopped.
                if context is not None and context.is_cancelled():
                    future.cancel()
                    raise flight.FlightCancelledError("the caller has gone") from None
            except KinesisEfoError as error:
                raise flight.FlightServerError(str(error), extra_info=pack_error(error)) from error
            except Exception as error:
                wrapped = FetcherError(f"the fetcher failed: {type(error).__name__}: {error}")
                raise flight.FlightServerError(str(wrapped), extra_info=pack_error(wrapped)) from error


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


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise flight.FlightServerError(f"not a {kind.__name__}: {error}") from None


def _offset(data: dict[str, Any]) -> Offset:
    try:
        return Offset.from_dict(data)
    except ValueError as error:
        raise flight.FlightServerError(str(error)) from None


class _SecretCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:  # noqa: ARG002
        given = (headers.get(SECRET_HEADER) or [""])[0]
        if not hmac.compare_digest(given.encode(), self._secret):
            raise flight.FlightUnauthenticatedError("the secret of the run is missing or wrong")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
