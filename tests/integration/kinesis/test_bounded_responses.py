"""Control calls end, and use bounded memory, whatever an endpoint sends."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiobotocore.config import AioConfig
from botocore.exceptions import HTTPClientError, ReadTimeoutError

from kinesis_efo.aws import AsyncClients
from kinesis_efo.options import AwsSettings


async def ask(chunk: bytes, pause: float, seconds: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        try:
            while True:
                writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                await writer.drain()
                await asyncio.sleep(pause)
        except (ConnectionError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        clients = AsyncClients(AwsSettings(region="eu-west-1", endpoint_url=f"http://127.0.0.1:{port}"), "eu-west-1")
        config = AioConfig(read_timeout=seconds, retries={"total_max_attempts": 1})
        async with await clients.open("kinesis", config) as client:
            await client.list_shards(StreamName="x")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


def test_a_dripped_response_ends_in_a_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        asyncio.run(ask(b" ", 0.05, 0.5))
    assert time.monotonic() - began < 10


def test_an_endless_response_is_refused() -> None:
    with pytest.raises(HTTPClientError, match="sends more than 64 MiB, which AWS does not"):
        asyncio.run(ask(bytes(1 << 18), 0, 30))
