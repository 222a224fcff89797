"""A blocking HTTP/2 client for tests of servers. It opens no window and ends nothing by itself, unless told to."""

from __future__ import annotations

import json
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings

SECONDS = 20.0
_GOAWAY = 7
CREDENTIAL = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/{}/aws4_request"


class H2Client:
    """One connection.

    Args:
        port: Of the server on loopback.
        ca_path: Verifies the server of a TLS port; None for a connection in the clear.
        upgrade: A request to begin with in HTTP/1.1, as bytes, and to upgrade; its answer is that of stream 1.
        window: What the server may send ahead on each stream; the default is HTTP/2's.
        consume: Whether windows are opened again as data arrives.

    Attributes:
        headers: The headers of each stream's answer.
        bodies: What has arrived of each stream's body.
        ended: Streams that ended well.
        resets: The error codes of the streams that were reset.
        goaways: Last stream and error code of every GOAWAY.
        pongs: Number of PINGs that were answered.
        settings: What the server's settings say.
        closed: How the connection ended; None while it is open.
    """

    def __init__(
        self,
        port: int,
        *,
        ca_path: str | None = None,
        upgrade: bytes | None = None,
        window: int = 65_535,
        consume: bool = True,
    ) -> None:
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaways: list[tuple[int, int]] = []
        self.pongs = 0
        self.settings: dict[int, int] = {}
        self.closed: str | None = None
        self.consume = consume
        self._received = bytearray()
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        if ca_path is not None:
            context = ssl.create_default_context(cafile=ca_path)
            context.set_alpn_protocols(["h2", "http/1.1"])
            encrypted = context.wrap_socket(self.socket, server_hostname="localhost")
            assert encrypted.selected_alpn_protocol() == "h2"
            self.socket = encrypted
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        if upgrade is None:
            self.h2.initiate_connection()
        else:
            self._upgrade(upgrade)
        self.flush()

    def call(self, operation: str, params: Any, service: str = "kinesis") -> int:
        """Call an operation of Kinesis; returns the number of the stream."""
        body = params if isinstance(params, bytes) else json.dumps(params).encode()
        return self.send("POST", "/", body, [("x-amz-target", f"Kinesis_20131202.{operation}")], service)

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        service: str = "kinesis",
    ) -> int:
        """Send a request, as the windows allow it and until it is refused; returns the number of the stream."""
        number = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        signed = [("authorization", CREDENTIAL.format(service)), ("content-type", "application/x-amz-json-1.1")]
        self.h2.send_headers(number, [*pseudo, *signed, *headers], end_stream=not body)
        sent = 0
        while sent < len(body):
            self.until(lambda: number in self.resets or self.h2.local_flow_control_window(number) > 0)
            if number in self.resets:
                break
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(body) - sent)
            self.h2.send_data(number, body[sent : sent + size], end_stream=sent + size == len(body))
            sent += size
            self.flush()
        self.flush()
        return number

    def answer(self, number: int) -> tuple[int, bytes]:
        """Read the whole answer of a stream."""
        self.until(lambda: number in self.ended or number in self.resets or self.closed)
        assert number in self.ended, (self.resets, self.goaways, self.closed)
        return int(self.headers[number][":status"]), bytes(self.bodies[number])

    def reset(self, number: int) -> None:
        """Cancel a stream."""
        self.h2.reset_stream(number, 8)
        self.flush()

    def ping(self) -> None:
        """Send a PING, and wait for its answer: until then, everything that the server sent before has arrived."""
        before = self.pongs
        self.h2.ping(b"12345678")
        self.flush()
        self.until(lambda: self.pongs > before)

    def until(self, condition: Callable[[], Any]) -> None:
        """Read until the condition is true.

        Raises:
            TimeoutError: Nothing came for a long time.
        """
        while not condition():
            assert self.closed is None, f"the connection was closed: {self.closed}"
            self.read()

    def to_end(self) -> None:
        """Read until the server closes the connection."""
        while self.closed is None:
            self.read()

    def read(self) -> None:
        """Read what the next turn brings."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            self.closed = "reset"
            return
        if not data:
            self.closed = "end"
            return
        self._received += data
        while len(self._received) >= 9 and len(self._received) >= (
            size := 9 + int.from_bytes(self._received[:3], "big")
        ):
            frame = bytes(self._received[:size])
            del self._received[:size]
            if frame[3] == _GOAWAY:
                # h2 would take nothing more from this connection, nor let streams go on.
                self.goaways.append((int.from_bytes(frame[9:13], "big"), int.from_bytes(frame[13:17], "big")))
                continue
            for event in self.h2.receive_data(frame):
                self._note(event)
        self.flush()

    def flush(self) -> None:
        """Send what h2 has to send."""
        if data := self.h2.data_to_send():
            # What the server sent before its end can still be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                self.socket.sendall(data)

    def close(self) -> None:
        """Close the connection without a word."""
        self.socket.close()

    def __enter__(self) -> H2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _upgrade(self, request: bytes) -> None:
        settings = self.h2.initiate_upgrade_connection()
        assert settings is not None
        head, _, body = request.partition(b"\r\n\r\n")
        # Without padding, as the standard has it.
        more = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings.rstrip(b"=")
        self.socket.sendall(head + more + b"\r\n\r\n" + body)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            assert byte, answer
            answer += byte
        assert answer.startswith(b"HTTP/1.1 101 "), answer

    def _note(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                self.headers[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]
            case DataReceived():
                self.bodies[event.stream_id] += event.data
                if self.consume:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                self.resets[event.stream_id] = int(event.error_code)
            case PingAckReceived():
                self.pongs += 1
            case RemoteSettingsChanged():
                self.settings |= {int(code): change.new_value for code, change in event.changed_settings.items()}
