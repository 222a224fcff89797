"""Whether a fetcher's process has ended, as its port tells."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.run.probe import nobody_listens
from tests.support.ports import free_ports

LISTENING, REFUSING, SILENT = "127.0.2.1", "127.0.2.2", ("127.0.2.3", "127.0.2.4", "127.0.2.5")
NOWHERE = "no-such-host.invalid"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port with a listener at one address, nobody at another, and hosts that drop what comes at the others."""
    (number,) = free_ports()
    with ExitStack() as stack:
        stack.enter_context(socket.create_server((LISTENING, number)))
        for host in SILENT:
            # The queue of connections is full: the kernel drops what comes then.
            stack.enter_context(socket.create_server((host, number), backlog=0))
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, number))
        yield number


@pytest.mark.parametrize(
    ("hosts", "ended"),
    [
        ((REFUSING,), True),
        ((LISTENING,), False),
        (SILENT[:1], False),
        ((NOWHERE,), False),
        ((NOWHERE, REFUSING), True),
        ((REFUSING, LISTENING), False),
        ((REFUSING, *SILENT[:1]), False),
        ((), False),
    ],
)
def test_only_what_is_certain_counts(port: int, hosts: tuple[str, ...], ended: bool) -> None:
    assert asyncio.run(nobody_listens(FetcherAddress("elsewhere", port, hosts))) is ended


def test_all_ways_are_tried_at_once(port: int) -> None:
    began = time.monotonic()
    assert not asyncio.run(nobody_listens(FetcherAddress("elsewhere", port, SILENT)))
    assert 0.9 <= time.monotonic() - began < 2.5
