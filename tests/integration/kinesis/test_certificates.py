"""Control calls verify AWS' certificates, also behind a proxy of the environment."""

import asyncio
import ssl
from pathlib import Path

import aiobotocore
import pytest
from aiobotocore.config import AioConfig
from botocore.exceptions import SSLError

from kinesis_efo.aws import AsyncClients, refuse_old_sdk
from kinesis_efo.options import AwsSettings
from tests.support.authority import Authority
from tests.support.connect_proxy import connect_proxy

CALLS = {
    "kinesis": ("get_records", {"ShardIterator": "x"}),
    "dynamodb": ("describe_table", {"TableName": "x"}),
    "sts": ("get_caller_identity", {}),
    "s3": ("get_object", {"Bucket": "x", "Key": "x"}),
}


@pytest.mark.parametrize("proxied", [True, False])
@pytest.mark.parametrize("host", ["localhost", "elsewhere.test"])
@pytest.mark.parametrize("service", CALLS)
async def test_a_false_certificate_ends_control_calls(
    service: str, host: str, proxied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    if host != "localhost":
        monkeypatch.setenv("AWS_CA_BUNDLE", authority.path)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    arrived: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            arrived.append(await reader.read(100))
        except (ssl.SSLError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "localhost", 0, ssl=authority.server(host))
    async with server, connect_proxy() as proxy:
        if proxied:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        endpoint = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        clients = AsyncClients(AwsSettings(region="eu-west-1", endpoint_url=endpoint), "eu-west-1")
        async with await clients.open(service, AioConfig(retries={"total_max_attempts": 1})) as client:
            name, arguments = CALLS[service]
            with pytest.raises(SSLError, match="certificate"):
                await getattr(client, name)(**arguments)
        assert bool(proxy.asked) is proxied
    assert not any(arrived)


def test_the_installed_sdk_is_accepted() -> None:
    refuse_old_sdk(aiobotocore.__version__)
    for newer in ("3.9.0", "3.10.1", "4.0.0"):
        refuse_old_sdk(newer)
