"""The fetcher's service lets nobody in without the secret of the run, and no secret out."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kinesis_efo.errors import FetcherError, FetcherRefusedError, KinesisEfoError
from kinesis_efo.fetcher import serving
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.client import FetcherClient
from kinesis_efo.fetcher.messages import GET
from kinesis_efo.fetcher.status import STATUS, StatusAccess
from kinesis_efo.fetcher.wire import Frame, Kind, LostError, Wire
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey, ShardRange
from tests.support.fetching import reading
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
EVERYTHING = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, SHARD_END)
TICKET = b'{"ranges":[["orders","shardId-000000000000","TRIM_HORIZON","SHARD_END"]]}'
EVERY_CALL = {GET: TICKET, STATUS: b"{}", "stop": b""}


@contextmanager
def connected(address: FetcherAddress) -> Iterator[Wire]:
    wire = Wire(socket.create_connection(("127.0.0.1", address.port), 10))
    try:
        wire.greeted(10)
        yield wire
    finally:
        wire.close()


def asked(address: FetcherAddress, head: object, body: bytes = b"", kind: Kind = Kind.REQUEST) -> Frame:
    """The answer to the only call of a connection."""
    with connected(address) as wire:
        wire.send(kind, head if isinstance(head, bytes) else msgspec.json.encode(head), [body])
        return wire.receive(10)


def test_no_call_is_answered_without_the_secret(world: MakeWorld) -> None:
    with reading(world()) as r:
        address, right = r.runtime.address, r.runtime.secret
        assert len(right) >= 43, "256 bits in base64"
        guesses = ["", "guessed", right[:-1], right + "x", right.swapcase(), f" {right}", "\u20ac"]
        for name, body in EVERY_CALL.items():
            heads: list[object] = [{"secret": guess, "name": name} for guess in guesses]
            for head in [
                *heads,
                {"name": name},
                {"secret": None, "name": name},
                [right, name],
                b"",
                b"\xff" * 100,
                b'{"secret":"\xff","name":"get"}',
            ]:
                assert asked(address, head, body) == (Kind.REFUSED, b"", b"")
        known = {"secret": right, "name": GET}
        for kind in set(Kind) - {Kind.REQUEST}:
            assert asked(address, known, TICKET, kind).kind is Kind.REFUSED


def _is_sent_in_vain(sock: socket.socket) -> bool:
    try:
        sock.sendall(b" ")
    except OSError:
        return True
    return False


def test_a_stranger_is_not_listened_to(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a long head is taken of it, nor a long body, nor a second call, nor does it keep a connection."""
    monkeypatch.setattr(serving, "STRANGER_SECONDS", 1.0)
    with reading(world()) as r:
        address = r.runtime.address
        with pytest.raises(LostError):
            asked(address, b" " * 10_000)
        with connected(address) as wire:
            wire.send(Kind.REQUEST, b"{}")
            assert wire.receive(10).kind is Kind.REFUSED
            with suppress(LostError):
                wire.send(Kind.REQUEST, msgspec.json.encode({"secret": r.runtime.secret, "name": GET}), [TICKET])
            with pytest.raises(LostError):
                wire.receive(10)
        with socket.create_connection(("127.0.0.1", address.port), 10) as stranger:
            stranger.sendall(struct.pack(">BIQ", Kind.REQUEST, 2, 1 << 40) + b"{}" + b"x" * 1000)
            assert stranger.makefile("rb").read(14 + 13)[14:15] == bytes([Kind.REFUSED])
        with connected(address) as wire, pytest.raises(LostError):
            wire.receive(30)
        # A byte now and then gains it no time.
        with socket.create_connection(("127.0.0.1", address.port), 10) as stranger:
            stranger.sendall(struct.pack(">BIQ", Kind.REQUEST, 8000, 0))
            wait_until(lambda: _is_sent_in_vain(stranger), 10, every=0.1)
        # One that has shown the secret may take its time.
        with connected(address) as wire:
            for _ in range(2):
                wire.send(Kind.REQUEST, msgspec.json.encode({"secret": r.runtime.secret, "name": STATUS}), [b"{}"])
                assert wire.receive(10).kind is Kind.ANSWER
                time.sleep(1.5)


def test_strangers_keep_out_nobody_who_knows_the_secret(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: those who have shown the secret do not count, and a stranger's time ends."""
    monkeypatch.setattr(serving, "STRANGER_SECONDS", 1.0)
    monkeypatch.setattr(serving, "MOST_STRANGERS", 4)
    with reading(world()) as r, ExitStack() as stack:
        address, call = r.runtime.address, msgspec.json.encode({"secret": r.runtime.secret, "name": STATUS})
        known = [stack.enter_context(connected(address)) for _ in range(2)]
        for wire in known:
            wire.send(Kind.REQUEST, call, [b"{}"])
            assert wire.receive(10).kind is Kind.ANSWER
        began = threading.active_count()
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", address.port), 10))
        with connected(address) as wire:
            assert threading.active_count() <= began + 4
            wire.send(Kind.REQUEST, call, [b"{}"])
            assert wire.receive(10).kind is Kind.ANSWER
        for _ in range(10):
            # Nor those who have gone, or were refused.
            assert asked(address, {"secret": "guessed", "name": STATUS}).kind is Kind.REFUSED


def test_the_token_in_the_runs_row_opens_its_status_and_nothing_else(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"private")])
    with reading(w) as r:
        r.until(1)
        row = w.leases()["#run:orders"]
        access = StatusAccess.parse(row["status"]["S"])
        assert access.address == replace(r.runtime.address, nearby=""), "tools are not in a hurry"
        assert r.runtime.secret not in str(row)
        said = asked(access.address, {"secret": access.token, "name": STATUS}, b"{}").head
        assert b"shardId-000000000000" in said
        assert b"private" not in said
        assert r.runtime.secret.encode() not in said
        for name in (GET, "stop"):
            assert asked(access.address, {"secret": access.token, "name": name}, TICKET).kind is Kind.REFUSED
        for given in ("", "guessed", access.token[:-1]):
            assert asked(access.address, {"secret": given, "name": STATUS}, b"{}").kind is Kind.REFUSED
    wait_until(lambda: "status" not in w.leases()["#run:orders"])


def test_nonsense_with_the_right_secret_is_an_error_of_that_call_only(world: MakeWorld) -> None:
    w = world()
    w.put([("k", b"data")])
    tickets = [b"", b"\xff" * 1000, TICKET.replace(b"TRIM_HORIZON", b"SOON"), TICKET.replace(b"orders", b"nowhere")]
    tickets.append(TICKET.replace(b"orders", b"\xff"))
    with reading(w) as r, connected(r.runtime.address) as wire:
        calls = [(GET, ticket) for ticket in tickets] + [("none", b""), (STATUS, b"[]")]
        for name, body in calls:
            wire.send(Kind.REQUEST, msgspec.json.encode({"secret": r.runtime.secret, "name": name}), [body])
            assert wire.receive(10).kind is Kind.ERROR, (name, body)
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
