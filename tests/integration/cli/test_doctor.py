"""`kinesis-efo doctor` in a healthy world, in broken ones, and beside a query that must not be disturbed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from kinesis_efo.leases import Lease, run_key
from kinesis_efo.local import NoFaults
from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_manifest import Refusing
from tests.support.world import World

Run = Callable[..., Result]
CHANGES = {
    "RegisterStreamConsumer",
    "DeregisterStreamConsumer",
    "CreateStream",
    "DeleteStream",
    "PutRecord",
    "PutRecords",
}


def _lines(found: Result) -> dict[str, dict[str, str]]:
    return {each["subject"]: each for each in found.data["findings"]}


def test_a_healthy_application(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2, "clicks": 1})
    before = len(here.aws.kinesis.trace)
    found = run("doctor", "--manifest", here.manifest, "--json")
    lines = _lines(found)
    assert (found.code, found.data["failed"]) == (0, 0)
    assert lines["credentials"]["detail"].startswith("arn:aws:sts::")
    assert lines["subscribing to orders"]["detail"] == "allowed (dry run)"
    assert lines["quota of clicks"]["detail"] == "1 of 20 consumers"
    assert lines["lease writes"]["status"] == "passed"
    assert {name for name, line in lines.items() if line["status"] == "unknown"} == {
        "subscribe rate of orders",
        "subscribe rate of clicks",
    }
    calls = list(here.aws.kinesis.trace)[before:]
    assert not CHANGES.intersection(call.operation for call in calls)
    assert all(call.params.get("DryRun") for call in calls if call.operation == "SubscribeToShard")
    assert here.leases() == {}


def test_a_polling_application_needs_no_consumer(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    assert run("doctor", "--manifest", here.manifest).code == 1
    found = run("doctor", "--manifest", here.manifest, "--polling", "--json")
    assert found.code == 0
    assert _lines(found)["polling orders"]["detail"] == "GetRecords answers"


def test_what_is_gone_has_its_fix(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    here.dynamodb.delete_table(TableName=here.lease_table)
    found = run("doctor", "--manifest", here.manifest, "--json")
    failed = {name for name, line in _lines(found).items() if line["status"] == "failed"}
    assert found.code == 1
    assert failed == {
        "consumer of orders",
        "subscribing to orders",
        *(f"{what} clicks" for what in ("stream", "consumer of", "shards of", "subscribing to", "quota of")),
        "lease table",
        "lease writes",
    }
    assert all(line["fix"] for line in _lines(found).values() if line["status"] == "failed")


def test_a_query_that_runs_is_left_alone(run: Run, world: Callable[..., World]) -> None:
    here = world()
    lease = Lease(run_key("orders"), checkpoint=None).taken("host:1:a", "", 1)
    here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())
    before = len(here.aws.kinesis.trace)
    line = _lines(run("doctor", "--manifest", here.manifest, "--json"))["subscribing to orders"]
    assert line["status"] == "unknown"
    assert "host:1:a reads the stream" in line["detail"]
    assert "SubscribeToShard" not in {call.operation for call in list(here.aws.kinesis.trace)[before:]}
    tried = run("doctor", "--manifest", here.manifest, "--subscribe-anyway", "--json")
    assert _lines(tried)["subscribing to orders"]["status"] == "passed"


def test_a_missing_permission_counts_where_a_query_needs_it(
    run: Run, world: Callable[..., World], switch: Switch
) -> None:
    here = world()
    switch.faults = Refusing("SubscribeToShard", "ListStreamConsumers", "UpdateItem")
    found = run("doctor", "--manifest", here.manifest, "--json")
    lines = _lines(found)
    assert found.code == 1
    assert lines["subscribing to orders"]["status"] == "failed"
    assert lines["subscribing to orders"]["fix"].startswith("allow kinesis:SubscribeToShard to the role")
    assert lines["quota of orders"]["status"] == "unknown"
    assert lines["lease writes"]["status"] == "failed"
    assert "it allows dynamodb:UpdateItem" in lines["lease writes"]["fix"]


def test_refused_subscriptions_are_counted(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.aws.client("cloudwatch").put_metric_data(
        Namespace="AWS/Kinesis",
        MetricData=[
            {
                "MetricName": "SubscribeToShard.RateExceeded",
                "Dimensions": [
                    {"Name": "StreamName", "Value": here.streams["orders"]},
                    {"Name": "ConsumerName", "Value": "lake"},
                ],
                "Value": 7,
            }
        ],
    )
    line = _lines(run("doctor", "--manifest", here.manifest, "--json"))["subscribe rate of orders"]
    assert (line["status"], line["detail"]) == ("failed", "7 subscriptions refused in the last hour")


def test_no_credentials(run: Run, world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    here = world()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = run("doctor", "--manifest", here.manifest, "--json")
    assert found.code == 1
    assert _lines(found)["credentials"]["status"] == "failed"
    assert "Unable to locate credentials" in _lines(found)["credentials"]["detail"]


def test_an_endpoint_out_of_reach_is_said_once(run: Run, world: Callable[..., World]) -> None:
    here = world()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        found = run("doctor", "--manifest", here.manifest, "--endpoint-url", url, "--json")
    lines = _lines(found)
    assert found.code == 1
    assert url in lines["HTTP path"]["detail"]
    assert set(lines) == {"credentials", "manifest", "HTTP path", "clock", "Spark", "Java"}


def test_a_wrong_manifest_is_one_line_of_several(run: Run, aws: Any) -> None:
    found = run("doctor", "--manifest", "none.json", "--region", "us-east-1", "--json")
    assert found.code == 1
    assert _lines(found)["manifest"]["status"] == "failed"
    assert _lines(found)["credentials"]["status"] == "passed"


def test_an_endpoint_without_dry_runs_is_told_and_left_at_once(
    run: Run, world: Callable[..., World], switch: Switch
) -> None:
    class Deaf(NoFaults):
        """Does what is only to be tried."""

        async def before(self, request: Any) -> None:
            if request.operation == "SubscribeToShard":
                request.params.pop("DryRun", None)

    here = world()
    switch.faults = Deaf()
    line = _lines(run("doctor", "--manifest", here.manifest, "--json"))["subscribing to orders"]
    assert line["status"] == "unknown"
    assert "the endpoint knows no dry run" in line["detail"]
