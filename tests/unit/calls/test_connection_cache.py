"""Connections that stay open between tasks: whose they are, and how many."""

import subprocess
import sys
from typing import Any

import pytest

from kinesis_efo.calls.connection import ConnectionCache


class Client:
    closed = False
    speaks = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def kept() -> ConnectionCache:
    return ConnectionCache(at_most=2)


def clients(number: int) -> list[Any]:
    return [Client() for _ in range(number)]


def test_acquired_client_is_exclusive(kept: ConnectionCache) -> None:
    client = clients(1)[0]
    kept.put("here", client)
    assert kept.pop("elsewhere") is None
    assert kept.pop("here") is client
    assert kept.pop("here") is None
    kept.close()
    assert not client.closed


def test_client_closed_by_the_peer_is_dropped(kept: ConnectionCache) -> None:
    gone, here = clients(2)
    kept.put("there", gone)
    gone.speaks = True
    kept.put("here", here)
    assert (gone.closed, here.closed) == (True, False)
    assert kept.pop("there") is None


def test_the_one_that_waits_longest_makes_room(kept: ConnectionCache) -> None:
    made = clients(3)
    for name, client in zip("abc", made, strict=True):
        kept.put(name, client)
    assert [client.closed for client in made] == [True, False, False]
    assert kept.pop("a") is None


def test_forked_child_uses_no_client_of_its_parent() -> None:
    """In a process of its own, since a fork of this one would have its threads."""
    program = """
import os
from kinesis_efo.calls.connection import CONNECTIONS
from tests.unit.calls.test_connection_cache import Client

parents = Client()
CONNECTIONS.put("here", parents)
with CONNECTIONS._lock:
    child = os.fork()
if not child:
    own = Client()
    fresh = CONNECTIONS.pop("here") is None and parents.closed
    CONNECTIONS.put("here", own)
    CONNECTIONS.close()
    os._exit(0 if fresh and own.closed else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert CONNECTIONS.pop("here") is parents and not parents.closed
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_all_are_closed_at_the_end(kept: ConnectionCache) -> None:
    made = clients(2)
    for name, client in zip("ab", made, strict=True):
        kept.put(name, client)
    kept.close()
    kept.close()
    assert all(client.closed for client in made)
