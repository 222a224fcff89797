"""`kinesis-efo doctor` in a healthy world, in broken ones, and beside a query that must not be disturbed."""

import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo_local import NoFaults
from kinesis_efo_local.fault_injection import Step
from tests.integration.cli.conftest import Cli, Failing, Here, Result
from tests.integration.cli.test_leases import QUICKLY
from tests.support.authority import Authority
from tests.support.ports import free_ports
from tests.support.raw_kinesis import RawKinesis, with_queue_count
from tests.support.world import World, renewing

NOBODY = Path(__file__).parents[2] / "support" / "nobody.pem"


def _lines(found: Result) -> dict[str, dict[str, str]]:
    return {each["subject"]: each for each in found.data["findings"]}


def findings(here: Here, *options: str) -> dict[str, dict[str, str]]:
    """What `doctor` finds, by subject."""
    return _lines(here.run("doctor", "--json", *options))


def subscribed(here: World) -> list[dict[str, Any]]:
    """The parameters of all subscriptions."""
    return [
        dict(call.params)
        for call in here.aws.kinesis.trace
        if call.operation == "SubscribeToShard" and here.consumers["orders"] == call.params["ConsumerARN"]
    ]


def test_healthy_application_passes(cli: Cli) -> None:
    here = cli.world({"orders": 2, "clicks": 1})
    before = len(here.calls())
    found = here.run("doctor", "--json")
    lines = _lines(found)
    assert (found.code, found.data["failed"]) == (0, 0)
    assert lines["credentials"]["detail"].startswith("arn:aws:sts::")
    assert lines["subscribing to orders"]["detail"] == "allowed (dry run)"
    assert lines["quota of clicks"]["detail"] == "1 of 20 consumers"
    assert lines["catching up on clicks"]["detail"].startswith("GetShardIterator answers")
    assert lines["lease writes"]["status"] == "passed"
    assert lines["stream orders"]["detail"].startswith("ACTIVE, 2 open shards, 24 h retention")
    assert "key leaseKey (S), 0 rows" in lines["lease table"]["detail"]
    assert {name for name, line in lines.items() if line["status"] == "unknown"} == {
        "subscribe rate of orders",
        "subscribe rate of clicks",
    }
    calls = here.calls(before)
    assert not [call for call in calls if re.match("Register|Deregister|Create|Delete|Put", call.operation)]
    tried = [call for call in calls if call.operation == "SubscribeToShard"]
    assert [call.outcome for call in tried] == ["DryRunOperationException"] * 2, "one for each stream"
    assert here.leases() == {}


def test_stream_without_a_consumer_is_only_polled(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    here.change(lambda streams: streams["orders"].pop("consumerArn"))
    found = here.run("doctor", "--json")
    lines = _lines(found)
    assert (found.code, lines["polling orders"]["detail"]) == (0, "GetRecords allowed (dry run)")
    assert {name for name in lines if name.endswith("of orders")} == {"shards of orders"}
    assert lines["subscribing to clicks"]["status"] == "passed"
    assert here.run("manifest check").code == 0
    assert "none: it is polled" in here.run("manifest show").out
    # CloudWatch knows no consumer without a name.
    assert here.run("lag", "--json").code == 0


def test_missing_resource_has_its_fix(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    here.dynamodb.delete_table(TableName=here.lease_table)
    found = here.run("doctor", "--json")
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
    shown = here.run("doctor")
    assert f"lease table {here.lease_table} in us-east-1 does not exist" in shown.out
    assert f", {len(failed)} failed, " in shown.err


def test_doubtful_dry_run_does_not_disturb_a_query(here: Here) -> None:
    here.rows(OWNED)
    before = len(here.calls())
    line = findings(here)["subscribing to orders"]
    assert line["status"] == "unknown"
    assert "host:1:a owns the stream's lease" in line["detail"]
    assert "may not know dry runs" in line["detail"]
    assert "SubscribeToShard" not in {call.operation for call in here.calls(before)}
    assert _lines(here.run("doctor", "--subscribe-anyway", "--json"))["subscribing to orders"]["status"] == "passed"


def test_quota_counts_queues_if_the_sdk_shows_them(
    cli: Cli, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def quota() -> dict[str, Any]:
        return findings(here)["quota of orders"]

    assert quota()["detail"] == "1 of 20 consumers", "a provisioned stream has no queues"
    arn = here.arn()
    here.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    raw = RawKinesis(here.aws)
    for name in ("a", "b"):
        raw.create_queue(QueueName=name, StreamConfigurationList=[{"StreamARN": arn}])
    assert quota()["detail"] == (
        "1 of 50 consumers, and its queues, which count as consumers, and which this botocore does not show"
    )
    with_queue_count(tmp_path, monkeypatch)
    assert quota()["detail"] == "3 of 50 consumers, 2 of them queues"
    cli.refuse("DescribeAccountSettings")
    assert quota()["detail"] == "3 of 20 consumers, 2 of them queues"
    for number in range(17):
        raw.register_stream_consumer(StreamARN=arn, ConsumerName=f"other-{number}")
    assert quota()["status"] == "unknown"
    assert quota()["detail"].startswith(
        "20 consumers, 2 of them queues: 20 is the quota, unless AWS raised it or with On-demand Advantage (50)"
    )


def test_missing_permission_fails_where_a_query_needs_it(cli: Cli, here: Here) -> None:
    cli.refuse("SubscribeToShard", "ListStreamConsumers", "UpdateItem")
    found = here.run("doctor", "--json")
    lines = _lines(found)
    assert found.code == 1
    assert lines["subscribing to orders"]["status"] == "failed"
    assert lines["subscribing to orders"]["fix"].startswith("allow kinesis:SubscribeToShard to the role")
    assert lines["quota of orders"]["status"] == "unknown"
    assert lines["lease writes"]["status"] == "failed"
    assert "it allows dynamodb:UpdateItem" in lines["lease writes"]["fix"]


def test_refused_subscriptions_are_counted(here: Here) -> None:
    here.measured("SubscribeToShard.RateExceeded", 7)
    line = findings(here)["subscribe rate of orders"]
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


MACHINE = ("AWS SDK", "Spark", "Spark's Python", "Java", "decoding")


def _obstacle(found: Result) -> dict[str, str]:
    """The first finding, the only one that did not pass but for what concerns this machine."""
    first, *others = found.data["findings"]
    assert (found.code, first["status"], bool(first["fix"])) == (1, "failed", True)
    assert [each["subject"] for each in others] == ["manifest", *MACHINE]
    return first  # type: ignore[no-any-return]


@pytest.mark.usefixtures("quickly", "without_credentials")
@pytest.mark.parametrize("asks_the_host", [False, True])
def test_missing_credentials_are_named(here: Here, monkeypatch: pytest.MonkeyPatch, asks_the_host: bool) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", str(not asks_the_host).lower())
    if asks_the_host:  # which is none of EC2's
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{free_ports()[0]}")
    role = "arn:aws:iam::111122223333:role/lake"
    for options, said in (((), "there are no AWS credentials: n"), (("--role-arn", role), role)):
        first = _obstacle(here.run("doctor", "--json", *options))
        assert (first["subject"], said in first["detail"]) == ("credentials", True)
        assert options or "aws sso login" in first["fix"]


@pytest.mark.usefixtures("quickly")
def test_missing_region_is_named(cli: Cli, aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = cli.run("doctor", "--manifest", "ssm:///kinesis-efo/test/lake", "--json")
    assert [each["subject"] for each in found.data["findings"]] == ["region", *MACHINE]
    assert "--region" in found.data["findings"][0]["fix"]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("remote", [False, True])
def test_refusing_endpoint_is_named(cli: Cli, here: Here, remote: bool) -> None:
    url = f"http://127.0.0.1:{free_ports()[0]}"
    location = "ssm:///kinesis-efo/test/lake" if remote else here.manifest
    found = cli.run("doctor", "--manifest", location, "--endpoint-url", url, "--json")
    first = found.data["findings"][0] if remote else _obstacle(found)
    assert (first["subject"], url in first["detail"]) == ("HTTP path", True)
    assert "check region, DNS, proxy and firewall" in first["fix"]
    assert len(found.data["findings"]) == (6 if remote else 7)


@pytest.mark.usefixtures("quickly")
def test_unknown_issuer_names_authorities_instead_of_network(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, authority = cli.world(), Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(NOBODY))
    listening = socket.create_server(("127.0.0.1", 0))
    with authority.server("127.0.0.1", alpn=()).wrap_socket(listening, server_side=True) as serving:
        threading.Thread(target=_shake_hands, args=(serving,), daemon=True).start()
        url = f"https://127.0.0.1:{serving.getsockname()[1]}"
        found = here.run("doctor", "--endpoint-url", url, "--json")
    assert "nobody.pem, from AWS_CA_BUNDLE)" in _obstacle(found)["detail"]
    assert _obstacle(found)["fix"].startswith("add the issuer's certificate to the file of CA certificates")


def _shake_hands(serving: ssl.SSLSocket) -> None:
    while serving.fileno() >= 0:
        with suppress(OSError):
            serving.accept()


def test_wrong_manifest_is_one_finding(cli: Cli, aws: Any) -> None:
    found = cli.run("doctor", "--manifest", "none.json", "--region", "us-east-1", "--json")
    assert found.code == 1
    assert _lines(found)["manifest"]["status"] == "failed"
    assert _lines(found)["credentials"]["status"] == "passed"


@pytest.mark.parametrize("begins", [True, False], ids=["no dry runs", "no first frame"])
def test_subscription_in_place_of_a_dry_run_is_named(cli: Cli, here: Here, begins: bool) -> None:
    class Deaf(NoFaults):
        """Does what is only to be tried, and may leave out the first frame."""

        async def before(self, request: Any) -> None:
            if request.operation == "SubscribeToShard":
                request.params.pop("DryRun", None)

        def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
            return () if b"initial-response" in frame and not begins else super().frame(subscription, frame)

    cli.switch.faults = Deaf()
    line = findings(here)["subscribing to orders"]
    assert line["status"] == "unknown"
    assert ("the endpoint does not support dry runs" if begins else "initial-response") in line["detail"]
    assert begins or "look for a proxy" in line["fix"]


OWNED = Lease(run_key("orders"), checkpoint=None).taken("host:1:a", "", 1)


def _encrypted(here: Here, key: str = "alias/ours") -> Here:
    here.kinesis.start_stream_encryption(StreamName=here.streams["orders"], EncryptionType="KMS", KeyId=key)
    here.wait_active()
    return here


def test_distribution_of_a_stream_is_shown(here: Here) -> None:
    assert findings(here)["stream orders"]["detail"].endswith(", distributed by partition key")
    here.kinesis.update_stream_mode(StreamARN=here.arn(), StreamModeDetails={"StreamMode": "ON_DEMAND"})
    here.kinesis.update_stream_record_distribution_strategy(StreamARN=here.arn(), RecordDistributionStrategy="AUTO")
    assert findings(here)["stream orders"]["detail"].endswith(", distributed by Kinesis itself (AUTO)")


def test_missing_permission_to_poll_concerns_several_queries(cli: Cli, here: Here) -> None:
    cli.refuse("GetShardIterator")
    found = here.run("doctor", "--json")
    line = _lines(found)["catching up on orders"]
    assert (found.code, line["status"]) == (0, "unknown"), "a query alone in its program needs it not"
    assert "not authorized to perform: GetShardIterator. A query alone in its program does without" in line["detail"]
    assert "allow kinesis:GetShardIterator and kinesis:GetRecords: infra/ does so unless" in line["fix"]
    cli.refuse("ListShards")
    found = here.run("doctor", "--json")
    assert _lines(found)["shards of orders"]["status"] == "failed"
    assert _lines(found)["catching up on orders"]["detail"] == "not tried: its shards cannot be listed"


@pytest.mark.parametrize("polling", [False, True])
def test_stream_without_shards_fails_one_check(cli: Cli, here: Here, polling: bool) -> None:
    class NoShards(NoFaults):
        """Lists no shards, as for a stream that is being deleted."""

        async def before(self, request: Any) -> None:
            if request.operation == "ListShards":
                request.params["ExclusiveStartShardId"] = "shardId-999999999999"

    cli.switch.faults = NoShards()
    lines = findings(here, *(["--polling"] if polling else []))
    assert lines["shards of orders"]["detail"] == "the stream has no shards"
    assert [name for name, line in lines.items() if line["status"] == "failed"] == ["shards of orders"]
    for name in ["polling orders"] if polling else ["subscribing to orders", "catching up on orders"]:
        assert (lines[name]["status"], lines[name]["fix"]) == ("unknown", "see shards of orders")


@pytest.mark.parametrize("polling", [False, True])
def test_throttled_dry_run_is_unknown(cli: Cli, here: Here, polling: bool) -> None:
    operation, line = ("GetRecords", "polling orders") if polling else ("SubscribeToShard", "subscribing to orders")
    cli.switch.faults = Failing(**{operation: "ThrottlingException"})
    found = here.run("doctor", "--json", *(["--polling"] if polling else []))
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
        ("InvalidCiphertextException", "unknown", "the endpoint does not support dry runs of kms:Decrypt"),
    ],
)
def test_key_of_a_stream_is_checked(cli: Cli, code: str, status: str, said: str) -> None:
    here = _encrypted(cli.world())
    cli.switch.faults = Failing(Decrypt=code)
    found = here.run("doctor", "--json")
    line = _lines(found)["key of orders"]
    assert (line["status"], said in line["detail"]) == (status, True), line
    assert (found.code == 1) is (status == "failed")
    assert _lines(found)["subscribing to orders"]["status"] == "passed"
    assert bool(line["fix"]) is (status != "passed")


def test_key_of_aws_passes_and_plain_streams_have_none(cli: Cli) -> None:
    here = _encrypted(cli.world(), "alias/aws/kinesis")
    assert findings(here)["key of orders"]["status"] == "passed"
    here = cli.world()
    assert "key of orders" not in findings(here)


SUBSCRIBE = ("--subscribe", "--for", "500ms", "--json")


@pytest.mark.slow
def test_one_shard_is_read_over_each_transport(cli: Cli) -> None:
    here = cli.world({"orders": 2, "clicks": 1})
    here.kinesis.split_shard(
        StreamName=here.streams["orders"], ShardToSplit=here.shards()[0]["ShardId"], NewStartingHashKey=str(2**126)
    )
    here.wait_active()
    open_shards = [shard for shard in here.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
    found = here.run("doctor", "--stream", "orders", *SUBSCRIBE)
    shown = found.data["subscription"]
    lines = _lines(found)
    assert found.code == 0
    assert (shown["shardId"], shown["endpoint"]) == (open_shards[0]["ShardId"], here.aws.endpoint_url)
    assert [each["httpVersion"] for each in shown["transports"]] == ["HTTP/2", "HTTP/1.1"]
    over_http2, over_http1 = shown["transports"]
    assert over_http2["streamsPerConnection"] == here.aws.settings.max_concurrent_streams
    assert min(over_http2["initialWindowBytes"], over_http2["largestFrameBytes"]) >= 16_384
    for each in (over_http2, over_http1):
        assert 0 < each["answeredAfterMs"] <= each["firstEventAfterMs"]
        assert each["bytes"] >= each["largestEventBytes"] > 0
    assert lines["orders over HTTP/2"]["status"] == lines["orders over HTTP/1.1"]["status"] == "passed"
    assert "subscribing to orders" not in lines  # no dry run of what is done in earnest
    once = {"ShardId": shown["shardId"], "StartingPosition": {"Type": "LATEST"}}
    assert subscribed(here) == [{"ConsumerARN": here.consumers["orders"], **once}] * 2
    assert here.leases() == {}


def test_live_run_is_not_cut_off_without_take_over(cli: Cli, here: Here) -> None:
    here.rows(OWNED)
    with renewing(here, OWNED.key):
        here.run("doctor", *SUBSCRIBE, *QUICKLY).ends(
            3,
            "orders is being read: host:1:a renews #run:orders",
            "Nothing was subscribed; --take-over does it anyway",
            out="",
        )
        assert subscribed(here) == []
        cli.refuse("SubscribeToShard")
        forced = here.run("doctor", *SUBSCRIBE, *QUICKLY, "--take-over")
        assert "is disconnected for some seconds" in forced.err
    assert {each["error"] is None for each in forced.data["subscription"]["transports"]} == {False}
    assert _lines(forced)["orders over HTTP/1.1"]["fix"].startswith("allow kinesis:SubscribeToShard to the role")


def test_dead_run_and_other_streams_allow_subscribing(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.rows(OWNED, replace(OWNED, key=run_key("clicks")))
    cli.refuse("SubscribeToShard")
    with renewing(here, run_key("clicks")):
        found = here.run("doctor", "--stream", "orders", *SUBSCRIBE, *QUICKLY)
        assert found.data["subscription"]["stream"] == "orders"
        assert here.run("doctor", "--stream", "clicks", *SUBSCRIBE, *QUICKLY).code == 3
    assert "is an owner alive?" in found.err


def test_subscribing_needs_to_see_the_leases(cli: Cli, here: Here) -> None:
    cli.refuse("Scan")
    here.run("doctor", *SUBSCRIBE).ends(3, "whether a run reads orders is not known", out="")
    cli.switch.faults = NoFaults()
    here.dynamodb.delete_table(TableName=here.lease_table)
    assert here.run("doctor", *SUBSCRIBE).code == 3
    assert subscribed(here) == []


def test_subscribing_needs_to_list_shards(cli: Cli, here: Here) -> None:
    cli.refuse("ListShards")
    found = here.run("doctor", *SUBSCRIBE)
    assert (found.code, "subscription" in found.data) == (1, False)
    assert _lines(found)["subscribing to orders"]["fix"].startswith("allow kinesis:ListShards")


def test_contradicting_options_are_refused(cli: Cli) -> None:
    found = cli.world().run("doctor", "--subscribe", "--polling")
    found.ends(2, "--subscribe cannot be combined with --polling", out="")
