"""How the local AWS ends: at once, whatever its clients are doing."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sysconfig
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from h2.settings import SettingCodes
from multidict import CIMultiDict

from kinesis_efo_local.errors import AwsError
from kinesis_efo_local.http import Answer, Incoming
from kinesis_efo_local.moto_proxy import MotoProxy
from kinesis_efo_tools.cli.ending import EndRequest
from tests.support.h2_client import CREDENTIAL, H2Client
from tests.support.ports import free_ports
from tests.support.world import wait_until

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/flights"
PROGRAM = str(Path(sysconfig.get_path("scripts")) / "kinesis-efo")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_command_ends_at_once_whoever_is_connected(tmp_path: Path, number: signal.Signals) -> None:
    ready_file = tmp_path / "ready.json"
    server = subprocess.Popen(
        [PROGRAM, "local", "--port", "0", "--tls-port", "0", "--max-concurrent-streams", "7", "--stream", "flights:2",
         "--ready-file", str(ready_file), "--env"],
        cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with server, ExitStack() as stack:
        stack.callback(server.kill)
        wait_until(ready_file.exists, 30)
        ready = json.loads(ready_file.read_text())
        port = int(ready["endpointUrl"].rpartition(":")[2])
        consumer = json.loads(Path(ready["manifest"]).read_text())["streams"]["flights"]["consumerArn"]
        asked = {"ConsumerARN": consumer, "StartingPosition": {"Type": "LATEST"}}
        # An event stream of each version of HTTP, which nobody reads.
        kinesis = _client("kinesis", ready)
        stack.callback(kinesis.close)
        first = kinesis.subscribe_to_shard(ShardId="shardId-000000000000", **asked)["EventStream"]
        stack.callback(first.close)
        variables = ready["environment"]
        tls_port = int(variables["KINESIS_EFO_LOCAL_TLS_URL"].rpartition(":")[2])
        second = stack.enter_context(H2Client(tls_port, ca_path=variables["AWS_CA_BUNDLE"]))
        stream = second.call("SubscribeToShard", {"ShardId": "shardId-000000000001", **asked})
        second.until(lambda: stream in second.headers)
        assert second.settings[SettingCodes.MAX_CONCURRENT_STREAMS] == 7
        # Connections that are kept, one that says nothing, and a request that does not come to its end.
        dynamodb = _client("dynamodb", ready)
        stack.callback(dynamodb.close)
        dynamodb.list_tables()
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        half.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        # The second one comes while the first is handled, or soon after.
        server.send_signal(number)
        server.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed, errors = server.communicate(timeout=30)
        assert (server.returncode, errors) == (0, "")
        assert time.monotonic() - began < 25
        assert not ready_file.exists()
        assert not Path(variables["AWS_CA_BUNDLE"]).exists()
    # A shell understands all of it.
    exports = [shlex.split(line) for line in printed.splitlines()]
    assert {line[0] for line in exports} == {"export"}
    assert dict(line[1].split("=", 1) for line in exports) == {**variables, "KINESIS_EFO_MANIFEST": ready["manifest"]}


def test_the_command_ends_at_once_while_it_declares(tmp_path: Path) -> None:
    (port,) = free_ports()
    server = subprocess.Popen(
        [PROGRAM, "local", "--port", str(port), "--stream", "flights", "--set", "consumer_creating_seconds=600"],
        cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with server, ExitStack() as stack:
        stack.callback(server.kill)

        def listens() -> bool:
            with suppress(ConnectionRefusedError), H2Client(port) as client:
                return client.answer(client.call("ListStreamConsumers", {"StreamARN": ARN}))[1].count(b"CREATING") == 1
            return False

        wait_until(listens, 30)
        server.send_signal(signal.SIGINT)
        said = server.communicate(timeout=10)
        assert (server.returncode, said) == (0, ("", ""))
        assert list(tmp_path.iterdir()) == []
    # An SDK would make a failed request of it otherwise.
    assert not issubclass(EndRequest, Exception)


def _client(service: str, ready: dict[str, Any]) -> Any:
    variables = ready["environment"]
    return boto3.session.Session(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]).client(
        service, endpoint_url=ready["endpointUrl"], region_name=variables["AWS_REGION"]
    )


def test_waiting_requests_are_refused_at_the_end() -> None:
    scope = CREDENTIAL.format("dynamodb")
    headers = {"Authorization": scope, "X-Amz-Target": "DynamoDB_20120810.ListTables", "Host": "localhost"}
    request = Incoming("POST", "/", CIMultiDict(headers | {"Content-Type": "application/x-amz-json-1.0"}), b"{}")

    async def go() -> tuple[list[Answer | BaseException], BaseException | Answer]:
        proxy = MotoProxy()
        assert (await proxy.forward(request)).body == b'{"TableNames": []}'
        waiting = [asyncio.create_task(proxy.forward(request)) for _ in range(20)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await proxy.close()
        (later,) = await asyncio.gather(proxy.forward(request), return_exceptions=True)
        return await asyncio.gather(*waiting, return_exceptions=True), later

    found, later = asyncio.run(go())
    refused = [each for each in found if isinstance(each, AwsError)]
    # moto has had the first one, and had begun another.
    assert len(refused) > 10
    assert {each.code for each in refused} == {"ServiceUnavailable"}
    assert isinstance(found[0], Answer)
    assert isinstance(later, AwsError)
