"""Which protocol carries subscriptions: what the option says, what the service speaks, what aiobotocore is asked for."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from kinesis_efo.http2.session import _head
from tests.support.answers import FixedClock
from tests.support.authority import Authority
from tests.support.http2_peer import EVENT_STREAM, http2_peer

from .conftest import client, event, hold, read

PREFACE = b"PRI * HTTP/2.0"
TYPE = EVENT_STREAM["content-type"]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of the protocol."""
    caplog.set_level(logging.DEBUG, "kinesis_efo")
    return lambda: [record.getMessage() for record in caplog.records if "reading over" in record.getMessage()]


class OnlyHttp1:
    """A server of HTTP/1.1."""

    def __init__(self) -> None:
        self.connections = 0
        self.prefaces = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = b""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(PREFACE):
                self.prefaces += 1
                writer.write(b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + TYPE.encode() + b"\r\n\r\n")
                writer.write(event())
                await reader.read()  # Until the client hangs up.
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()


@asynccontextmanager
async def only_http1(tls: ssl.SSLContext | None = None) -> AsyncIterator[OnlyHttp1]:
    server = OnlyHttp1()
    listening = await asyncio.start_server(server.serve, "localhost" if tls else "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()
    await listening.wait_closed()


async def test_in_the_clear_http2_is_not_guessed() -> None:
    async with only_http1() as server, client(server, "auto") as aws:  # type: ignore[arg-type]
        for stream in await aws.subscribe_all(20):
            assert await read(stream, 1) == [1]
            assert stream.http.version == "HTTP/1.1"
        assert server.prefaces == 0


async def test_http2_is_offered_again_after_five_minutes(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    clock, authority = FixedClock(0), Authority(tmp_path)
    async with only_http1(authority.server("localhost", alpn=())) as server:
        where = f"https://localhost:{server.port}"
        async with client(where, "auto", clock=clock, verify=authority.path) as aws:
            for seconds, connections in [(0, 2), (299, 3), (1.5, 5), (100, 6)]:
                clock.pass_by(seconds)
                assert await read(await aws.subscribe(), 1) == [1]
                assert server.connections == connections, "one more if it is asked for HTTP/2"
    assert len(said()) == 1


async def test_http2_is_logged_once_with_its_limit(said: Callable[[], list[str]]) -> None:
    async with http2_peer(hold) as server, client(server) as aws:
        await aws.subscribe_all(12)
        assert said() == [f"127.0.0.1:{server.port}: reading over HTTP/2, 5 streams per connection"]


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)])
async def test_tls_without_http2_falls_back_to_http1(
    tmp_path: Path, alpn: tuple[str, ...], said: Callable[[], list[str]]
) -> None:
    authority = Authority(tmp_path)
    async with only_http1(authority.server("localhost", alpn=alpn)) as server:
        async with client(f"https://localhost:{server.port}", "auto", verify=authority.path) as aws:
            stream = await aws.subscribe()
            assert await read(stream, 1) == [1]
            assert (stream.http.version, stream.http.tls) == ("HTTP/1.1", "TLSv1.3")
            stream.close()
        (line,) = said()
        assert "did not choose HTTP/2 in TLS' handshake (ALPN)" in line
        assert server.prefaces == 0


async def test_unencrypted_service_behind_a_proxy_uses_http1() -> None:
    # A proxy gets requests of HTTP/1.1 with the whole URL, which this server does not look at.
    async with only_http1() as proxy:
        proxies = {"http": f"http://127.0.0.1:{proxy.port}"}
        async with client("http://kinesis.test", "auto", proxies=proxies) as aws:
            assert await read(await aws.subscribe(), 1) == [1]
        assert proxy.prefaces == 0


# -- the request


async def test_signed_headers_are_sent_and_secrets_not_indexed() -> None:
    async with http2_peer(hold) as server, client(server) as aws:
        await aws.subscribe()
        (peer,) = server.peers
        headers = server.requests[0].headers
        assert headers[":authority"] == f"127.0.0.1:{server.port}"
        assert headers["x-amz-security-token"] == "token-of-a-role"
        assert headers["accept-encoding"] == "identity"
        assert "host" not in headers
        signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert "host" in signed
        assert set(signed) - {"host"} <= set(headers), "nothing that was signed is left out"
        table = dict(peer.h2.decoder.header_table.dynamic_entries)
        assert b"x-amz-target" in table, "what is no secret is"
        assert not {b"x-amz-security-token", b"authorization"} & set(table)


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://kinesis.eu-west-1.amazonaws.com/", "kinesis.eu-west-1.amazonaws.com"),
        ("https://kinesis.eu-west-1.amazonaws.com:443/", "kinesis.eu-west-1.amazonaws.com"),
        ("https://kinesis.test:8443/", "kinesis.test:8443"),
        ("http://[::1]:80/", "[::1]"),
        ("http://[::1]:443/", "[::1]:443"),
    ],
)
def test_the_authority_is_the_host_that_was_signed(url: str, authority: str) -> None:
    request = AWSRequest("POST", url, data=b"{}")
    SigV4Auth(Credentials("a", "b"), "kinesis", "eu-west-1").add_auth(request)
    signed = SigV4Auth(Credentials("a", "b"), "kinesis", "eu-west-1").headers_to_sign(request)["host"]
    assert dict(_head(request.prepare()))[":authority"] == authority == signed
