"""How the client finds a fetcher, and what it makes of one that is not there, not the right one, or ends."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from kinesis_efo.calls import service as serving
from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.connection import Connection, ConnectionCache
from kinesis_efo.calls.service import Call, Service, Stopped
from kinesis_efo.calls.tls import Certificate, fingerprint, make_certificate
from kinesis_efo.calls.wire import GREETING, PROOF_BYTES, Kind, Wire
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.messages import raises
from tests.support.ports import accepts
from tests.support.world import wait_until

KEY = ShardKey("orders", "shardId-000000000000")
WANTED = ShardRange(KEY, Position.parse("TRIM_HORIZON"), Position.parse("AFTER:7"))
HERE = "this namespace"


def send(call: Call, *payloads: bytes) -> None:
    call.send(Kind.EVENTS, msgspec.json.encode([(0, [len(payload) for payload in payloads])]), payloads)


class Ending(Service):
    """Ends every call as a service does that is shut down in the middle of it."""

    def __init__(self) -> None:
        super().__init__(None, "secret", Listening())

    def act(self, call: Call, name: str, body: bytes) -> None:
        send(call, b"{}")
        raise Stopped


class Counting(Service):
    """Counts calls and has two events for every range.

    Attributes:
        connections: The connection of each call: each has a thread of its own.
    """

    def __init__(self, listening: Listening, certificate: Certificate | None = None) -> None:
        self.connections: list[threading.Thread] = []
        super().__init__(None, "secret", listening, certificate)

    @property
    def calls(self) -> int:
        return len(self.connections)

    @property
    def port(self) -> int:
        return self.address.port

    def act(self, call: Call, name: str, body: bytes) -> None:
        self.connections.append(threading.current_thread())
        send(call, b"{1}", b"{2}")


def counting(host: str = "127.0.0.1", port: int = 0, certificate: Certificate | None = None) -> Counting:
    return Counting(Listening(host, range(port, port + 1)), certificate)


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


def test_a_range_is_read_by_a_later_way_too() -> None:
    certificate = made()
    with counting("127.0.1.6", certificate=certificate) as server:
        address = FetcherAddress(HERE, server.port, ("127.0.1.5", "127.0.1.6"), certificate.pem)
        with FetcherClient(address, "secret", namespace="elsewhere") as client:
            assert [bytes(each) for answer in client.get([WANTED]) for each in answer.payloads] == [b"{1}", b"{2}"]


def test_silent_address_is_abandoned_and_tried_last() -> None:
    with counting("127.0.1.8") as server, mute("127.0.1.7", server.port) as hole:
        address = FetcherAddress(HERE, server.port, ("127.0.1.7", "127.0.1.8"))
        began = time.monotonic()
        call(address)
        assert 0.4 < time.monotonic() - began < 10
        assert connections(hole) > 0
        call(address)
        assert (server.calls, connections(hole)) == (2, 0)


def test_another_fetcher_at_an_address_is_skipped() -> None:
    """Bridges of containers have the same addresses on every host."""
    right, wrong = made(), made()
    with counting("127.0.1.10", certificate=right) as server, counting("127.0.1.9", server.port, wrong) as other:
        call(FetcherAddress(HERE, server.port, ("127.0.1.9", "127.0.1.10"), right.pem))
        assert (other.calls, server.calls) == (0, 1)


def test_within_a_host_a_unix_socket_is_the_way() -> None:
    """Also for a service that encrypts: nobody else can listen in."""
    certificate = made()
    for server in (counting(), Counting(Listening("0.0.0.0"), certificate)):
        with server:
            assert server.address.nearby
            nowhere = replace(server.address, namespace=HERE, port=1)
            call(nowhere, HERE)
            assert server.calls == 1
            with pytest.raises(FetcherUnreachableError, match="Connection refused"):
                call(replace(nowhere, hosts=("127.0.0.1",)))


def test_tcp_with_tls_replaces_an_unreachable_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = made()
    with Counting(Listening("0.0.0.0"), certificate) as server:
        call(replace(server.address, namespace=HERE, nearby="nobody"), HERE)
        # The service takes this process for another user's, and closes the connection.
        monkeypatch.setattr(serving, "is_own", lambda _: False)
        call(replace(server.address, namespace=HERE), HERE)
        assert server.calls == 2
        with raises(
            FetcherUnreachableError,
            "no fetcher answers at tls://... (Connection refused). It runs next to the driver while its query runs. Allow executors to "
            "connect to it (security groups, network policies; kinesis-efo option 'fetcherPort' fixes "
            "its port), or set an address that they can reach ('fetcherHost')",
        ):
            call(replace(server.address, namespace=HERE, port=1), HERE)


def test_new_owner_of_a_port_receives_nothing() -> None:
    """Any user of the host can: the fetcher has a Unix socket, so that nothing else is used in the clear."""
    with counting() as gone:
        address = replace(gone.address, namespace=HERE)
    with socket.create_server(("127.0.0.1", address.port)) as thief:
        thief.setblocking(False)
        with pytest.raises(FetcherUnreachableError, match="by its Unix socket: Connection refused"):
            call(address, HERE)
        assert connections(thief) == 0


def test_new_owner_of_a_port_learns_no_secret() -> None:
    """It poses as the fetcher, in this version or the last one."""
    secret, heard = "the secret of the run", []
    for said in (b"kinesis-efo 1\n", GREETING + bytes(PROOF_BYTES)):
        with socket.create_server(("127.0.0.1", 0)) as thief, ThreadPoolExecutor(1) as thread:

            def listens(thief: socket.socket = thief, said: bytes = said) -> bytes:
                with thief.accept()[0] as sock:
                    sock.settimeout(10)
                    sock.sendall(said)
                    heard = sock.recv(1 << 16)
                    with suppress(OSError):
                        sock.sendall(heard[-PROOF_BYTES:])
                        heard += sock.recv(1 << 16)
                return heard

            hearing = thread.submit(listens)
            address = FetcherAddress(HERE, thief.getsockname()[1])
            with FetcherClient(address, secret, namespace=HERE) as client, pytest.raises(FetcherUnreachableError):
                next(client.get([WANTED]))
            heard.append(hearing.result())
    assert [len(each) for each in heard] == [0, 2 * PROOF_BYTES]
    assert secret.encode() not in b"".join(heard)


# -- the certificate


@pytest.mark.parametrize("days", [-3650, -1, 1], ids=["a run of ten years", "a clock behind", "a clock ahead"])
def test_clocks_a_day_off_and_long_runs_are_tolerated(days: float) -> None:
    certificate = made(days)
    with counting(certificate=certificate) as server:
        call(FetcherAddress(HERE, server.port, (), certificate.pem), HERE)


def test_another_certificate_of_the_same_name_is_refused() -> None:
    right, wrong = made(), made()
    expected = "not the fetcher's certificate: .*self-signed"
    with counting(certificate=wrong) as server:
        with pytest.raises(FetcherUnreachableError, match=expected):
            call(FetcherAddress(HERE, server.port, (), right.pem), HERE)
        assert server.calls == 0


def test_nothing_is_sent_unencrypted_to_a_peer_without_tls() -> None:
    with counting() as server:
        with pytest.raises(FetcherUnreachableError, match="handshake failed"):
            call(FetcherAddress(HERE, server.port, (), made().pem), HERE)
        assert server.calls == 0


# -- nobody there


def test_each_tried_address_is_named_with_its_failure() -> None:
    with mute("127.0.1.11", 0) as hole:
        port = hole.getsockname()[1]
        address = FetcherAddress(HERE, port, ("127.0.1.11", "no-such-host.invalid", "::1"), made().pem)
        with pytest.raises(FetcherUnreachableError) as caught:
            call(address, connect_seconds=1.0)
    message = str(caught.value)
    assert f"no fetcher answers at tls://127.0.1.11:{port} (" in message
    assert ", after 1 s), tls://no-such-host.invalid" in message
    assert f"tls://[::1]:{port} (" in message and "Connection refused" in message
    assert "security groups" in message and "'fetcherPort'" in message and "'fetcherHost'" in message


def test_task_without_a_reachable_address_names_the_remedy() -> None:
    with raises(
        FetcherUnreachableError,
        "the fetcher listens on the loopback address only, and this task is in another network namespace: set an address that tasks can "
        "reach (kinesis-efo option 'fetcherHost')",
    ):
        call(FetcherAddress(HERE, 1))


# -- a service that ends


@pytest.fixture
def client() -> Iterator[FetcherClient]:
    with (
        Ending() as server,
        FetcherClient(FetcherAddress(HERE, server.address.port), "secret", namespace=HERE) as client,
    ):
        yield client


def test_range_cut_off_by_the_service_reports_the_stop(client: FetcherClient) -> None:
    with pytest.raises(FetcherUnreachableError, match="has stopped in the middle of a call"):
        _ = [list(payloads) for _, payloads in client.get([WANTED])]


class Told(msgspec.Struct):
    name: str


class Late(Service):
    """Answers with the name of the call; `late` once it may."""

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()
        super().__init__(None, "secret", Listening())

    def act(self, call: Call, name: str, body: bytes) -> Told:
        if name == "late":
            self.asked.set()
            assert self.may.wait(10)
        return Told(name)


def test_late_answer_is_not_used_for_the_next_call() -> None:
    with Late() as service, Connection(service.address, "secret") as connection:
        assert connection.action("first", Told(""), Told, 10).name == "first"
        with raises(FetcherUnreachableError, "the fetcher at tcp://... did not answer in time"):
            connection.action("late", Told(""), Told, 0.3)
        service.may.set()
        assert connection.action("next", Told(""), Told, 10).name == "next"


def test_ending_service_answers_only_the_running_call() -> None:
    with Late() as service, ThreadPoolExecutor(2) as threads, Connection(service.address, "secret") as connection:
        service.grace_seconds = 120.0
        answer = threads.submit(connection.action, "late", Told(""), Told, 30)
        assert service.asked.wait(30)
        ended = threads.submit(service.shutdown)
        wait_until(lambda: not accepts(service.address.port), 30)
        service.may.set()
        assert answer.result(30).name == "late"
        ended.result(30)


# -- from one task to the next


def read_all(address: FetcherAddress, kept: ConnectionCache, namespace: str = HERE) -> None:
    with FetcherClient(address, "secret", namespace=namespace, kept=kept) as client:
        for _, payloads in client.get([WANTED]):
            assert [bytes(payload) for payload in payloads] == [b"{1}", b"{2}"]


@pytest.fixture
def kept() -> Iterator[ConnectionCache]:
    clients = ConnectionCache()
    yield clients
    clients.close()


def test_a_connection_that_was_kept_is_of_one_secret(kept: ConnectionCache) -> None:
    with counting() as service:
        address = FetcherAddress(HERE, service.port)
        read_all(address, kept)
        with pytest.raises(FetcherRefusedError):
            next(FetcherClient(address, "guessed", namespace=HERE, kept=kept).get([WANTED]))
        assert service.calls == 1


def test_another_hosts_connection_is_closed_after_the_task(kept: ConnectionCache) -> None:
    """When a host has gone, nobody says so: a connection to it would wait for an answer."""
    with counting() as service:
        for _ in range(2):
            read_all(FetcherAddress("elsewhere", service.port, ("localhost",)), kept)
        assert len(set(service.connections)) == 2


def test_kept_connection_to_a_dead_fetcher_fails_no_task(kept: ConnectionCache) -> None:
    with counting() as before:
        address = FetcherAddress(HERE, before.port)
        read_all(address, kept)
    with counting(port=address.port) as after:
        read_all(address, kept)
        assert after.calls == 1
    with pytest.raises(FetcherUnreachableError, match="no fetcher answers"):
        read_all(address, kept)


def test_failed_kept_connection_is_replaced(kept: ConnectionCache) -> None:
    with counting() as gone:
        wire = Wire(socket.create_connection(("127.0.0.1", gone.port)))
        assert wire.prove("secret", fingerprint(None), time.monotonic() + 10)
    with counting() as service:
        address = FetcherAddress(HERE, service.port)
        kept.put((address, "secret"), wire)
        for _ in range(2):
            read_all(address, kept)
        assert (service.calls, len(set(service.connections))) == (2, 1)


def test_failed_or_unfinished_task_closes_its_connection(kept: ConnectionCache) -> None:
    with Ending() as ending, pytest.raises(FetcherUnreachableError):
        read_all(FetcherAddress(HERE, ending.address.port), kept)
    with counting() as service:
        address = FetcherAddress(HERE, service.port)
        with FetcherClient(address, "secret", namespace=HERE, kept=kept) as client:
            next(client.get([WANTED]))
        assert kept.pop((address, "secret")) is None
        with suppress(ZeroDivisionError), FetcherClient(address, "secret", namespace=HERE, kept=kept) as client:
            reading = client.get([WANTED])
            next(reading)
            raise ZeroDivisionError
        assert kept.pop((address, "secret")) is None
        read_all(address, kept)
        wire = kept.pop((address, "secret"))
        assert wire is not None
        wire.close()


def test_the_ways_are_tried_in_order() -> None:
    with counting("127.0.1.3") as third, counting("127.0.1.4", third.port) as fourth:
        call(FetcherAddress(HERE, third.port, ("127.0.1.2", "no-such-host.invalid", "127.0.1.3", "127.0.1.4")))
        assert (third.calls, fourth.calls) == (1, 0)


def test_one_address_is_no_way_within_the_host() -> None:
    with Counting(Listening("127.0.0.2", hosts=("127.0.0.2",))) as server:
        assert not server.address.nearby


@pytest.mark.parametrize("encrypted", [False, True])
def test_tasks_of_a_worker_share_a_local_connection(kept: ConnectionCache, encrypted: bool) -> None:
    certificate = made() if encrypted else None
    with counting(certificate=certificate) as service:
        address = FetcherAddress(HERE, service.port, (), certificate.pem if certificate else None)
        for _ in range(3):
            read_all(address, kept)
        assert (service.calls, len(set(service.connections))) == (3, 1)
