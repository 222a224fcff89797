"""The client of a fetcher's Arrow Flight service, for the stream reader on the driver and for Spark's tasks.

Errors of the fetcher are raised here with the type that they had there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.errors import FetcherError, FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.messages import (
    SECRET_HEADER,
    CommitRequest,
    GetTicket,
    PollReply,
    PollRequest,
    RangeLabel,
    TipsReply,
    TipsRequest,
    unpack_error,
)
from kinesis_efo.positions import Offset, ShardRange

T = TypeVar("T")
_ANSWER_SECONDS = 60.0
_LARGE_FRAMES: Final = ("grpc.http2.max_frame_size", 1 << 20)
"""gRPC cuts messages into HTTP/2 frames of 16 KiB unless the receiver allows more, which takes a sixth off its work."""


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


class FetcherClient:
    """One connection to one fetcher. Not to be shared between threads.

    Args:
        location: Address of its service, for example `grpc://127.0.0.1:40231`.
        secret: The secret of the run.
    """

    def __init__(self, location: str, secret: str) -> None:
        self.location = location
        self._secret = secret
        self._client = flight.FlightClient(location, generic_options=[_LARGE_FRAMES])

    def __enter__(self) -> FetcherClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        """Ask how far the next micro-batch may go.

        Args:
            offset: How far the query has come.
            max_bytes: Most bytes of the micro-batch.
            max_records: Most records of it.
            timeout: Seconds to wait where there is nothing new.

        Raises:
            KinesisEfoError: Reading failed for good, or the fetcher cannot be reached.
        """
        request = PollRequest(offset.to_dict(), max_bytes, max_records, timeout)
        return self._action("poll", request, PollReply, timeout + _ANSWER_SECONDS)

    def commit(self, offset: Offset) -> None:
        """Tell the fetcher that Spark will not ask for anything up to an offset again."""
        self._action("commit", CommitRequest(offset.to_dict()), None, _ANSWER_SECONDS)

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        """Where the streams end right now, for the shards of an offset and their descendants.

        Returns:
            None where that is not known within `timeout` seconds: ask again.
        """
        reply = self._action("tips", TipsRequest(offset.to_dict(), timeout), TipsReply, timeout + _ANSWER_SECONDS)
        return None if reply.offset is None else Offset.from_dict(reply.offset)

    def get(self, ranges: Sequence[ShardRange]) -> Generator[RangePayloads, None, None]:
        """The raw event payloads that cover some ranges, range by range, in order. A range without any is left out.

        Payloads of a range that are not taken before the next range is asked for are dropped.
        """
        with self._translated():
            ticket = flight.Ticket(msgspec.json.encode(GetTicket.of(ranges)))
            reader = self._client.do_get(ticket, self._options(timeout=None))
            try:
                for metadata, chunks in groupby(reader, lambda chunk: chunk.app_metadata.to_pybytes()):
                    label = msgspec.json.decode(metadata, type=RangeLabel)
                    payloads = chain.from_iterable(_rows(chunk.data) for chunk in chunks)
                    yield RangePayloads(ranges[label.index], label.hash_range, self._translating(payloads))
            finally:
                reader.cancel()

    def _translating(self, payloads: Iterator[memoryview]) -> Iterator[memoryview]:
        with self._translated():
            yield from payloads

    def _action(self, name: str, request: msgspec.Struct, answer: type[T] | None, timeout: float) -> T:
        with self._translated():
            action = flight.Action(name, msgspec.json.encode(request))
            (result,) = self._client.do_action(action, self._options(timeout))
            return msgspec.json.decode(result.body.to_pybytes(), type=answer or type(None))  # type: ignore[return-value]

    def _options(self, timeout: float | None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=[(SECRET_HEADER.encode(), self._secret.encode())])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError:
            raise FetcherRefusedError(
                f"the fetcher at {self.location} does not know this run's secret: it belongs to another run"
            ) from None
        except flight.FlightUnavailableError as error:
            raise FetcherUnreachableError(
                f"no fetcher answers at {self.location}: {_first_line(error)}. It runs in the driver; executors on other "
                "hosts reach it only at an address of the driver's host (kinesis-efo option 'fetcherHost')"
            ) from None
        except flight.FlightCancelledError:
            # This client never cancels a call that it waits for: the service did, by shutting down in the middle of it.
            raise FetcherUnreachableError(
                f"the fetcher at {self.location} has stopped in the middle of a call; its query has ended, or restarts"
            ) from None
        except flight.FlightTimedOutError as error:
            raise FetcherUnreachableError(f"the fetcher at {self.location} did not answer in time: {error}") from None
        except flight.FlightError as error:
            if error.extra_info:
                raise unpack_error(bytes(error.extra_info)) from None
            raise FetcherError(f"the fetcher at {self.location}: {_first_line(error)}") from None
        except pa.ArrowException as error:
            raise FetcherError(f"the fetcher at {self.location}: {_first_line(error)}") from None


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


def _first_line(error: Any) -> str:
    return str(error).split("\n", 1)[0]
