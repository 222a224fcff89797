"""Frames between the processes of a run: whole, or not at all."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kinesis_efo.fetcher import wire as module
from kinesis_efo.fetcher.wire import ALONE_BYTES, GREETING, MOST_HEAD, Frame, Kind, LostError, Wire

LARGE = bytes(range(256)) * 8000


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    """One end, and the socket of the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        other.settimeout(10)
        yield Wire(one), other


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
    with pytest.raises(LostError, match="what comes is no frame"):
        wire.receive(10)


def test_who_accepts_says_who_it_is(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.greeted(0.3)
    assert 0.3 <= time.monotonic() - began < 5
    Wire(other).greet(10)
    wire.greeted(10)
    other.sendall(b"SSH-2.0-OpenSSH_9.6")
    with pytest.raises(LostError, match=r"something else answers there, or another version of kinesis-efo: b'SSH-2\.0"):
        wire.greeted(10)
    assert len(GREETING) <= len(b"SSH-2.0-OpenSSH_9.6")


def test_one_that_says_nothing_is_given_up(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            wire.receive(0.3)
        assert 0.3 <= time.monotonic() - began < 5
    other.sendall(struct.pack(">BIQ", Kind.ANSWER, 2, 9) + b"{}")
    with pytest.raises(TimeoutError):
        wire.receive(0.3)


def test_one_that_takes_nothing_is_given_up(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.send(Kind.EVENTS, b"", [LARGE] * 20, began + 0.5)
    assert 0.5 <= time.monotonic() - began < 5
    with pytest.raises(TimeoutError):
        wire.send(Kind.END, give_up_at=began)


def test_one_that_has_gone_takes_nothing(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    assert not wire.speaks
    other.close()
    with pytest.raises(LostError):
        wire.send(Kind.EVENTS, b"", [LARGE] * 20, time.monotonic() + 10)
    assert wire.speaks


def test_a_word_in_the_middle_of_a_call_is_seen(pair: tuple[Wire, socket.socket]) -> None:
    wire, other = pair
    assert not wire.speaks
    Wire(other).send(Kind.END)
    assert wire.speaks
    assert wire.receive(10).kind is Kind.END
    assert not wire.speaks


def test_another_thread_can_end_what_one_waits_for(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    timer = threading.Timer(0.3, wire.cut)
    timer.start()
    with pytest.raises(LostError):
        wire.receive(None)
    timer.join()
    wire.cut()


def test_one_that_is_only_slow_is_not_taken_for_vanished(
    pair: tuple[Wire, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host confirms what it has room for. What a host does that has vanished is seen between hosts."""
    monkeypatch.setattr(module, "UNHEARD_SECONDS", 0.5)
    wire, _ = pair
    with pytest.raises(TimeoutError):
        wire.send(Kind.EVENTS, b"", [LARGE] * 20, time.monotonic() + 0.5)
    give_up_at = time.monotonic() + 3
    while time.monotonic() < give_up_at:
        assert not wire.unheard
        time.sleep(0.1)


class Recording:
    """A socket that takes everything, and keeps what it was given at a time."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.taken: list[memoryview] = []

    def setsockopt(self, *_: int) -> None:
        pass

    def settimeout(self, _: float | None) -> None:
        pass

    def send(self, data: memoryview) -> int:
        self.taken.append(data)
        return len(data)


def test_large_payloads_are_not_copied_and_small_ones_cost_no_call_each() -> None:
    sock: Any = Recording()
    large = b"x" * ALONE_BYTES
    Wire(sock).send(Kind.EVENTS, b"{}", [b"a", large, *[b"b"] * 1000, large, b"c"])
    assert [len(piece) for piece in sock.taken] == [16, ALONE_BYTES, 1000, ALONE_BYTES, 1]
    assert [piece.obj is large for piece in sock.taken] == [False, True, False, True, False]
