"""The fetcher's service lets nobody in without the secret of the run, and no secret out."""

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.connection import Connection
from kinesis_efo.calls.service import Call, Service
from kinesis_efo.calls.tls import Certificate, fingerprint, make_certificate
from kinesis_efo.calls.wire import GREETING, PROOF_BYTES, Frame, Kind, LostError, Request, Wire
from kinesis_efo.errors import FetcherError, FetcherRefusedError, KinesisEfoError
from kinesis_efo.fetcher.status import STATUS, RunStatus, StatusAccess, StatusRequest
from kinesis_efo.fetcher.work import GET
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.fetching import reading
from tests.support.messages import raises
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
EVERYTHING = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, SHARD_END)
TICKET = b'{"ranges":[["orders","shardId-000000000000","TRIM_HORIZON","SHARD_END"]]}'


@contextmanager
def connected(address: FetcherAddress, secret: str) -> Iterator[Wire]:
    """A connection by TCP that has proven a secret."""
    wire = Wire(socket.create_connection(("127.0.0.1", address.port), 10))
    try:
        assert wire.prove(secret, fingerprint(None), time.monotonic() + 10)
        yield wire
    finally:
        wire.close()


@contextmanager
def stranger(address: FetcherAddress, said: bytes = b"") -> Iterator[socket.socket]:
    """A connection by TCP that proves nothing. What it says may be cut off."""
    with socket.create_connection(("127.0.0.1", address.port), 10) as sock, suppress(ConnectionError):
        with suppress(ConnectionError):
            sock.sendall(said)
        yield sock


def heard(sock: socket.socket) -> bytes:
    """What a service says until it closes the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            said += part
    return said


def asked(wire: Wire, name: str, body: bytes) -> Frame:
    wire.send(Kind.REQUEST, msgspec.json.encode(Request(name)), [body])
    return wire.receive(10)


class Simple(Service):
    """Answers every call. `limits`: those of `Service`, by name."""

    def __init__(self, certificate: Certificate | None = None, **limits: float) -> None:
        vars(self).update(limits)
        super().__init__(None, "secret", Listening("127.0.0.1"), certificate)

    def act(self, call: Call, name: str, body: bytes) -> None:
        return None

    def by_tcp(self) -> FetcherAddress:
        return replace(self.address, namespace="elsewhere", hosts=("127.0.0.1",))


def is_answered(address: FetcherAddress) -> float:
    """How long a call with the secret took, on a connection of its own."""
    began = time.monotonic()
    with Connection(address, "secret") as connection:
        assert connection.call(Request("any"), b"", 30)[1].kind is Kind.END
    return time.monotonic() - began


def test_no_call_is_answered_without_the_secret(world: MakeWorld) -> None:
    with reading(world()) as r:
        address, right = r.runtime.address, r.runtime.secret
        for guess in ["", "guessed", right[:-1], right + "x", right.swapcase(), f" {right}", "\u20ac"]:
            for secured in (address, replace(address, nearby="")):
                with (
                    FetcherClient(secured, guess) as client,
                    raises(
                        FetcherRefusedError,
                        "the fetcher at tcp://... rejects this run's secret: it belongs to another run",
                    ),
                ):
                    next(client.get([EVERYTHING]))
        former = msgspec.json.encode({"secret": right, "name": GET})
        former = struct.pack(">BIQ", Kind.REQUEST, len(former), len(TICKET)) + former + TICKET
        for said in (former, bytes(2 * PROOF_BYTES), right.encode() * 2, b"\xff" * 1000):
            with stranger(address, said) as sock:
                assert heard(sock)[len(GREETING) + PROOF_BYTES :] in (bytes(PROOF_BYTES), b"")
        for kind in set(Kind) - {Kind.REQUEST}:
            with connected(address, right) as wire:
                wire.send(kind, msgspec.json.encode(Request(GET)), [TICKET])
                with pytest.raises(LostError):
                    wire.receive(10)


def _is_sent_in_vain(sock: socket.socket) -> bool:
    try:
        sock.sendall(b" ")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stranger_is_not_listened_to_for_long(encrypted: bool) -> None:
    certificate = make_certificate(datetime.now(UTC)) if encrypted else None
    with Simple(certificate, authentication_seconds=0.5) as service:
        with stranger(service.address) as silent:
            began = time.monotonic()
            assert len(heard(silent)) <= len(GREETING) + PROOF_BYTES
            assert time.monotonic() - began < 8
        # A byte now and then gains it no time.
        with stranger(service.address, b"\x16\x03\x01\x02\x00" if encrypted else b"") as slow:
            began = time.monotonic()
            wait_until(lambda: _is_sent_in_vain(slow), 10, every=0.05)
            assert time.monotonic() - began < 8
        # A caller that has proven the secret may take its time.
        with Connection(service.by_tcp(), "secret") as connection:
            for _ in range(2):
                assert connection.call(Request("any"), b"", 10)[1].kind is Kind.END
                time.sleep(0.8)


def test_what_strangers_send_takes_no_memory() -> None:
    """Each sends the request of an earlier version with a body of 1 MiB, but for the last byte."""
    said = struct.pack(">BIQ", Kind.REQUEST, 2, 1 << 20) + b"{}" + bytes((1 << 20) - 1)
    process = psutil.Process()
    with Simple() as service, ExitStack() as stack:
        before = process.memory_info().rss
        for _ in range(60):
            stack.enter_context(stranger(service.address, said))
        assert process.memory_info().rss - before < 20 << 20


def calls(service: Simple) -> int:
    """How many connections it serves, each in a thread."""
    return sum(thread.name == f"kinesis-efo {service.what} call" for thread in threading.enumerate())


def test_strangers_do_not_keep_callers_of_the_run_waiting() -> None:
    """Also if they take all places and say nothing, for which each has ten seconds if there is room."""
    with Simple(most_unauthenticated=8, hurry_seconds=0.2) as service, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(stranger(service.address))
        wait_until(lambda: calls(service) == 8, 10, "all places taken")
        assert is_answered(service.by_tcp()) < 7
        assert calls(service) <= 9, "and the one that was answered"


def test_processes_of_one_user_need_no_strangers_slot() -> None:
    with Simple(most_unauthenticated=1, hurry_seconds=60) as service, stranger(service.address) as sock:
        assert sock.recv(1), "it has the only place"
        assert is_answered(service.address) < 7


def test_caller_waiting_for_its_proof_check_stays_connected() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    with Simple(most_unauthenticated=2) as service, ExitStack() as stack:
        (ours, caller), (late, silent) = [[Wire(stack.enter_context(end)) for end in pair] for pair in pairs]
        caller.send(Kind.END)
        service._unauthenticated = dict.fromkeys((ours, late), time.monotonic() - 60)
        assert not service._has_place()
        with pytest.raises(LostError, match="it was closed"):
            silent.receive(10)
        assert ours.receive(10).kind is Kind.END
        ours.send(Kind.END)
        assert caller.receive(10).kind is Kind.END
        service._unauthenticated.clear()


def test_many_callers_of_a_run_share_few_slots() -> None:
    certificate = make_certificate(datetime.now(UTC))
    with Simple(certificate, most_unauthenticated=2) as service, ThreadPoolExecutor(16) as crowd:
        assert len(list(crowd.map(is_answered, [service.by_tcp()] * 40))) == 40


def test_token_of_the_row_opens_only_the_status(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"private")])
    with reading(w) as r:
        r.until(1)
        row = w.leases()["#run:orders"]
        access = StatusAccess.parse(row["status"]["S"])
        assert access.address == replace(r.runtime.address, nearby=""), "tools are not in a hurry"
        assert r.runtime.secret not in str(row)
        with connected(access.address, access.token) as tool:
            said = asked(tool, STATUS, b"{}").head
            assert b"shardId-000000000000" in said
            assert b"private" not in said
            assert r.runtime.secret.encode() not in said
            for name in (GET, "stop"):
                assert asked(tool, name, TICKET).kind is Kind.REFUSED
            with pytest.raises(LostError):  # noqa: PT012 - the reset may arrive while this still sends
                tool.send(Kind.REQUEST, msgspec.json.encode(Request(STATUS)), [bytes(100_000)])
                tool.receive(10)
        for given in ("", "guessed", access.token[:-1]):
            with pytest.raises(FetcherRefusedError), Connection(access.address, given) as connection:
                connection.action(STATUS, StatusRequest(), RunStatus, 10)
    wait_until(lambda: "status" not in w.leases()["#run:orders"])


def test_nonsense_with_the_right_secret_fails_only_its_call(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"data")])
    tickets = [b"", b"\xff" * 1000, TICKET.replace(b"TRIM_HORIZON", b"SOON"), TICKET.replace(b"orders", b"nowhere")]
    tickets.append(TICKET.replace(b"orders", b"\xff"))
    with reading(w) as r, connected(r.runtime.address, r.runtime.secret) as wire:
        calls = [(GET, ticket) for ticket in tickets] + [("none", b""), (STATUS, b"[]")]
        for name, body in calls:
            assert asked(wire, name, body).kind is Kind.ERROR, (name, body)
        assert [row.data for row in r.until(1)] == [b"data"]


def test_no_log_error_or_offset_shows_a_secret(
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
