"""Where a fetcher's service listens: on what it was told, and on nothing else."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from kinesis_efo.calls.address import Listening, network_namespace
from kinesis_efo.calls.tls import make_certificate
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.service import FetcherService
from tests.support.messages import raises
from tests.support.ports import accepts, free_ports


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(stack: ExitStack, listening: Listening, certificate: Any = None) -> FetcherService:
    """A service that is never called."""
    fetcher: Any = None
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    return stack.enter_context(FetcherService(fetcher, loop, "secret", listening, certificate))


def taken(stack: ExitStack, host: str = "127.0.0.1") -> int:
    """A port that somebody listens on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return int(stack.enter_context(socket.create_server((host, 0), family=family)).getsockname()[1])


def test_loopback_alone(stack: ExitStack) -> None:
    address = serve(stack, Listening()).address
    assert (address.namespace, address.hosts, address.certificate) == (network_namespace(), (), None)
    assert accepts(address.port, "127.0.0.1")
    assert not accepts(address.port, "127.0.0.2")


def test_every_address_of_both_families(stack: ExitStack) -> None:
    certificate = make_certificate(datetime.now(UTC))
    address = serve(stack, Listening("0.0.0.0", hosts=("driver",)), certificate).address
    assert (address.namespace, address.hosts, address.certificate) == (
        network_namespace(),
        ("driver",),
        certificate.pem,
    )
    assert accepts(address.port, "127.0.0.1")
    assert accepts(address.port, "127.0.0.2")
    if socket.has_dualstack_ipv6():
        assert accepts(address.port, "::1")


def test_it_ends_although_a_caller_comes_at_that_moment(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, goes_on, start = threading.Event(), threading.Event(), threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        if thread.name == "kinesis-efo fetcher call":
            starts.set()
            assert goes_on.wait(30)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    service = serve(stack, Listening())
    stack.enter_context(socket.create_connection(("127.0.0.1", service.address.port), 10))
    assert starts.wait(30)
    ended = stack.enter_context(ThreadPoolExecutor(1)).submit(service.shutdown)
    goes_on.set()
    ended.result(30)


def test_one_address_is_not_reached_over_loopback(stack: ExitStack) -> None:
    # Another process may have the same port of the loopback address where the system chooses it.
    address = serve(stack, Listening("127.0.0.2", free_ports(), hosts=("127.0.0.2",))).address
    assert address.hosts_from(network_namespace()) == ("127.0.0.2",)
    assert accepts(address.port, "127.0.0.2")
    assert not accepts(address.port, "127.0.0.1")


@pytest.mark.parametrize("certificate", [None, make_certificate(datetime.now(UTC))], ids=["clear", "tls"])
def test_a_port_that_another_fetcher_has_is_not_shared(stack: ExitStack, certificate: Any) -> None:
    port = serve(stack, Listening("0.0.0.0"), certificate).address.port
    for bind in ("0.0.0.0", "127.0.0.1", "::"):
        with pytest.raises(FetcherError, match=rf"cannot listen on {bind}, port {port}: .*Address already in use"):
            serve(stack, Listening(bind, range(port, port + 1)), certificate)


def test_the_first_free_port_of_a_range(stack: ExitStack) -> None:
    first = taken(stack)
    port = serve(stack, Listening(ports=range(first, first + 20))).address.port
    assert first < port < first + 20


def test_a_range_that_is_taken_is_named(stack: ExitStack) -> None:
    ports = free_ports(2)
    stack.enter_context(socket.create_server(("127.0.0.1", ports[0])))
    message = (
        rf"the fetcher cannot listen on 127\.0\.0\.1, port {ports[0]}: .*Address already in use.*\. Give ports that are free on host "
        r"\S+, one for each query that runs there \(kinesis-efo option 'fetcherPort'\)"
    )
    with pytest.raises(FetcherError, match=message):
        serve(stack, Listening(ports=ports[:1]))
    assert serve(stack, Listening(ports=ports)).address.port == ports[1]
    with pytest.raises(FetcherError, match=rf"127\.0\.0\.1, ports {ports[0]}-{ports[1]}: "):
        serve(stack, Listening(ports=ports))


def test_another_port_is_tried_only_if_one_is_taken(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody knows would be looked up once for each port of the range."""
    tried = []

    def listen(_: Listening, port: int) -> None:
        tried.append(port)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(Listening, "listen", listen)
    with raises(
        FetcherError,
        "the fetcher cannot listen on nobody, ports 4000-4999: ...not known. Give ports that are free on host ..., one for "
        "each query that runs there (kinesis-efo option 'fetcherPort'), and an address that the host has "
        "('fetcherHost')",
    ):
        serve(stack, Listening("nobody", range(4000, 5000)))
    assert tried == [4000]


@pytest.mark.parametrize(
    ("host", "reason"),
    [("198.51.100.1", "Cannot assign requested address"), ("no-such-host.invalid", "not known|resolution|lookup")],
)
def test_address_of_another_host_is_named(stack: ExitStack, host: str, reason: str) -> None:
    with pytest.raises(FetcherError, match=rf"cannot listen on {host}, any free port: .*({reason})"):
        serve(stack, Listening(host))


def test_a_name_is_one_address(stack: ExitStack) -> None:
    address = serve(stack, Listening("localhost", hosts=("localhost",))).address
    assert (address.hosts, address.certificate) == (("localhost",), None)
    assert accepts(address.port, "localhost")
