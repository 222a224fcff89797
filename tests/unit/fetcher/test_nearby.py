"""Unix sockets within a host: found by their names, and only by processes of the same user."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinesis_efo.calls import address as module
from kinesis_efo.calls.address import connect_nearby, is_own, listen_nearby

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")


def name_of(sock: socket.socket) -> str:
    return bytes(sock.getsockname()[1:]).decode()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    sock = listen_nearby()
    assert sock is not None
    with sock:
        yield sock


def test_one_is_reached_by_its_name_and_leaves_no_file(listening: socket.socket) -> None:
    name = name_of(listening)
    with connect_nearby(name, 5) as one, listening.accept()[0] as other:
        one.sendall(b"hello")
        assert other.recv(5) == b"hello"
        assert one.gettimeout() == 5
        assert is_own(one)
        assert is_own(other)
    assert f"@{name}" in Path("/proc/net/unix").read_text()
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        connect_nearby(name, 5)


def test_no_two_have_one_name(listening: socket.socket) -> None:
    other = listen_nearby()
    assert other is not None
    with other:
        assert name_of(other) != name_of(listening)


def test_another_users_process_is_nobody(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(module.os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match="another user"):
        connect_nearby(name_of(listening), 5)
    with listening.accept()[0] as other:
        assert not is_own(other)


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert listen_nearby() is None
