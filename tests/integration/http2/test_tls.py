"""TLS, certificates and proxies: as aiobotocore resolves them, and never in the clear by accident."""

from __future__ import annotations

import asyncio
import os
import ssl
import warnings
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
from tests.support.authority import Authority
from tests.support.connect_proxy import connect_proxy
from tests.support.http2_peer import http2_peer

from .conftest import Client, client, hold, read, until


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def https(server: Any, host: str = "localhost") -> str:
    return f"https://{host}:{server.port}"


async def refused(aws: Client, kind: type[Exception] | tuple[type[Exception], ...], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        await aws.subscribe()
    assert classify(caught.value).verdict is Verdict.RETRY


async def test_http2_over_tls_is_agreed_on(authority: Authority) -> None:
    tls = authority.server("localhost", alpn=("h2", "http/1.1"))
    async with (
        http2_peer(hold, tls=tls, host="localhost") as server,
        client(https(server), "auto", verify=authority.path) as aws,
    ):
        streams = await aws.subscribe_all(12)
        assert [await read(stream, 1) for stream in streams] == [[1]] * 12
        assert len(server.peers) == 3
        assert (streams[0].http.version, streams[0].http.tls) == ("HTTP/2", "TLSv1.3")
        (authority_header,) = {request.headers[":authority"] for request in server.requests}
        assert authority_header == f"localhost:{server.port}"


async def test_authorities_of_the_environment(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.path)
    async with (
        http2_peer(hold, tls=authority.server("localhost"), host="localhost") as server,
        client(https(server)) as aws,
    ):
        assert await read(await aws.subscribe(), 1) == [1]


async def test_an_unknown_authority_is_refused(authority: Authority) -> None:
    async with http2_peer(hold, tls=authority.server("localhost"), host="localhost") as server:
        async with client(https(server), "auto") as aws:
            await refused(aws, SSLError, "certificate verify failed")
        assert server.requests == []


async def test_a_certificate_of_another_host_is_refused(authority: Authority) -> None:
    async with http2_peer(hold, tls=authority.server("elsewhere.test"), host="localhost") as server:
        async with client(https(server), verify=authority.path) as aws:
            await refused(aws, SSLError, "Hostname mismatch")
        assert server.requests == []


async def test_any_certificate_does_where_none_is_verified(authority: Authority) -> None:
    async with (
        http2_peer(hold, tls=authority.server("elsewhere.test"), host="localhost") as server,
        client(https(server), verify=False) as aws,
    ):
        assert await read(await aws.subscribe(), 1) == [1]


async def test_tls_before_1_2_is_refused(authority: Authority) -> None:
    tls = authority.server("localhost")
    tls.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tls.minimum_version = ssl.TLSVersion.TLSv1
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
        lenient = ssl.create_default_context(cafile=authority.path)
        lenient.set_ciphers("DEFAULT:@SECLEVEL=0")
        lenient.minimum_version = ssl.TLSVersion.TLSv1
    async with http2_peer(hold, tls=tls, host="localhost") as server:
        async with client(https(server), verify=authority.path) as aws:
            await refused(aws, (SSLError, EndpointConnectionError), "SSL|ConnectionResetError")
        _, writer = await asyncio.open_connection("localhost", server.port, ssl=lenient)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.1", "it is not the server's fault"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)])
async def test_a_service_that_does_not_agree_on_http2_is_refused_where_nothing_else_is_allowed(
    authority: Authority, alpn: tuple[str, ...]
) -> None:
    async with http2_peer(hold, tls=authority.server("localhost", alpn=alpn), host="localhost") as server:
        async with client(https(server), verify=authority.path) as aws:
            await refused(aws, HTTPClientError, r"'transport' is 'http2', but localhost:\d+ speaks HTTP/1.1: .*ALPN")
        await until(lambda: all(peer.gone.is_set() for peer in server.peers))
        assert server.requests == []


async def test_client_certificates(authority: Authority) -> None:
    tls = authority.server("localhost", clients=True)
    certificate = authority.certificate("reader")
    async with http2_peer(hold, tls=tls, host="localhost") as server:
        for given in (certificate, (certificate, certificate)):
            async with client(https(server), verify=authority.path, client_cert=given) as aws:
                assert await read(await aws.subscribe(), 1) == [1]
        async with client(https(server), verify=authority.path) as aws:
            await refused(aws, Exception, "(?i)certificate required|closed|lost")


async def test_a_client_certificate_that_is_not_there_is_named_and_looked_for_again(authority: Authority) -> None:
    certificate = authority.certificate("reader")
    os.rename(certificate, aside := f"{certificate}.aside")  # noqa: PTH104
    tls = authority.server("localhost", clients=True)
    async with (
        http2_peer(hold, tls=tls, host="localhost") as server,
        client(https(server), verify=authority.path, client_cert=certificate) as aws,
    ):
        await refused(aws, HTTPClientError, r"client certificate '.*reader.pem': .*No such file.*; check")
        os.rename(aside, certificate)  # noqa: PTH104
        assert await read(await aws.subscribe(), 1) == [1]


@pytest.mark.parametrize("encrypted", [True, False])
async def test_ipv6(authority: Authority, encrypted: bool) -> None:
    tls = authority.server("::1") if encrypted else None
    async with http2_peer(hold, tls=tls, host="::1") as server:
        url = f"{'https' if encrypted else 'http'}://[::1]:{server.port}"
        async with client(url, verify=authority.path) as aws:
            assert await read(await aws.subscribe(), 1) == [1]
            assert server.requests[0].headers[":authority"] == f"[::1]:{server.port}"


async def test_a_handshake_that_never_ends_is_given_up(authority: Authority) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "localhost", 0)
    port = listening.sockets[0].getsockname()[1]
    async with client(f"https://localhost:{port}", connect_timeout=0.2) as aws:
        await refused(aws, ConnectTimeoutError, "Connect timeout on endpoint")
    listening.close()
    await listening.wait_closed()


async def test_settings_that_never_come_are_waited_for_no_longer_than_a_connection(authority: Authority) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "localhost", 0, ssl=authority.server("localhost"))
    port = listening.sockets[0].getsockname()[1]
    async with client(
        f"https://localhost:{port}", "auto", verify=authority.path, connect_timeout=0.3, read_timeout=3
    ) as aws:
        await refused(aws, ConnectTimeoutError, "Connect timeout on endpoint")
    listening.close()
    await listening.wait_closed()


async def test_garbage_of_a_service_that_agreed_on_http2_is_no_reason_for_http1(authority: Authority) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(garbage, "localhost", 0, ssl=authority.server("localhost"))
    port = listening.sockets[0].getsockname()[1]
    async with client(f"https://localhost:{port}", "auto", verify=authority.path) as aws:
        await refused(aws, EndpointConnectionError, "it says b'HTTP/1.1 400 Bad Request")
    listening.close()
    await listening.wait_closed()


async def test_a_service_that_parts_slowly_holds_up_nobody(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TLS waits for the other side's goodbye, for half a minute.
    monkeypatch.setattr("kinesis_efo.http2.pool._PARTING_SECONDS", 0.1)
    async with http2_peer(hold, tls=authority.server("localhost"), host="localhost") as server:
        async with client(https(server), verify=authority.path) as aws:
            await aws.subscribe()
            reading: Any = server.peers[0]._reader._transport  # type: ignore[attr-defined]
            reading.pause_reading()
        reading.resume_reading()


# -- proxies


async def test_a_proxy_of_the_environment_is_asked_for_the_way(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = authority.server("localhost")
    async with http2_peer(hold, tls=tls, host="localhost") as server, connect_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with client(https(server), "auto", verify=authority.path) as aws:
            streams = await aws.subscribe_all(6)
            assert [await read(stream, 1) for stream in streams] == [[1]] * 6
            assert streams[0].http.version == "HTTP/2"
        assert [head.split("\r\n")[:2] for head in proxy.asked] == [
            [f"CONNECT localhost:{server.port} HTTP/1.1", f"Host: localhost:{server.port}"]
        ] * 2


@pytest.mark.parametrize("login", ["reader:s3cret", "reader:", "r%40der:s%3A cret", "reäder:s"])
async def test_a_proxy_that_asks_for_a_login(authority: Authority, login: str) -> None:
    plain = login.replace("%40", "@").replace("%3A", ":")
    tls = authority.server("localhost")
    async with http2_peer(hold, tls=tls, host="localhost") as server, connect_proxy(login=plain) as proxy:
        url = f"http://{login.replace(' ', '%20')}@127.0.0.1:{proxy.port}"
        async with client(https(server), verify=authority.path, proxies={"https": url}) as aws:
            assert await read(await aws.subscribe(), 1) == [1]


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
async def test_a_proxy_that_does_not_let_us_through(authority: Authority, answer: bytes, text: str) -> None:
    async with connect_proxy(answer=answer) as proxy:
        url = f"http://reader:s3cret@127.0.0.1:{proxy.port}"
        async with client("https://localhost:9", "auto", proxies={"https": url}) as aws:
            with pytest.raises(ProxyConnectionError, match=text) as caught:
                await aws.subscribe()
            assert "s3cret" not in str(caught.value)
            assert classify(caught.value).verdict is Verdict.RETRY


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b""])
async def test_a_proxy_that_waits_for_us_to_hang_up(authority: Authority, answer: bytes) -> None:
    async with connect_proxy(answer=answer, hangs_up=False) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with client("https://localhost:9", proxies={"https": url}, connect_timeout=0.3) as aws:
            await refused(aws, (ProxyConnectionError, ConnectTimeoutError), "407|Connect timeout")
            await until(lambda: not proxy.ways)


async def test_an_https_proxy(authority: Authority) -> None:
    tls = authority.server("localhost")
    async with (
        http2_peer(hold, tls=tls, host="localhost") as server,
        connect_proxy(tls=authority.server("127.0.0.1", alpn=()), login="a:b") as proxy,
        client(https(server), verify=authority.path, proxies={"https": f"https://a:b@127.0.0.1:{proxy.port}"}) as aws,
    ):
        streams = await aws.subscribe_all(6)
        assert [await read(stream, 1) for stream in streams] == [[1]] * 6


async def test_a_proxy_is_passed_by_where_the_environment_says_so(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost")
    async with (
        http2_peer(hold, tls=authority.server("localhost"), host="localhost") as server,
        client(https(server), verify=authority.path) as aws,
    ):
        assert await read(await aws.subscribe(), 1) == [1]


async def test_a_wrong_certificate_behind_a_proxy(authority: Authority) -> None:
    tls = authority.server("elsewhere.test")
    async with http2_peer(hold, tls=tls, host="localhost") as server, connect_proxy() as proxy:
        proxies = {"https": f"http://127.0.0.1:{proxy.port}"}
        async with client(https(server), "auto", verify=authority.path, proxies=proxies) as aws:
            await refused(aws, SSLError, "Hostname mismatch")


async def test_a_service_in_the_clear_behind_a_proxy_is_no_http2() -> None:
    async with client("http://localhost:9", proxies={"http": "http://127.0.0.1:9"}) as aws:
        await refused(aws, HTTPClientError, "a proxy stands before localhost:9, which is reached in the clear")
