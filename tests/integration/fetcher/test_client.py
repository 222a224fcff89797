"""How the client finds a fetcher, and what it makes of one that is not there, not the right one, or ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.certificate import Certificate, make_certificate
from kinesis_efo.fetcher.client import FetcherClient
from kinesis_efo.fetcher.connection_cache import ConnectionCache
from kinesis_efo.fetcher.messages import PAYLOAD_SCHEMA, RangeLabel, payload_batches
from kinesis_efo.positions import Position, ShardKey, ShardRange

KEY = ShardKey("orders", "shardId-000000000000")
WANTED = ShardRange(KEY, Position.parse("TRIM_HORIZON"), Position.parse("AFTER:7"))
HERE = "this namespace"


class Ending(flight.FlightServerBase):  # type: ignore[misc]
    """Ends every call as a service does that is shut down in the middle of it."""

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        def batches() -> Iterator[tuple[pa.RecordBatch, bytes]]:
            yield next(iter(payload_batches([b"{}"]))), msgspec.json.encode(RangeLabel.of(0, None))
            raise flight.FlightCancelledError("shutting down")

        return flight.GeneratorStream(PAYLOAD_SCHEMA, batches())


class Counting(flight.FlightServerBase):  # type: ignore[misc]
    """Counts calls and has two events for every range."""

    def __init__(self, where: str, **options: Any) -> None:
        super().__init__(where, **options)
        self.peers: list[str] = []

    @property
    def calls(self) -> int:
        return len(self.peers)

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        self.peers.append(context.peer())
        label = msgspec.json.encode(RangeLabel.of(0, None))
        batches = [(batch, label) for batch in payload_batches([b"{1}", b"{2}"])]
        return flight.GeneratorStream(PAYLOAD_SCHEMA, iter(batches))


def counting(host: str = "127.0.0.1", port: int = 0, certificate: Certificate | None = None) -> Counting:
    if certificate is None:
        return Counting(f"grpc://{host}:{port}")
    return Counting(f"grpc+tls://{host}:{port}", tls_certificates=[(certificate.pem, certificate.key)])


def made(days: float = 0) -> Certificate:
    return make_certificate(datetime.now(UTC) + timedelta(days=days))


@contextmanager
def mute(host: str, port: int) -> Iterator[socket.socket]:
    """Takes connections and never says a word, like a host behind a firewall that drops packets."""
    with socket.create_server((host, port)) as listening:
        listening.setblocking(False)
        yield listening


def connections(listening: socket.socket) -> int:
    found = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def call(address: FetcherAddress, namespace: str = "elsewhere", connect_seconds: float = 0.5) -> None:
    with FetcherClient(address, "secret", namespace=namespace, connect_seconds=connect_seconds) as client:
        next(client.get([WANTED]))


# -- finding the way


def test_loopback_is_the_way_in_the_same_namespace_only() -> None:
    with counting("127.0.0.1") as here, counting("127.0.1.1", here.port) as there:
        address = FetcherAddress(HERE, here.port, ("127.0.1.1",))
        call(address, HERE)
        assert (here.calls, there.calls) == (1, 0)
        call(address)
        assert (here.calls, there.calls) == (1, 1)


def test_the_ways_are_tried_in_order() -> None:
    with counting("127.0.1.3") as third, counting("127.0.1.4", third.port) as fourth:
        call(FetcherAddress(HERE, third.port, ("127.0.1.2", "no-such-host.invalid", "127.0.1.3", "127.0.1.4")))
        assert (third.calls, fourth.calls) == (1, 0)


def test_a_range_is_read_by_a_later_way_too() -> None:
    certificate = made()
    with counting("127.0.1.6", certificate=certificate) as server:
        address = FetcherAddress(HERE, server.port, ("127.0.1.5", "127.0.1.6"), certificate.pem)
        with FetcherClient(address, "secret", namespace="elsewhere") as client:
            assert [bytes(each) for answer in client.get([WANTED]) for each in answer.payloads] == [b"{1}", b"{2}"]


def test_a_way_that_swallows_everything_is_left_in_time_and_not_tried_first_again() -> None:
    with counting("127.0.1.8") as server, mute("127.0.1.7", server.port) as hole:
        address = FetcherAddress(HERE, server.port, ("127.0.1.7", "127.0.1.8"))
        began = time.monotonic()
        call(address)
        assert 0.4 < time.monotonic() - began < 10
        assert connections(hole) > 0
        call(address)
        assert (server.calls, connections(hole)) == (2, 0)


def test_another_fetcher_at_one_of_the_addresses_is_passed_by() -> None:
    """Bridges of containers have the same addresses on every host."""
    right, wrong = made(), made()
    with counting("127.0.1.10", certificate=right) as server, counting("127.0.1.9", server.port, wrong) as other:
        call(FetcherAddress(HERE, server.port, ("127.0.1.9", "127.0.1.10"), right.pem))
        assert (other.calls, server.calls) == (0, 1)


def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting() as server:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("no_grpc_proxy", raising=False)
        with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as plain, pytest.raises(flight.FlightError):
            plain.do_get(flight.Ticket(b"")).read_all()
        call(FetcherAddress(HERE, server.port), HERE)
        assert server.calls == 1


# -- the certificate


@pytest.mark.parametrize("days", [-3650, -1, 1], ids=["a run of ten years", "a clock behind", "a clock ahead"])
def test_clocks_a_day_off_and_long_runs_are_borne(days: float) -> None:
    certificate = made(days)
    with counting(certificate=certificate) as server:
        call(FetcherAddress(HERE, server.port, (), certificate.pem), HERE)


def test_a_certificate_of_the_same_name_that_is_another_is_refused() -> None:
    right, wrong = made(), made()
    expected = "another certificate than the fetcher's is shown there: .*self-signed"
    with counting(certificate=wrong) as server:
        with pytest.raises(FetcherUnreachableError, match=expected):
            call(FetcherAddress(HERE, server.port, (), right.pem), HERE)
        assert server.calls == 0


def test_nothing_is_said_in_the_clear_to_one_who_cannot_encrypt() -> None:
    with counting() as server:
        with pytest.raises(FetcherUnreachableError, match="handshake failed"):
            call(FetcherAddress(HERE, server.port, (), made().pem), HERE)
        assert server.calls == 0


# -- nobody there


def test_nobody_there_says_so() -> None:
    with pytest.raises(
        FetcherUnreachableError, match=r"no fetcher answers at grpc://127\.0\.0\.1:1 \(.*Connection refused"
    ):
        call(FetcherAddress(HERE, 1), HERE)


def test_every_address_that_was_tried_is_named_with_what_happened_there() -> None:
    with mute("127.0.1.11", 0) as hole:
        port = hole.getsockname()[1]
        address = FetcherAddress(HERE, port, ("127.0.1.11", "no-such-host.invalid", "::1"), made().pem)
        with pytest.raises(FetcherUnreachableError) as caught:
            call(address, connect_seconds=1.0)
    message = str(caught.value)
    assert f"no fetcher answers at grpc+tls://127.0.1.11:{port} (" in message
    assert ", after 1 s), grpc+tls://no-such-host.invalid" in message
    assert f"grpc+tls://[::1]:{port} (" in message and "Connection refused" in message
    assert "security groups" in message and "'fetcherPort'" in message and "'fetcherHost'" in message


def test_a_task_that_has_no_way_is_told_what_to_do() -> None:
    with pytest.raises(
        FetcherUnreachableError, match=r"loopback address only, .* another network namespace .*'fetcherHost'"
    ):
        call(FetcherAddress(HERE, 1))


# -- a service that ends


@pytest.fixture
def client() -> Iterator[FetcherClient]:
    with (
        Ending("grpc://127.0.0.1:0") as server,
        FetcherClient(FetcherAddress(HERE, server.port), "secret", namespace=HERE) as client,
    ):
        yield client


def test_a_range_that_the_service_cuts_off_says_that_it_stopped(client: FetcherClient) -> None:
    with pytest.raises(FetcherUnreachableError, match="has stopped in the middle of a call"):
        _ = [list(payloads) for _, _, payloads in client.get([WANTED])]


# -- from one task to the next


def read_all(address: FetcherAddress, kept: ConnectionCache, namespace: str = HERE) -> None:
    with FetcherClient(address, "secret", namespace=namespace, kept=kept) as client:
        for _, _, payloads in client.get([WANTED]):
            assert [bytes(payload) for payload in payloads] == [b"{1}", b"{2}"]


@pytest.fixture
def kept() -> Iterator[ConnectionCache]:
    clients = ConnectionCache()
    yield clients
    clients.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_tasks_of_a_worker_share_a_connection_within_the_machine(kept: ConnectionCache, encrypted: bool) -> None:
    certificate = made() if encrypted else None
    with counting(certificate=certificate) as service:
        address = FetcherAddress(HERE, service.port, (), certificate.pem if certificate else None)
        for _ in range(3):
            read_all(address, kept)
        assert (service.calls, len(set(service.peers))) == (3, 1)


def test_another_hosts_connection_is_closed_after_the_task(kept: ConnectionCache) -> None:
    """When a host has gone, nobody says so: a connection to it would wait for an answer."""
    with counting() as service:
        for _ in range(2):
            read_all(FetcherAddress("elsewhere", service.port, ("localhost",)), kept)
        assert len(set(service.peers)) == 2


def test_a_connection_that_was_kept_to_one_that_has_gone_costs_no_task(kept: ConnectionCache) -> None:
    with counting() as before:
        address = FetcherAddress(HERE, before.port)
        read_all(address, kept)
    with counting(port=address.port) as after:
        read_all(address, kept)
        assert after.calls == 1
    with pytest.raises(FetcherUnreachableError, match="no fetcher answers"):
        read_all(address, kept)


def test_a_kept_connection_that_fails_gives_way_to_a_new_one(kept: ConnectionCache) -> None:
    with counting() as gone:
        nobody = gone.port
    with counting() as service:
        address = FetcherAddress(HERE, service.port)
        kept.keep(address, flight.FlightClient(f"grpc://127.0.0.1:{nobody}"))
        for _ in range(2):
            read_all(address, kept)
        assert (service.calls, len(set(service.peers))) == (2, 1)


def test_a_connection_is_not_kept_after_an_error_or_a_task_that_ends_early(kept: ConnectionCache) -> None:
    with Ending("grpc://127.0.0.1:0") as service, pytest.raises(FetcherUnreachableError):
        read_all(FetcherAddress(HERE, service.port), kept)
    with counting() as service:
        address = FetcherAddress(HERE, service.port)
        with FetcherClient(address, "secret", namespace=HERE, kept=kept) as client:
            next(client.get([WANTED]))
        assert kept.take(address) is None
        read_all(address, kept)
        assert kept.take(address) is not None
