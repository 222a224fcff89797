"""TLS, certificates and proxies: as aiobotocore resolves them, and never in the clear by accident."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)

from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.transport import BotoEventStream
from tests.support.authority import Authority
from tests.support.connect_proxy import connect_proxy
from tests.support.coroutine_tests import until
from tests.support.http2_peer import Http2Peer, http2_peer

from .conftest import Client, client, hold, read


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def refused(aws: Client, kind: type[Exception] | tuple[type[Exception], ...], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        await aws.subscribe()
    assert classify(caught.value).verdict is Verdict.RETRY


@asynccontextmanager
async def encrypted(
    authority: Authority, host: str = "localhost", *, tls: Any = None, transport: str = "http2", **config: Any
) -> AsyncIterator[tuple[Http2Peer, Client]]:
    """A server with a certificate for `host`, and a client of it."""
    context = tls or authority.server(host)
    async with (
        http2_peer(hold, tls=context, host=host if host == "::1" else "localhost") as server,
        client(
            f"https://{'[::1]' if host == '::1' else 'localhost'}:{server.port}",
            transport,
            **{"verify": authority.path, **config},
        ) as aws,
    ):
        yield server, aws


async def reads(aws: Client, count: int = 1) -> list[BotoEventStream]:
    streams = await aws.subscribe_all(count)
    assert [await read(stream, 1) for stream in streams] == [[1]] * count
    return streams


@asynccontextmanager
async def listening(serve: Any, tls: Any = None) -> AsyncIterator[str]:
    """A server that does what it likes; gives its URL."""
    server = await asyncio.start_server(serve, "localhost", 0, ssl=tls)
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def test_auto_agrees_on_http2_over_tls(authority: Authority) -> None:
    tls = authority.server("localhost", alpn=("h2", "http/1.1"))
    async with encrypted(authority, tls=tls, transport="auto") as (server, aws):
        streams = await reads(aws, 12)
        assert len(server.peers) == 3
        assert (streams[0].http.version, streams[0].http.tls) == ("HTTP/2", "TLSv1.3")
        assert {request.headers[":authority"] for request in server.requests} == {f"localhost:{server.port}"}


@pytest.mark.parametrize(
    ("host", "config", "error"),
    [
        ("localhost", {"verify": None, "transport": "auto"}, "certificate verify failed"),
        ("elsewhere.test", {}, "Hostname mismatch"),
        ("elsewhere.test", {"verify": False}, None),
    ],
    ids=["unknown authority", "another host", "nothing is verified"],
)
async def test_wrong_certificate_is_refused_unless_none_is_verified(
    authority: Authority, host: str, config: dict[str, Any], error: str | None
) -> None:
    async with encrypted(authority, host, **config) as (server, aws):
        if error is None:
            await reads(aws)
        else:
            await refused(aws, SSLError, error)
            assert server.requests == []


async def test_authority_of_the_environment_is_trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.path)
    async with encrypted(authority, verify=None) as (_, aws):
        await reads(aws)


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)])
async def test_service_without_http2_is_refused(authority: Authority, alpn: tuple[str, ...]) -> None:
    async with encrypted(authority, tls=authority.server("localhost", alpn=alpn)) as (server, aws):
        await refused(aws, HTTPClientError, r"'transport' is 'http2', but localhost:\d+ speaks HTTP/1.1: .*ALPN")
        await until(lambda: all(peer.gone.is_set() for peer in server.peers))
        assert server.requests == []


async def test_client_certificates_are_sent(authority: Authority) -> None:
    tls = authority.server("localhost", clients=True)
    certificate = authority.certificate("reader")
    for given in (certificate, (certificate, certificate)):
        async with encrypted(authority, tls=tls, client_cert=given) as (_, aws):
            await reads(aws)
    async with encrypted(authority, tls=tls) as (_, aws):
        await refused(aws, Exception, "(?i)certificate required|closed|lost")


async def test_missing_client_certificate_is_named_and_looked_for_again(authority: Authority) -> None:
    certificate = authority.certificate("reader")
    os.rename(certificate, aside := f"{certificate}.aside")  # noqa: PTH104
    tls = authority.server("localhost", clients=True)
    async with encrypted(authority, tls=tls, client_cert=certificate) as (_, aws):
        await refused(aws, HTTPClientError, r"client certificate '.*reader.pem': .*No such file.*; check")
        os.rename(aside, certificate)  # noqa: PTH104
        await reads(aws)


async def test_ipv6_address_is_in_brackets(authority: Authority) -> None:
    async with encrypted(authority, "::1") as (server, aws):
        await reads(aws)
        assert server.requests[0].headers[":authority"] == f"[::1]:{server.port}"


@pytest.mark.parametrize("shakes_hands", [False, True])
async def test_silent_service_is_given_up(authority: Authority, shakes_hands: bool) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    options: dict[str, Any] = {"verify": authority.path, "connect_timeout": 0.3, "read_timeout": 3}
    async with (
        listening(silent, authority.server("localhost") if shakes_hands else None) as url,
        client(url, "auto", **options) as aws,
    ):
        await refused(aws, ConnectTimeoutError, "Connect timeout on endpoint")


async def test_garbage_is_no_reason_for_http1(authority: Authority) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with (
        listening(garbage, authority.server("localhost")) as url,
        client(url, "auto", verify=authority.path) as aws,
    ):
        await refused(aws, EndpointConnectionError, "it says b'HTTP/1.1 400 Bad Request")


# -- proxies


async def test_proxy_of_the_environment_is_used(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with encrypted(authority, transport="auto") as (server, aws):
            assert (await reads(aws, 6))[0].http.version == "HTTP/2"
            assert [head.split("\r\n")[:2] for head in proxy.asked] == [
                [f"CONNECT localhost:{server.port} HTTP/1.1", f"Host: localhost:{server.port}"]
            ] * 2


@pytest.mark.parametrize("login", ["reader:s3cret", "reader:", "r%40der:s%3A cret", "reäder:s"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_login_of_a_proxy_is_sent(authority: Authority, login: str, scheme: str) -> None:
    plain = login.replace("%40", "@").replace("%3A", ":")
    tls = authority.server("127.0.0.1", alpn=()) if scheme == "https" else None
    async with connect_proxy(tls=tls, login=plain) as proxy:
        url = f"{scheme}://{login.replace(' ', '%20')}@127.0.0.1:{proxy.port}"
        async with encrypted(authority, proxies={"https": url}) as (_, aws):
            await reads(aws)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answers 'HTTP/1.1 407 Proxy Auth"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "it answers 'HTTP/1.1 502"),
        (b"SSH-2.0-server\r\n\r\n", "it answers 'SSH-2.0-server'"),
        (b"HTTP/1.1 2000\r\n\r\n", "it answers 'HTTP/1.1 2000'"),
        (b"\xff" * 100_000, "it answers"),
        (b"", "it closed the connection"),
        (b"HTTP/1.1 200 OK\r\n", "it closed the connection"),
    ],
)
async def test_answer_of_a_proxy_that_refuses_is_reported(answer: bytes, text: str) -> None:
    async with connect_proxy(answer=answer) as proxy:
        url = f"http://reader:s3cret@127.0.0.1:{proxy.port}"
        async with client("https://localhost:9", "auto", proxies={"https": url}) as aws:
            with pytest.raises(ProxyConnectionError, match=text) as caught:
                await aws.subscribe()
            assert "s3cret" not in str(caught.value)
            assert classify(caught.value).verdict is Verdict.RETRY


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b""])
async def test_proxy_that_does_not_hang_up_is_left(answer: bytes) -> None:
    async with connect_proxy(answer=answer, hangs_up=False) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with client("https://localhost:9", proxies={"https": url}, connect_timeout=0.3) as aws:
            await refused(aws, (ProxyConnectionError, ConnectTimeoutError), "407|Connect timeout")
            await until(lambda: not proxy.ways)


async def test_no_proxy_of_the_environment_is_heeded(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost")
    async with encrypted(authority) as (_, aws):
        await reads(aws)


async def test_wrong_certificate_behind_a_proxy_is_refused(authority: Authority) -> None:
    async with connect_proxy() as proxy:
        proxies = {"https": f"http://127.0.0.1:{proxy.port}"}
        async with encrypted(authority, "elsewhere.test", transport="auto", proxies=proxies) as (_, aws):
            await refused(aws, SSLError, "Hostname mismatch")


async def test_proxy_before_an_unencrypted_service_is_refused() -> None:
    async with client("http://localhost:9", proxies={"http": "http://127.0.0.1:9"}) as aws:
        await refused(aws, HTTPClientError, "localhost:9 is reached through a proxy and without TLS")
