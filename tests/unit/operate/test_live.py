"""What is believed of a shard, of its row and of the run that reads it; hostile rows and runs are given up on."""

import asyncio
import base64
import contextlib
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import fingerprint
from kinesis_efo.calls.wire import Wire
from kinesis_efo.fetcher.status import ShardStatus, StatusAccess
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Position
from kinesis_efo_tools.operate.live import MOST_SECONDS, RunReplies, ask, brought_up_to_date


@pytest.mark.parametrize(
    ("row", "told", "query", "position", "read_until"),
    [
        (20, "AFTER:50", None, 50, 9.0),
        (20, "AFTER:50", 2, 50, 9.0),
        # It was written after the run had answered.
        (50, "AFTER:20", None, 50, 9.0),
        # A query began behind the row, which is the other one's.
        (50, "AFTER:20", 2, 20, None),
        (50, None, None, 50, 9.0),
    ],
)
def test_newer_position_of_row_and_run_counts(
    row: int, told: str | None, query: int | None, position: int, read_until: float | None
) -> None:
    rows = {"s-1": Lease("orders:s-1", checkpoint=Position.after(row), read_until=9.0, written=1.0)}
    status = ShardStatus("orders", "s-1", "AFTER:90", 0, 0, None, 0, done=told, query=query)
    found = brought_up_to_date(rows, {"s-1": status}, "orders", 100.0)["s-1"]
    assert (found.reached, found.read_until) == (Position.after(position), read_until)


@contextlib.contextmanager
def hostile(then: Callable[[socket.socket], object]) -> Iterator[str]:
    """A service that knows the token of a row, and then does as it likes. Gives the text of the row."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    Wire(connection).challenge(["token"], fingerprint(None), time.monotonic() + 10)
                    then(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield StatusAccess(FetcherAddress("elsewhere", listening.getsockname()[1], ("127.0.0.1",)), "token").to_text()


def drip(connection: socket.socket) -> None:
    connection.sendall(struct.pack(">BIQ", 2, 1 << 20, 0))
    while True:
        connection.sendall(b" ")
        time.sleep(0.2)


def replies(status: str) -> RunReplies:
    return asyncio.run(ask({"orders": Lease(run_key("orders"), owner="host", status=status)}))


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (lambda each: each.sendall(struct.pack(">BIQ", 2, 0, 1 << 62)), "what was received is not a frame"),
        (drip, "did not answer in time"),
    ],
)
def test_hostile_run_is_given_up_on(then: Callable[[socket.socket], object], reason: str) -> None:
    began = time.monotonic()
    with hostile(then) as status:
        assert reason in replies(status).reasons["host"]
    assert time.monotonic() - began < MOST_SECONDS


def test_many_silent_addresses_are_given_up_together() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listening:  # accepts nothing
        hosts = tuple(f"127.0.0.{number}" for number in range(2, 12))
        status = StatusAccess(FetcherAddress("elsewhere", listening.getsockname()[1], hosts), "token").to_text()
        rows = {"orders": Lease(run_key("orders"), owner="host", status=status)}
        assert asyncio.run(ask(rows, seconds=3)).reasons == {"host": "no reply within 3 s"}


@pytest.mark.parametrize(
    "reply",
    [
        {"at": 1e300, "shards": []},
        {"at": 1, "shards": [["orders", "s", "TRIM_HORIZON", 0, 0, None, 10**18]]},
        {"at": 1, "shards": [["orders", "s", "nowhere", 0, 0, None, 1]]},
        {"at": 1, "shards": [], "queries": [{"number": 1, "streams": [], "millis": 10**18}]},
    ],
)
def test_impossible_reply_or_row_is_refused(reply: dict[str, object]) -> None:
    head = json.dumps(reply).encode()
    with hostile(lambda each: each.sendall(struct.pack(">BIQ", 2, len(head), 0) + head)) as status:
        assert replies(status).reasons["host"]
    bomb = base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()
    assert "unpacks to too many bytes" in replies(bomb).reasons["host"]
