"""`kinesis-efo doctor` in a healthy world, in broken ones, and beside a query that must not be disturbed."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo_local import AwsError, NoFaults
from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_leases import QUICKLY, renewing
from tests.integration.cli.test_manifest import Refusing
from tests.support.authority import Authority
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ports import free_ports
from tests.support.raw_kinesis import RawKinesis, with_queue_count
from tests.support.world import World

Run = Callable[..., Result]
NOBODY = Path(__file__).parents[2] / "support" / "nobody.pem"
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
    assert lines["catching up on clicks"]["detail"].startswith("GetShardIterator answers")
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
    assert _lines(found)["polling orders"]["detail"] == "GetRecords allowed (dry run)"


def test_a_manifest_says_which_streams_are_only_polled(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    document = json.loads(here.manifest.read_text())
    del document["streams"]["orders"]["consumerArn"]
    here.manifest.write_text(json.dumps(document))
    found = run("doctor", "--manifest", here.manifest, "--json")
    lines = _lines(found)
    assert (found.code, lines["polling orders"]["detail"]) == (0, "GetRecords allowed (dry run)")
    assert {name for name in lines if name.endswith("of orders")} == {"shards of orders"}
    assert lines["subscribing to clicks"]["status"] == "passed"
    assert run("manifest", "check", "--manifest", here.manifest).code == 0
    assert "none: it is polled" in run("manifest", "show", "--manifest", here.manifest).out
    # CloudWatch knows no consumer without a name.
    assert run("lag", "--manifest", here.manifest, "--json").code == 0


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


def test_a_query_that_runs_is_left_alone_where_the_endpoint_may_know_no_dry_run(
    run: Run, world: Callable[..., World]
) -> None:
    here = world()
    lease = Lease(run_key("orders"), checkpoint=None).taken("host:1:a", "", 1)
    here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())
    before = len(here.aws.kinesis.trace)
    line = _lines(run("doctor", "--manifest", here.manifest, "--json"))["subscribing to orders"]
    assert line["status"] == "unknown"
    assert "host:1:a reads the stream" in line["detail"]
    assert "may not know dry runs" in line["detail"]
    assert "SubscribeToShard" not in {call.operation for call in list(here.aws.kinesis.trace)[before:]}
    tried = run("doctor", "--manifest", here.manifest, "--subscribe-anyway", "--json")
    assert _lines(tried)["subscribing to orders"]["status"] == "passed"


def test_quota_counts_queues_if_the_sdk_shows_them(
    run: Run, world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()

    def told() -> dict[str, Any]:
        return _lines(run("doctor", "--manifest", here.manifest, "--json"))["quota of orders"]

    assert told()["detail"] == "1 of 20 consumers", "a provisioned stream has no queues"
    arn = here.kinesis.describe_stream_summary(StreamName=here.streams["orders"])["StreamDescriptionSummary"][
        "StreamARN"
    ]
    here.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    raw = RawKinesis(here.aws)
    for name in ("a", "b"):
        raw.create_queue(QueueName=name, StreamConfigurationList=[{"StreamARN": arn}])
    assert told()["detail"] == (
        "1 of 20 consumers, and its queues, which count as consumers, and which this botocore does not show"
    )
    with_queue_count(tmp_path, monkeypatch)
    assert told()["detail"] == "3 of 20 consumers, 2 of them queues"
    for number in range(17):
        raw.register_stream_consumer(StreamARN=arn, ConsumerName=f"other-{number}")
    assert told()["status"] == "unknown"
    assert told()["detail"].startswith("20 consumers, 2 of them queues: 20 is the quota, unless AWS raised it")


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


@pytest.fixture
def quickly() -> Iterator[None]:
    """Fails if the test takes longer than a person at three in the morning waits, even on a busy machine: the SDK waits a minute."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 10


@pytest.fixture
def without_credentials(aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_ENDPOINT_URL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def _obstacle(found: Result) -> dict[str, str]:
    """The first finding, the only one that did not pass but for what concerns this machine."""
    first, *others = found.data["findings"]
    assert (found.code, first["status"], bool(first["fix"])) == (1, "failed", True)
    assert [each["subject"] for each in others] == [
        "manifest",
        "AWS SDK",
        "Spark",
        "Spark's Python",
        "Java",
        "decoding",
    ]
    return first  # type: ignore[no-any-return]


@pytest.mark.usefixtures("quickly", "without_credentials")
@pytest.mark.parametrize("asks_the_host", [False, True])
def test_no_credentials(
    run: Run, world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, asks_the_host: bool
) -> None:
    here = world()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", str(not asks_the_host).lower())
    if asks_the_host:  # which is none of EC2's
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{free_ports()[0]}")
    first = _obstacle(run("doctor", "--manifest", here.manifest, "--json"))
    assert (first["subject"], first["detail"][:31]) == ("credentials", "there are no AWS credentials: n")
    assert "aws sso login" in first["fix"]


@pytest.mark.usefixtures("quickly", "without_credentials")
def test_no_credentials_for_a_role(run: Run, world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    role = "arn:aws:iam::111122223333:role/lake"
    first = _obstacle(run("doctor", "--manifest", here.manifest, "--role-arn", role, "--json"))
    assert (first["subject"], role in first["detail"]) == ("credentials", True)


@pytest.mark.usefixtures("quickly")
def test_no_region(run: Run, aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = run("doctor", "--manifest", "ssm:///kinesis-efo/test/lake", "--json")
    assert [each["subject"] for each in found.data["findings"]] == [
        "region",
        "AWS SDK",
        "Spark",
        "Spark's Python",
        "Java",
        "decoding",
    ]
    assert "--region" in found.data["findings"][0]["fix"]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("remote", [False, True])
def test_an_endpoint_that_refuses(run: Run, world: Callable[..., World], remote: bool) -> None:
    here = world()
    url = f"http://127.0.0.1:{free_ports()[0]}"
    location = "ssm:///kinesis-efo/test/lake" if remote else here.manifest
    found = run("doctor", "--manifest", location, "--endpoint-url", url, "--json")
    first = found.data["findings"][0] if remote else _obstacle(found)
    assert (first["subject"], url in first["detail"]) == ("HTTP path", True)
    assert "check region, DNS, proxy and firewall" in first["fix"]
    assert len(found.data["findings"]) == (6 if remote else 7)


@pytest.mark.usefixtures("quickly")
def test_unknown_issuer_names_authorities_instead_of_network(
    run: Run, world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, authority = world(), Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(NOBODY))
    listening = socket.create_server(("127.0.0.1", 0))
    with authority.server("127.0.0.1", alpn=()).wrap_socket(listening, server_side=True) as serving:
        threading.Thread(target=_shake_hands, args=(serving,), daemon=True).start()
        url = f"https://127.0.0.1:{serving.getsockname()[1]}"
        found = run("doctor", "--manifest", here.manifest, "--endpoint-url", url, "--json")
    assert "nobody.pem, from AWS_CA_BUNDLE)" in _obstacle(found)["detail"]
    assert _obstacle(found)["fix"].startswith("add the issuer's certificate to the file of authorities")


def _shake_hands(serving: ssl.SSLSocket) -> None:
    while serving.fileno() >= 0:
        with suppress(OSError):
            serving.accept()


@pytest.mark.usefixtures("quickly")
def test_an_endpoint_that_swallows_everything(run: Run, world: Callable[..., World]) -> None:
    here = world()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = run("doctor", "--manifest", here.manifest, "--endpoint-url", url, "--json")
    assert (_obstacle(found)["subject"], url in _obstacle(found)["detail"]) == ("HTTP path", True)


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


class Answering(NoFaults):
    """Answers calls to a service with errors, by operation."""

    def __init__(self, service: str, **codes: str) -> None:
        self.service, self.codes = service, codes

    async def before(self, request: Any) -> None:
        if request.service == self.service and (code := self.codes.get(request.operation)) is not None:
            raise AwsError(code, f"said of {request.operation}")


def _encrypted(world: Callable[..., World], key: str = "alias/ours") -> World:
    here = world()
    here.kinesis.start_stream_encryption(StreamName=here.streams["orders"], EncryptionType="KMS", KeyId=key)
    here.wait_active()
    return here


def test_the_strategy_of_a_stream_is_shown(run: Run, world: Callable[..., World]) -> None:
    here = world()
    arn = here.kinesis.describe_stream_summary(StreamName=here.streams["orders"])["StreamDescriptionSummary"][
        "StreamARN"
    ]

    def shown() -> str:
        return _lines(run("doctor", "--manifest", here.manifest, "--json"))["stream orders"]["detail"].rpartition(", ")[
            2
        ]

    assert shown() == "distributed by partition key"
    here.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    here.kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="AUTO")
    assert shown() == "distributed by Kinesis itself (AUTO)"


def test_nothing_is_read_written_or_opened_and_each_stream_has_one_dry_run(
    run: Run, world: Callable[..., World]
) -> None:
    here = world({"orders": 2, "clicks": 1})
    document = json.loads(here.manifest.read_text())
    del document["streams"]["clicks"]["consumerArn"]
    here.manifest.write_text(json.dumps(document))
    before = len(here.aws.kinesis.trace)
    assert run("doctor", "--manifest", here.manifest).code == 0
    calls = list(here.aws.kinesis.trace)[before:]
    dry = [call.operation for call in calls if call.operation in ("SubscribeToShard", "GetRecords")]
    assert sorted(dry) == ["GetRecords", "SubscribeToShard"]
    assert all(call.outcome == "DryRunOperationException" for call in calls if call.operation in dry)


def test_who_may_not_get_records_is_told_what_that_means_for_several_queries(
    run: Run, world: Callable[..., World], switch: Switch
) -> None:
    here = world()
    switch.faults = Refusing("GetShardIterator")
    found = run("doctor", "--manifest", here.manifest, "--json")
    line = _lines(found)["catching up on orders"]
    assert (found.code, line["status"]) == (0, "unknown"), "a query alone in its program needs it not"
    assert "not authorized to perform: GetShardIterator. A query alone in its program does without" in line["detail"]
    assert "allow kinesis:GetShardIterator and kinesis:GetRecords: infra/ does so unless" in line["fix"]
    switch.faults = Refusing("ListShards")
    found = run("doctor", "--manifest", here.manifest, "--json")
    assert _lines(found)["shards of orders"]["status"] == "failed"
    assert _lines(found)["catching up on orders"]["detail"] == "not tried: its shards cannot be listed"


@pytest.mark.parametrize("polling", [False, True])
def test_a_dry_run_that_is_throttled_says_nothing(
    run: Run, world: Callable[..., World], switch: Switch, polling: bool
) -> None:
    here = world()
    operation, line = ("GetRecords", "polling orders") if polling else ("SubscribeToShard", "subscribing to orders")
    switch.faults = Answering("kinesis", **{operation: "ThrottlingException"})
    found = run("doctor", "--manifest", here.manifest, "--json", *(["--polling"] if polling else []))
    assert _lines(found)[line]["status"] == "unknown"
    assert "one dry run a second for each stream" in _lines(found)[line]["fix"]
    assert found.code == 0


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("DryRunOperationException", "passed", "kms:Decrypt on alias/ours is allowed (dry run)"),
        ("AccessDeniedException", "unknown", "whether it is through Kinesis cannot be tried"),
        ("DisabledException", "failed", "alias/ours: DisabledException"),
        ("KMSInvalidStateException", "failed", "alias/ours: KMSInvalidStateException"),
        ("NotFoundException", "failed", "alias/ours: NotFoundException"),
        ("ThrottlingException", "unknown", "ThrottlingException"),
        ("InvalidCiphertextException", "unknown", "the endpoint knows no dry run of kms:Decrypt"),
    ],
)
def test_the_key_is_checked_apart_because_no_dry_run_of_kinesis_does(
    run: Run, world: Callable[..., World], switch: Switch, code: str, status: str, said: str
) -> None:
    here = _encrypted(world)
    switch.faults = Answering("kms", Decrypt=code)
    found = run("doctor", "--manifest", here.manifest, "--json")
    line = _lines(found)["key of orders"]
    assert (line["status"], said in line["detail"]) == (status, True), line
    assert (found.code == 1) is (status == "failed")
    assert _lines(found)["subscribing to orders"]["status"] == "passed"
    assert bool(line["fix"]) is (status != "passed")


def test_a_key_of_aws_needs_no_check_and_a_stream_in_the_clear_has_none(run: Run, world: Callable[..., World]) -> None:
    here = _encrypted(world, "alias/aws/kinesis")
    assert _lines(run("doctor", "--manifest", here.manifest, "--json"))["key of orders"]["status"] == "passed"
    here = world()
    assert "key of orders" not in _lines(run("doctor", "--manifest", here.manifest, "--json"))


SUBSCRIBE = ("--subscribe", "--for", "500ms", "--json")


def _subscriptions(here: World, before: int) -> list[dict[str, Any]]:
    """The parameters of the subscriptions since then."""
    calls = list(here.aws.kinesis.trace)[before:]
    return [dict(call.params) for call in calls if call.operation == "SubscribeToShard"]


@pytest.mark.slow
def test_one_shard_is_read_over_each_transport(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2, "clicks": 1})
    here.kinesis.split_shard(
        StreamName=here.streams["orders"], ShardToSplit=here.shards()[0]["ShardId"], NewStartingHashKey=str(2**126)
    )
    here.wait_active()
    open_shards = [shard for shard in here.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
    before = len(here.aws.kinesis.trace)
    found = run("doctor", "--manifest", here.manifest, "--stream", "orders", *SUBSCRIBE)
    shown = found.data["subscription"]
    lines = _lines(found)
    assert found.code == 0
    assert (shown["stream"], shown["shardId"]) == ("orders", open_shards[0]["ShardId"])
    assert (shown["consumerArn"], shown["endpoint"]) == (here.consumers["orders"], here.aws.endpoint_url)
    assert [(each["transport"], each["httpVersion"]) for each in shown["transports"]] == [
        ("http2", "HTTP/2"),
        ("http1", "HTTP/1.1"),
    ]
    over_http2, over_http1 = shown["transports"]
    assert over_http2["streamsPerConnection"] == here.aws.settings.max_concurrent_streams
    assert min(over_http2["initialWindowBytes"], over_http2["largestFrameBytes"]) >= 16_384
    assert over_http1["streamsPerConnection"] is over_http1["initialWindowBytes"] is None
    for each in (over_http2, over_http1):
        assert (each["error"], each["tls"]) == (None, None)
        assert 0 < each["answeredAfterMs"] <= each["firstEventAfterMs"]
        assert each["readForMs"] >= 500
        assert each["events"] >= 1
        assert each["bytes"] >= each["largestEventBytes"] > 0
    assert lines["orders over HTTP/2"]["status"] == lines["orders over HTTP/1.1"]["status"] == "passed"
    assert "subscribing to orders" not in lines  # no dry run of what is done in earnest
    subscribed = {
        "ConsumerARN": here.consumers["orders"],
        "ShardId": shown["shardId"],
        "StartingPosition": {"Type": "LATEST"},
    }
    assert _subscriptions(here, before) == [subscribed] * 2
    assert here.leases() == {}


class OnlyHttp1(CuttingProxy):
    """Stands before a server, and answers HTTP/2 as one that does not know it."""

    def _forward(self, source: socket.socket, sink: socket.socket, limit: int | None, client: socket.socket) -> None:
        if source is client and source.recv(3, socket.MSG_PEEK) == b"PRI":
            client.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            client.shutdown(socket.SHUT_RDWR)
            sink.shutdown(socket.SHUT_RDWR)
        else:
            super()._forward(source, sink, limit, client)


def test_an_endpoint_without_http2_is_told(run: Run, world: Callable[..., World]) -> None:
    here = world()
    with OnlyHttp1(urlsplit(here.aws.endpoint_url).port or 0, lambda _number: None) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        found = run("doctor", "--manifest", here.manifest, "--endpoint-url", url, *SUBSCRIBE)
    over_http2, over_http1 = found.data["subscription"]["transports"]
    assert found.code == 0
    assert (over_http2["httpVersion"], over_http2["events"]) == (None, 0)
    assert "does not answer HTTP/2" in over_http2["error"]
    assert (over_http1["httpVersion"], over_http1["error"]) == ("HTTP/1.1", None)
    line = _lines(found)["orders over HTTP/2"]
    assert (line["status"], line["fix"][:38]) == ("unknown", "none where queries may use HTTP/1.1, w")


def test_the_measurement_is_a_table_below_the_findings(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world({"orders": 1, "clicks": 1})
    switch.faults = Refusing("SubscribeToShard")
    found = run("doctor", "--manifest", here.manifest, "--subscribe")
    assert found.code == 1
    # Of several streams, the first one of the manifest.
    assert f"{here.shards('clicks')[0]['ShardId']} of clicks, at {here.aws.endpoint_url}" in found.out
    rows = {" ".join(line.split()) for line in found.out.splitlines()}
    assert rows >= {"HTTP/2 HTTP/1.1", "events 0 0", "first event after, ms - -"}
    fixes = [row for row in rows if row.startswith("fix: allow kinesis:SubscribeToShard to the role")]
    assert len(fixes) == 1  # the same line for each


def test_a_run_that_is_alive_keeps_its_subscriptions(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    lease = Lease(run_key("orders"), checkpoint=None).taken("host:1:a", "", 1)
    here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())
    before = len(here.aws.kinesis.trace)
    with renewing(here, lease.key):
        found = run("doctor", "--manifest", here.manifest, *SUBSCRIBE, *QUICKLY)
        assert (found.code, found.out) == (3, "")
        assert "orders is being read: host:1:a renews #run:orders" in found.err
        assert "Nothing was subscribed; --take-over does it all the same" in found.err
        assert _subscriptions(here, before) == []
        switch.faults = Refusing("SubscribeToShard")
        forced = run("doctor", "--manifest", here.manifest, *SUBSCRIBE, *QUICKLY, "--take-over")
        assert "is cut off for some seconds" in forced.err
    assert {each["error"] is None for each in forced.data["subscription"]["transports"]} == {False}
    assert _lines(forced)["orders over HTTP/1.1"]["fix"].startswith("allow kinesis:SubscribeToShard to the role")


def test_neither_a_dead_run_nor_one_of_another_stream_is_a_reason(
    run: Run, world: Callable[..., World], switch: Switch
) -> None:
    here = world({"orders": 1, "clicks": 1})
    for stream in ("orders", "clicks"):
        lease = Lease(run_key(stream), checkpoint=None).taken("host:1:a", "", 1)
        here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())
    switch.faults = Refusing("SubscribeToShard")
    with renewing(here, run_key("clicks")):
        found = run("doctor", "--manifest", here.manifest, "--stream", "orders", *SUBSCRIBE, *QUICKLY)
        assert found.data["subscription"]["stream"] == "orders"
        assert run("doctor", "--manifest", here.manifest, "--stream", "clicks", *SUBSCRIBE, *QUICKLY).code == 3
    assert "is an owner alive?" in found.err


def test_who_cannot_see_the_leases_is_refused(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    before = len(here.aws.kinesis.trace)
    switch.faults = Refusing("Scan")
    denied = run("doctor", "--manifest", here.manifest, *SUBSCRIBE)
    assert (denied.code, denied.out) == (3, "")
    assert "whether a run reads orders is not known" in denied.err
    switch.faults = NoFaults()
    here.dynamodb.delete_table(TableName=here.lease_table)
    assert run("doctor", "--manifest", here.manifest, *SUBSCRIBE).code == 3
    assert _subscriptions(here, before) == []


def test_a_consumer_that_is_gone(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    found = run("doctor", "--manifest", here.manifest, *SUBSCRIBE)
    assert found.code == 1
    assert _lines(found)["orders over HTTP/1.1"]["fix"].startswith("deploy again")


def test_shards_that_may_not_be_listed(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    switch.faults = Refusing("ListShards")
    found = run("doctor", "--manifest", here.manifest, *SUBSCRIBE)
    assert (found.code, "subscription" in found.data) == (1, False)
    assert _lines(found)["subscribing to orders"]["fix"].startswith("allow kinesis:ListShards")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--subscribe", "--polling"), "--subscribe goes without --polling"),
        (("--take-over",), "--take-over goes with --subscribe"),
    ],
)
def test_what_does_not_go_together(run: Run, world: Callable[..., World], options: tuple[str, ...], said: str) -> None:
    found = run("doctor", "--manifest", world().manifest, *options)
    assert (found.code, found.out) == (2, "")
    assert said in found.err
