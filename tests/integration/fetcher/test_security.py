"""The fetcher's service lets nobody in without the secret of the run, and no secret out."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from kinesis_efo.errors import FetcherError, FetcherRefusedError, KinesisEfoError
from kinesis_efo.fetcher.client import FetcherClient
from kinesis_efo.fetcher.messages import SECRET_HEADER
from kinesis_efo.fetcher.status import STATUS, StatusAccess
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey, ShardRange
from tests.support.fetching import reading
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
EVERYTHING = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, SHARD_END)
TICKET = b'{"ranges":[["orders","shardId-000000000000","TRIM_HORIZON","SHARD_END"]]}'
EVERY_CALL: dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]] = {
    "an unknown action": lambda client, options: list(client.do_action(flight.Action("stop", b""), options)),
    "get": lambda client, options: client.do_get(flight.Ticket(TICKET), options).read_all(),
    "the list of actions": lambda client, options: client.list_actions(options),
    "the list of flights": lambda client, options: list(client.list_flights(options=options)),
    "info": lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_path("x"), options),
}


def headers(*secrets: bytes) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=10, headers=[(SECRET_HEADER.encode(), secret) for secret in secrets])


def test_no_call_is_answered_without_the_secret(world: MakeWorld) -> None:
    with reading(world()) as r, flight.FlightClient(str(r.runtime.address)) as client:
        right = r.runtime.secret.encode()
        assert len(right) >= 43, "256 bits in base64"
        for name, call in EVERY_CALL.items():
            for given in (
                [],
                [b""],
                [b"guessed"],
                [right[:-1]],
                [right + b"x"],
                [right.swapcase()],
                [b"guessed", right],
            ):
                with pytest.raises(flight.FlightUnauthenticatedError) as caught:
                    call(client, headers(*given))
                assert r.runtime.secret not in str(caught.value), name


def test_the_token_in_the_runs_row_opens_its_status_and_nothing_else(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"private")])
    with reading(w) as r, flight.FlightClient(str(r.runtime.address)) as client:
        r.until(1)
        row = w.leases()["#run:orders"]
        access = StatusAccess.parse(row["status"]["S"])
        assert access.address == r.runtime.address
        assert r.runtime.secret not in str(row)
        token = headers(access.token.encode())
        [answer] = client.do_action(flight.Action(STATUS, b"{}"), token)
        said = answer.body.to_pybytes()
        assert b"shardId-000000000000" in said
        assert b"private" not in said
        assert r.runtime.secret.encode() not in said
        for call in (EVERY_CALL["an unknown action"], EVERY_CALL["get"]):
            with pytest.raises(flight.FlightUnauthenticatedError):
                call(client, token)
        for given in (b"", b"guessed", access.token[:-1].encode()):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.do_action(flight.Action(STATUS, b"{}"), headers(given)))
    wait_until(lambda: "status" not in w.leases()["#run:orders"])


def test_nonsense_with_the_right_secret_is_an_error_of_that_call_only(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"data")])
    tickets = [b"", b"\xff" * 1000, TICKET.replace(b"TRIM_HORIZON", b"SOON"), TICKET.replace(b"orders", b"nowhere")]
    with reading(w) as r, flight.FlightClient(str(r.runtime.address)) as client:
        options = headers(r.runtime.secret.encode())
        for ticket in tickets:
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                client.do_get(flight.Ticket(ticket), options).read_all()
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            list(client.do_action(flight.Action("none", b""), options))
        assert [row.data for row in r.until(1)] == [b"data"]


def test_the_service_listens_on_the_loopback_address_only(world: MakeWorld) -> None:
    with reading(world()) as r:
        port = r.runtime.address.port
        listening = [
            line.split()[1]
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            if Path(table).exists()
            for line in Path(table).read_text().splitlines()[1:]
            if line.split()[3] == "0A" and int(line.split()[1].rpartition(":")[2], 16) == port
        ]
        # 127.0.0.1, as such or mapped into IPv6; the kernel writes it backwards.
        assert [address.partition(":")[0][-8:] for address in listening] == ["0100007F"]
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((own, port), 2)


def test_no_secret_is_in_any_log_error_offset_or_text_form(
    world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life with everything in it: reading, refused callers, a deleted consumer, a lost fetcher."""
    caplog.set_level(logging.DEBUG, logger="kinesis_efo")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/SECRET/bPxRfiCY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "FwoGZXIvYXdzTOKEN")
    w = world({"orders": 2})
    w.put((f"k{n}", b"customer data") for n in range(50))
    said: list[str] = []
    with reading(w) as r:
        r.until(50)
        r.commit()
        with FetcherClient(r.runtime.address, "guessed") as stranger, pytest.raises(FetcherRefusedError) as refused:
            next(stranger.get([EVERYTHING]))
        w.kinesis.deregister_stream_consumer(ConsumerARN=w.consumers["orders"])
        with pytest.raises(KinesisEfoError) as failed:
            r.poll(timeout=20.0)
        runtime = r.runtime
        said += [repr(r.client), repr(runtime), str(r.offset.to_json()), repr(r.batches)]
        said += [f"{error.value!r} {error.value} {error.value.__cause__!r}" for error in (refused, failed)]
    with FetcherClient(runtime.address, runtime.secret) as late, pytest.raises(FetcherError) as gone:
        next(late.get([EVERYTHING]))
    said += [str(gone.value), repr(w.leases()), *(f"{line.getMessage()} {line.exc_text}" for line in caplog.records)]
    assert len(caplog.records) > 5
    for secret in (
        runtime.secret,
        os.environ["AWS_SECRET_ACCESS_KEY"],
        os.environ["AWS_SESSION_TOKEN"],
        "customer data",
    ):
        assert not [text for text in said if secret in text]
