"""Unix sockets within a host: found by their names, and only by processes of the same user."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinesis_efo.fetcher import nearby

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    sock = nearby.listen()
    assert sock is not None
    with sock:
        yield sock


def test_one_is_reached_by_its_name_and_leaves_no_file(listening: socket.socket) -> None:
    name = nearby.name(listening)
    with nearby.connected(name, 5) as one, listening.accept()[0] as other:
        one.sendall(b"hello")
        assert other.recv(5) == b"hello"
        assert one.gettimeout() == 5
        assert nearby.is_own(one)
        assert nearby.is_own(other)
    assert f"@{name}" in Path("/proc/net/unix").read_text()
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        nearby.connected(name, 5)


def test_no_two_have_one_name(listening: socket.socket) -> None:
    other = nearby.listen()
    assert other is not None
    with other:
        assert nearby.name(other) != nearby.name(listening)


def test_another_users_process_is_nobody(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(nearby.os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match="another user"):
        nearby.connected(nearby.name(listening), 5)
    with listening.accept()[0] as other:
        assert not nearby.is_own(other)


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby.sys, "platform", "darwin")
    assert nearby.listen() is None
