"""Control calls end, and use bounded memory, whatever an endpoint sends."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from botocore.exceptions import HTTPClientError, ReadTimeoutError

from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.errors import ConfigurationError, ManifestError
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer.service import KinesisService
from kinesis_efo_tools.cli.arguments import load
from kinesis_efo_tools.operate.checkup import consumers_of


@contextmanager
def answering(chunk: bytes, pause: float = 0.0) -> Iterator[str]:
    """An endpoint whose responses have 400 chunks, but promise more. Gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError), listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\n")
                for _ in range(400):
                    connection.sendall(chunk)
                    time.sleep(pause)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def ask(url: str, seconds: float) -> None:
    clients = AsyncClients(AwsSettings(region="eu-west-1", endpoint_url=url), "eu-west-1")
    config = AioConfig(read_timeout=seconds, retries={"total_max_attempts": 1})
    async with await clients.open("kinesis", config) as client:
        await client.list_shards(StreamName="x")


def test_a_dripped_response_ends_in_a_timeout() -> None:
    began = time.monotonic()
    with answering(b" ", 0.05) as url, pytest.raises(ReadTimeoutError):
        asyncio.run(ask(url, 0.5))
    assert time.monotonic() - began < 10


def test_an_endless_response_is_refused() -> None:
    with (
        answering(bytes(1 << 16)) as url,
        pytest.raises(HTTPClientError, match="sends more than 8 MiB, which AWS does not"),
    ):
        asyncio.run(ask(url, 30))


@pytest.mark.parametrize(
    ("location", "message"), [("ssm:///lake", "sends more than 8 MiB"), ("s3://a-bucket/key", "more than 1 MiB")]
)
def test_an_endless_manifest_is_refused(location: str, message: str) -> None:
    with answering(bytes(1 << 16)) as url:
        settings = AwsSettings(region="eu-west-1", endpoint_url=url)
        with pytest.raises(ManifestError, match=message):
            load_manifest(location, SyncClients(settings, config={"retries": {"total_max_attempts": 1}}).client)


@pytest.mark.parametrize("location", ["ssm:///lake", "s3://a-bucket/key"])
def test_a_dripped_manifest_is_given_up(location: str) -> None:
    with answering(b" ", 0.05) as url, pytest.raises(ManifestError, match=f"{location}: not loaded within 1 s"):
        load(location, AwsSettings(region="eu-west-1", endpoint_url=url), seconds=1)


def test_no_more_than_a_manifest_is_read(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "m.json")
    written: list[int] = []

    def write() -> None:
        with suppress(BrokenPipeError), path.open("wb", buffering=0) as pipe:
            written.extend(pipe.write(bytes(1 << 20)) for _ in range(64))

    writing = threading.Thread(target=write)
    writing.start()
    with pytest.raises(ManifestError, match="has more than 1 MiB, which no manifest has"):
        load_manifest(str(path), SyncClients(AwsSettings()).client)
    writing.join(60)
    assert len(written) < 64


class Endless:
    """A client of AWS whose lists never end."""

    meta = SimpleNamespace(
        region_name="eu-west-1", events=SimpleNamespace(register=lambda *_, **__: None), partition="aws"
    )

    async def list_shards(self, **_: Any) -> Any:
        return {"Shards": [], "NextToken": "more"}

    async def list_stream_consumers(self, **_: Any) -> Any:
        return {"Consumers": [], "NextToken": "more"}

    async def scan(self, **_: Any) -> Any:
        return {"Items": [], "LastEvaluatedKey": {"leaseKey": {"S": "more"}}}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: Topology(client).shards("arn:orders"),
        lambda client: KinesisService(client, client, "orders").shards(),
        lambda client: LeaseTable(client, "leases", declared_by="a test").scan(),
        lambda client: consumers_of(client, "arn:orders"),
    ],
    ids=["shards", "shards of a producer", "lease table", "consumers"],
)
def test_endless_pages_end_with_an_error(call: Callable[[Any], Awaitable[Any]]) -> None:
    async def ask() -> None:
        await call(Endless())

    with pytest.raises(ConfigurationError, match="there are 1000 pages and still more"):
        asyncio.run(asyncio.wait_for(ask(), 60))
