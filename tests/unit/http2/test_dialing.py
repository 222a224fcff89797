"""Connections are opened over whichever address answers, and every failure is one that is tried again."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from kinesis_efo.http2 import dialing
from kinesis_efo.http2.dialing import Origin, dial


class NoConnection:
    def abort(self, error: Exception) -> None:
        self.error = error


def dialed(port: int) -> None:
    asyncio.run(dial(Origin("http", "localhost", port), None, None, NoConnection))  # type: ignore[arg-type]


def test_reused_file_number_is_a_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(addresses: Sequence[Any], **_: Any) -> socket.socket:
        assert addresses
        raise RuntimeError("File descriptor 7 is used by transport")

    monkeypatch.setattr(dialing, "start_connection", start)
    with pytest.raises(ConnectionError, match="localhost:8080: File descriptor 7 is used by transport"):
        dialed(8080)


def test_closed_port_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=str(port)):
        dialed(port)
