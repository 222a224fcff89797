"""What the client makes of a service that ends, whenever that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.client import FetcherClient
from kinesis_efo.fetcher.messages import PAYLOAD_SCHEMA, RangeLabel, payload_batches
from kinesis_efo.positions import Offset, Position, ShardKey, ShardRange

KEY = ShardKey("orders", "shardId-000000000000")
WANTED = ShardRange(KEY, Position.parse("TRIM_HORIZON"), Position.parse("AFTER:7"))


class Ending(flight.FlightServerBase):  # type: ignore[misc]
    """Ends every call as a service does that is shut down in the middle of it."""

    def do_action(self, context: Any, action: Any) -> list[flight.Result]:
        raise flight.FlightCancelledError("shutting down")

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        def batches() -> Iterator[tuple[pa.RecordBatch, bytes]]:
            yield next(iter(payload_batches([b"{}"]))), msgspec.json.encode(RangeLabel.of(0, None))
            raise flight.FlightCancelledError("shutting down")

        return flight.GeneratorStream(PAYLOAD_SCHEMA, batches())


@pytest.fixture
def client() -> Iterator[FetcherClient]:
    with Ending("grpc://127.0.0.1:0") as server, FetcherClient(f"grpc://127.0.0.1:{server.port}", "secret") as client:
        yield client


def test_a_call_that_the_service_cuts_off_says_that_it_stopped(client: FetcherClient) -> None:
    offset = Offset({KEY: Position.parse("AFTER:7")})
    with pytest.raises(FetcherUnreachableError, match="has stopped in the middle of a call"):
        client.commit(offset)


def test_a_range_that_the_service_cuts_off_says_that_it_stopped(client: FetcherClient) -> None:
    with pytest.raises(FetcherUnreachableError, match="has stopped in the middle of a call"):
        _ = [list(payloads) for _, _, payloads in client.get([WANTED])]


def test_nobody_there_says_so() -> None:
    with (
        FetcherClient("grpc://127.0.0.1:1", "secret") as client,
        pytest.raises(FetcherUnreachableError, match=r"no fetcher answers at grpc://127\.0\.0\.1:1"),
    ):
        client.commit(Offset({KEY: Position.parse("AFTER:7")}))
