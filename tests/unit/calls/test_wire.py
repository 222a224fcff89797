"""Frames between the processes of a run: whole, or not at all."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kinesis_efo.calls.wire import (
    ALONE_BYTES,
    GREETING,
    MOST_HEAD,
    PROOF_BYTES,
    Frame,
    Kind,
    LostError,
    Wire,
)

LARGE = bytes(range(256)) * 8000


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        one.settimeout(10)
        other.settimeout(10)
        yield one, other


@pytest.fixture
def pair(sockets: tuple[socket.socket, socket.socket]) -> tuple[Wire, socket.socket]:
    """One end, and the socket of the other."""
    one, other = sockets
    return Wire(one), other


def sent(wire: Wire, other: socket.socket, head: bytes, parts: list[bytes]) -> Frame:
    """A frame, as the other side receives it."""
    thread = threading.Thread(target=lambda: wire.send(Kind.EVENTS, head, parts))
    thread.start()
    frame = Wire(other).receive(10)
    thread.join(10)
    return frame


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"a", b"", b"b"],
        [b"x" * (ALONE_BYTES - 1), b"y" * ALONE_BYTES, b"z"],
        [LARGE, b"1", b"2", LARGE, LARGE],
    ],
)
def test_a_frame_arrives_as_it_was_sent(pair: tuple[Wire, socket.socket], parts: list[bytes]) -> None:
    for head in (b"", b"{}", b"h" * 100_000):
        frame = sent(*pair, head, parts)
        assert (frame.kind, frame.head, bytes(frame.body)) == (Kind.EVENTS, head, b"".join(parts))
        assert frame.body.readonly, "the native core takes nothing else"


def test_a_frame_is_whole_wherever_it_is_cut(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    wire.send(Kind.ANSWER, b"head", [b"body"])
    wire.send(Kind.END)
    raw = other.recv(1000)

    def trickle() -> None:
        for at in range(len(raw)):
            other.sendall(raw[at : at + 1])

    thread = threading.Thread(target=trickle)
    thread.start()
    assert wire.receive(10) == (Kind.ANSWER, b"head", b"body")
    assert wire.receive(10) == (Kind.END, b"", b"")
    thread.join()
    for length in range(len(raw)):
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            cut, _ = server.accept()
        with one, cut:
            cut.sendall(raw[:length])
            cut.shutdown(socket.SHUT_WR)
            for _ in range(length >= 21):
                assert Wire(one).receive(10).kind is Kind.ANSWER
            with pytest.raises(LostError, match="closed"):
                Wire(one).receive(10)


@pytest.mark.parametrize(
    "said", [struct.pack(">BIQ", 9, 0, 0), struct.pack(">BIQ", 2, MOST_HEAD + 1, 0), b"HTTP/1.1 400 Bad"]
)
def test_what_is_no_frame_is_not_taken_for_one(pair: tuple[Wire, socket.socket], said: bytes) -> None:
    wire, other = pair
    other.sendall(said)
    with pytest.raises(LostError, match="what was received is not a frame"):
        wire.receive(10)


CHANNEL = b"a certificate"


@contextmanager
def challenging(other: socket.socket, *secrets: str, channel: bytes = CHANNEL) -> Iterator[Future[int | None]]:
    """A service at the other end; gives which secret the caller has proven."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(Wire(other).challenge, secrets, channel, time.monotonic() + 10)


def test_each_side_proves_that_it_knows_the_secret(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    for known, index in (("secret", 0), ("token", 1), ("guessed", None)):
        with challenging(other, "secret", "token") as proven:
            assert wire.prove(known, CHANNEL, time.monotonic() + 10) is (index is not None)
            assert proven.result() == index


def test_a_proof_for_another_channel_is_worth_nothing(pair: tuple[Wire, socket.socket]) -> None:
    """As one that is passed on by a host in between that shows a certificate of its own."""
    wire, other = pair
    with challenging(other, "secret", channel=b"another certificate") as proven:
        assert not wire.prove("secret", CHANNEL, time.monotonic() + 10)
        assert proven.result() is None


def test_a_proof_cannot_be_used_twice_nor_sent_back(sockets: tuple[socket.socket, socket.socket]) -> None:
    between, other = sockets
    with challenging(other, "secret") as proven, ThreadPoolExecutor(1) as thread:
        seen = socket.socketpair()
        # A host in between notes what a caller says to one challenge, and says it to the next one.
        caller = thread.submit(Wire(seen[0]).prove, "secret", CHANNEL, time.monotonic() + 10)
        challenge = between.recv(len(GREETING) + PROOF_BYTES, socket.MSG_WAITALL)
        seen[1].sendall(challenge)
        said = seen[1].recv(2 * PROOF_BYTES, socket.MSG_WAITALL)
        between.sendall(said)
        assert proven.result() == 0
        # A service that does not know the secret can only send the caller's own proof back.
        seen[1].sendall(said[PROOF_BYTES:])
        with pytest.raises(LostError, match="does not have the secret of this run"):
            caller.result()
        for sock in seen:
            sock.close()
    with challenging(other, "secret") as proven:
        between.recv(PROOF_BYTES + len(GREETING) + PROOF_BYTES, socket.MSG_WAITALL)
        between.sendall(said)
        assert proven.result() is None


def test_what_is_no_service_of_this_version_is_left(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.prove("secret", CHANNEL, began + 0.3)
    assert 0.3 <= time.monotonic() - began < 5
    for said in (b"SSH-2.0-OpenSSH_9.6\n", b"kinesis-efo 1\n"):
        one, there = socket.socketpair()
        with one, there:
            there.sendall(said)
            expected = rf"something else answers there, or another version of kinesis-efo: b'{said[:7].decode()}"
            with pytest.raises(LostError, match=expected):
                Wire(one).prove("secret", CHANNEL, time.monotonic() + 10)
            there.setblocking(False)
            with pytest.raises(BlockingIOError):
                there.recv(1)


def test_message_within_a_call_is_received(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    assert not wire.speaks
    Wire(other).send(Kind.END)
    assert wire.speaks
    assert wire.receive(10).kind is Kind.END
    assert not wire.speaks


@pytest.mark.slow
def test_silent_peer_is_abandoned(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            wire.receive(0.3)
        assert 0.3 <= time.monotonic() - began < 5
    other.sendall(struct.pack(">BIQ", Kind.ANSWER, 2, 9) + b"{}")
    with pytest.raises(TimeoutError):
        wire.receive(0.3)


@pytest.mark.slow
def test_slow_peer_is_not_abandoned(pair: tuple[Wire, socket.socket]) -> None:
    """Its host confirms what it has room for. What a host does that has vanished is seen between hosts."""
    wire, _ = pair
    wire.unacknowledged_seconds = 0.5
    with pytest.raises(TimeoutError):
        wire.send(Kind.EVENTS, b"", [LARGE] * 20, time.monotonic() + 0.5)
    give_up_at = time.monotonic() + 3
    while time.monotonic() < give_up_at:
        assert not wire.unreachable
        time.sleep(0.1)
