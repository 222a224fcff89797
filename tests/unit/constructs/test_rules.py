"""Rules that span constructs: what AWS would refuse or jobs would do to each other is refused when the app is synthesized."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinesis_efo_infra import (
    ArgumentError,
    LeaseTable,
    Manifest,
    Stream,
    StreamConsumer,
    StreamingApplication,
    pin_account,
    policy_for,
)
from kinesis_efo_infra.cdk import TerraformStack
from tests.unit.constructs.conftest import Synth

# isort: split

from cdktf_cdktf_provider_aws.s3_bucket import S3Bucket

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER = f"{ORDERS}/consumer/lake:1700000000"


def document_of(declared: dict[str, Any], inline: str) -> list[dict[str, Any]]:
    (policy,) = [each for key, each in declared["resource"]["aws_iam_role_policy"].items() if inline in key]
    name = policy["policy"].removeprefix("${data.aws_iam_policy_document.").removesuffix(".json}")
    return list(declared["data"]["aws_iam_policy_document"][name]["statement"])


def application(stack: TerraformStack, name: str, **changes: Any) -> StreamingApplication:
    return StreamingApplication(stack, name, **{"name": name, "encryption_key": "aws-managed", **changes})


def test_a_consumer_is_read_by_one_application(stack: TerraformStack, synth: Synth) -> None:
    lake = StreamConsumer(stack, "consumer", stream=Stream(stack, "orders", name="orders"), name="lake")
    for name in ("lake", "pond"):
        application(stack, name, streams={"orders": lake})
    with pytest.raises(
        RuntimeError,
        match=r"\[streaming/consumer\] consumer lake is read by lake in streaming and by pond in streaming, "
        "which would take its subscriptions from each other: give each application a consumer of its own",
    ):
        synth()


def test_a_consumer_that_is_given_twice_is_still_one(stack: TerraformStack, synth: Synth) -> None:
    for name in ("lake", "pond"):
        orders = Stream.from_arn(stack, f"orders-{name}", ORDERS)
        given = StreamConsumer.from_arn(stack, f"given-{name}", CONSUMER, stream=orders)
        application(stack, name, streams={"orders": given})
    with pytest.raises(RuntimeError, match="consumer lake is read by lake in streaming and by pond in streaming"):
        synth()


def test_a_stream_has_one_consumer_of_a_name(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream(stack, "orders", name="orders")
    for name in ("lake", "pond"):
        StreamConsumer(stack, name, stream=orders, name="reader")
    with pytest.raises(
        RuntimeError, match=r"'reader' is declared by streaming/lake and by streaming/pond: .* one of a name"
    ):
        synth()


def test_consumers_of_one_name_on_two_streams_are_two(stack: TerraformStack, synth: Synth) -> None:
    streams = {name: Stream(stack, name, name=name) for name in ("orders", "clicks")}
    lake = application(stack, "lake", streams=streams)
    # Two manifests of one application are no two applications.
    table = LeaseTable(stack, "table", name="leases", encryption_key="aws-managed")
    Manifest(
        stack,
        "again",
        application="lake",
        table=table,
        streams=lake.consumers,
        name="/again",
        encryption_key="aws-managed",
    )
    assert len(synth()["resource"]["aws_kinesis_stream_consumer"]) == 2


def many(stack: TerraformStack, count: int) -> dict[str, Stream]:
    return {
        f"stream-{n}": Stream(stack, f"s{n}", name=f"stream-{n}", encryption_key="aws-managed") for n in range(count)
    }


def test_a_manifest_fits_a_parameter(stack: TerraformStack) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"Manifest 'manifest': streams must fit a standard parameter of 4096 bytes; got 20 streams, which take \d+ at least"
        ": give tier='advanced', which holds 8 KB, or a `bucket`",
    ):
        application(stack, "lake", streams=many(stack, 20))


def test_a_manifest_of_any_size_is_an_object(stack: TerraformStack, synth: Synth) -> None:
    application(stack, "lake", streams=many(stack, 20), manifest_bucket="manifests")
    content = next(iter(synth()["resource"]["aws_s3_object"].values()))["content"]
    assert content.count("consumerArn") == 20


def test_the_size_is_that_of_what_terraform_writes(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-central-1")
    here = "eu-central-1:111122223333"
    with pytest.raises(ArgumentError) as caught:
        application(stack, "lake", streams=many(stack, 20))
    written = {
        "schemaVersion": 1,
        "application": "lake",
        "environment": "streaming",
        "region": "eu-central-1",
        "leaseTable": {
            "name": "kinesis-efo-streaming-lake",
            "arn": f"arn:aws:dynamodb:{here}:table/kinesis-efo-streaming-lake",
        },
        "streams": {
            key: {
                "streamName": key,
                "streamArn": f"arn:aws:kinesis:{here}:stream/{key}",
                "consumerArn": f"arn:aws:kinesis:{here}:stream/{key}/consumer/lake:1700000000",
            }
            for key in (f"stream-{n}" for n in range(20))
        },
    }
    size = len(json.dumps(written, separators=(",", ":")))
    assert f"which take {size} at least" in str(caught.value)


@pytest.mark.parametrize(
    ("arn", "what", "ours"),
    [(ORDERS.replace("eu-west-1", "us-east-1"), "region", "eu-west-1"), (ORDERS.replace("1111", "9999"), "account", "111122223333")],
)  # fmt: skip
def test_a_consumer_is_declared_where_its_stream_is(arn: str, what: str, ours: str, stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-west-1")
    theirs = Stream.from_arn(stack, "theirs", arn)
    with pytest.raises(
        ArgumentError,
        match=rf"StreamConsumer 'c': stream must be of the {what} that it is deployed to, {ours}; got '{arn}': "
        "correct the ARN, or give StreamConsumer.from_arn, since its owner registers the consumer there",
    ):
        StreamConsumer(stack, "c", stream=theirs, name="lake")
    StreamConsumer.from_arn(stack, "given", f"{arn}/consumer/lake:1", stream=theirs)


def test_where_only_terraform_knows_the_account_terraform_refuses(stack: TerraformStack, synth: Synth) -> None:
    StreamConsumer(stack, "c", stream=Stream.from_arn(stack, "theirs", ORDERS), name="lake", protected=True)
    (consumer,) = synth()["resource"]["aws_kinesis_stream_consumer"].values()
    region, account = consumer["lifecycle"]["precondition"]
    assert region["condition"] == '${(data.aws_region.kinesis-efo-region.region == "eu-west-1")}'
    assert account["condition"] == '${(data.aws_caller_identity.kinesis-efo-account.account_id == "111122223333")}'
    assert account["error_message"].startswith(
        "StreamConsumer 'c': stream must be of the account that it is deployed to;"
    )
    assert consumer["lifecycle"]["prevent_destroy"] is True


def test_a_manifest_is_of_one_region(stack: TerraformStack, synth: Synth) -> None:
    pin_account(stack, "111122223333", "eu-west-1")
    theirs = Stream.from_arn(stack, "theirs", ORDERS.replace("eu-west-1", "us-east-1"))
    application(stack, "lake", streams={"orders": theirs}, polling="only")
    with pytest.raises(
        RuntimeError, match=r"stream 'orders' must be in eu-west-1, .*us-east-1.*: declare an application in us"
    ):
        synth()


@pytest.mark.parametrize(("region", "refused"), [("us-east-1", True), ("eu-west-1", False), (None, False)])
def test_the_region_of_the_provider_counts(stack: TerraformStack, region: str | None, refused: bool) -> None:
    from cdktf import App
    from cdktf_cdktf_provider_aws.provider import AwsProvider

    AwsProvider(stack, "aws", **({"region": region} if region else {}))
    application(stack, "lake", streams={"orders": Stream.from_arn(stack, "o", ORDERS)}, polling="only")
    app = stack.node.root
    assert isinstance(app, App)
    if refused:
        with pytest.raises(RuntimeError, match="stream 'orders' must be in us-east-1"):
            app.synth()
    else:
        app.synth()


def test_the_same_grant_again_changes_nothing(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream(stack, "orders", name="orders")
    for _ in range(2):
        orders.grant_write("job")
        orders.grant_batch("job")
    declared = synth()
    assert len(declared["resource"]["aws_iam_role_policy"]) == 2
    assert [each["sid"] for each in document_of(declared, "write")] == [
        "WriteStreams", "EncryptStreams", "NeverRegisterConsumers",
    ]  # fmt: skip


def test_a_wider_grant_adds_to_a_narrower_one(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream(stack, "orders", name="orders", encryption_key="aws-managed")
    lake = StreamConsumer(stack, "lake", stream=orders, name="lake")
    orders.grant_read("job", lake, polling=False)
    orders.grant_read("job", lake)
    statements = document_of(synth(), "read")
    allowed = {action for each in statements if each["effect"] == "Allow" for action in each["actions"]}
    assert {"kinesis:GetRecords", "kinesis:SubscribeToShard"} <= allowed
    assert [each["effect"] for each in statements].count("Deny") == 1


@pytest.mark.parametrize(("said", "gets"), [({}, True), ({"polling": False}, False)])
def test_who_reads_gets_records_to_catch_up_unless_that_is_taken_away(
    said: dict[str, bool], gets: bool, stack: TerraformStack, synth: Synth
) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    orders.grant_read("job", StreamConsumer.from_arn(stack, "c", CONSUMER, stream=orders), **said)
    (reading,) = (each for each in document_of(synth(), "read") if each["sid"] == "ReadStreams")
    assert set(reading["actions"]) & {"kinesis:GetRecords", "kinesis:GetShardIterator"} == (
        {"kinesis:GetRecords", "kinesis:GetShardIterator"} if gets else set()
    )


def test_what_is_granted_on_one_stream_is_not_granted_on_another(stack: TerraformStack) -> None:
    orders, clicks = (Stream.from_arn(stack, name, ORDERS.replace("orders", name)) for name in ("orders", "clicks"))
    policy = policy_for(stack)
    orders.grant_read(policy, StreamConsumer.from_arn(stack, "c", CONSUMER, stream=orders), polling=False)
    clicks.grant_poll(policy)
    polled = [each.resources for each in policy.statements.values() if "kinesis:GetRecords" in each.actions]
    assert polled == [(clicks.arn,)]


def test_output_may_be_in_a_bucket_that_is_declared(stack: TerraformStack, synth: Synth) -> None:
    bucket = S3Bucket(stack, "lake-bucket", bucket="lake")
    orders = Stream(stack, "orders", name="orders")
    application(stack, "lake", streams={"orders": orders}, output=f"s3://{bucket.bucket}/raw")
    documents = json.dumps(synth()["data"]["aws_iam_policy_document"])
    assert ":s3:::${aws_s3_bucket.lake-bucket.bucket}/raw/*" in documents


def test_a_whole_output_that_only_terraform_knows_is_refused_with_the_way(stack: TerraformStack) -> None:
    bucket = S3Bucket(stack, "lake-bucket", bucket="lake")
    orders = Stream(stack, "orders", name="orders")
    with pytest.raises(
        ArgumentError, match=r"'lake': a location .* must still begin with s3://.*: give f's3://"
    ) as caught:
        application(stack, "lake", streams={"orders": orders}, output=bucket.bucket)
    assert "TfToken" not in str(caught.value)
