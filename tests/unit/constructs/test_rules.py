"""Rules that span constructs: what AWS would refuse or jobs would do to each other is refused when the app is synthesized."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinesis_efo_infra import (
    ArgumentError,
    LeaseTable,
    Manifest,
    Polling,
    Stream,
    StreamConsumer,
    StreamingApplication,
    pin_account,
    policy_for,
)
from kinesis_efo_infra.cdk import TerraformStack
from tests.unit.constructs.conftest import Synth, evaluated
from tests.unit.infra.conftest import rows

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


# A program, and what is refused at once or when it is synthesized.
REFUSED = r"""
(c := StreamConsumer(s, 'consumer', stream=Stream(s, 'orders', name='orders'), name='lake'), [application(s, each, streams={'o': c}) for each in ('lake', 'pond')]) => \[streaming/consumer\] consumer lake is read by lake in streaming and by pond in streaming, which would take its subscriptions from each other: give each application a consumer of its own
[application(s, each, streams={'o': StreamConsumer.from_arn(s, f'given-{each}', CONSUMER, stream=Stream.from_arn(s, f'o-{each}', ORDERS))}) for each in ('lake', 'pond')] => consumer lake is read by lake in streaming and by pond in streaming
(o := Stream(s, 'orders', name='orders'), [StreamConsumer(s, each, stream=o, name='reader') for each in ('lake', 'pond')]) => 'reader' is declared by streaming/lake and by streaming/pond: .* one of a name
application(s, 'lake', streams=many(s, 20)) => Manifest 'manifest': streams must fit a standard parameter of 4096 bytes; got 20 streams, which take \d+ at least: give tier='advanced', which holds 8 KB, or a `bucket`
(pin_account(s, '111122223333', 'eu-west-1'), application(s, 'lake', streams={'orders': elsewhere(s, 'us-east-1')}, polling=Polling.ONLY)) => stream 'orders' must be in eu-west-1, .*us-east-1.*: declare an application in us
(pin_account(s, '111122223333', 'eu-west-1'), StreamConsumer(s, 'c', stream=elsewhere(s, 'us-east-1'), name='lake')) => StreamConsumer 'c': stream must be of the region that it is deployed to, eu-west-1; got 'arn:.*': correct the ARN, or give StreamConsumer.from_arn, since its owner registers the consumer there
(pin_account(s, '999922223333', 'eu-west-1'), StreamConsumer(s, 'c', stream=elsewhere(s, 'eu-west-1'), name='lake')) => StreamConsumer 'c': stream must be of the account that it is deployed to, 999922223333; got 'arn:
application(s, 'lake', streams={'orders': Stream(s, 'orders', name='orders')}, output=S3Bucket(s, 'b', bucket='lake').bucket) => ^(?!.*TfToken).*'lake': a location .* must still begin with s3://.*: give f's3://
(pin_account(s, '999922223333', 'eu-west-1'), StreamConsumer.from_arn(s, 'given', CONSUMER, stream=elsewhere(s, 'eu-west-1')).alarms()) => alarms of streaming/given: stream must be of the account .*: declare them there
(o := Stream(s, 'orders', name='orders'), o.grant_write('a.b'), o.grant_write('a-b')) => There is already a Construct with name 'write-a-b-document'
StreamConsumer(s, 'c', stream=Stream(s, 'orders', name='orders'), name='lake').alarms(lag_threshold_seconds=0) => lag_threshold_seconds must be a whole number from 1 to .*; got 0: give seconds
StreamConsumer(s, 'c', stream=Stream(s, 'orders', name='orders'), name='lake').alarms(retention_hours=12) => retention_hours must be a whole number from 24
"""


def elsewhere(stack: TerraformStack, region: str) -> Stream:
    return Stream.from_arn(stack, "theirs", ORDERS.replace("eu-west-1", region))


@pytest.mark.parametrize(("program", "message"), rows(REFUSED))
def test_contradicting_constructs_are_refused(program: str, message: str, stack: TerraformStack, synth: Synth) -> None:
    with pytest.raises((ArgumentError, RuntimeError), match=message):
        (evaluated(program, stack, globals()), synth())


def test_foreign_consumer_may_be_given(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-west-1")
    arn = ORDERS.replace("eu-west-1", "us-east-1")
    StreamConsumer.from_arn(stack, "given", f"{arn}/consumer/lake:1", stream=elsewhere(stack, "us-east-1"))


def test_consumers_of_one_name_may_be_on_two_streams(stack: TerraformStack, synth: Synth) -> None:
    streams = {name: Stream(stack, name, name=name) for name in ("orders", "clicks")}
    lake = application(stack, "lake", streams=streams)
    # Two manifests of one application are no two applications.
    table = LeaseTable(stack, "table", name="leases", encryption_key="aws-managed")
    own: dict[str, Any] = {"name": "/again", "encryption_key": "aws-managed"}
    Manifest(stack, "again", application="lake", table=table, streams=lake.consumers, **own)
    assert len(synth()["resource"]["aws_kinesis_stream_consumer"]) == 2


def many(stack: TerraformStack, count: int) -> dict[str, Stream]:
    return {
        f"stream-{n}": Stream(stack, f"s{n}", name=f"stream-{n}", encryption_key="aws-managed") for n in range(count)
    }


def test_manifest_of_any_size_may_be_an_object(stack: TerraformStack, synth: Synth) -> None:
    application(stack, "lake", streams=many(stack, 20), manifest_bucket="manifests")
    content = next(iter(synth()["resource"]["aws_s3_object"].values()))["content"]
    assert content.count("consumerArn") == 20


def test_size_is_what_terraform_writes(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-central-1")
    here = "eu-central-1:111122223333"
    with pytest.raises(ArgumentError) as caught:
        application(stack, "lake", streams=many(stack, 20))
    table, kinesis = "kinesis-efo-streaming-lake", f"arn:aws:kinesis:{here}:stream"
    streams = {
        key: {
            "streamName": key,
            "streamArn": f"{kinesis}/{key}",
            "consumerArn": f"{kinesis}/{key}/consumer/lake:1700000000",
        }
        for key in (f"stream-{n}" for n in range(20))
    }
    names = {"schemaVersion": 1, "application": "lake", "environment": "streaming", "region": "eu-central-1"}
    leases = {"name": table, "arn": f"arn:aws:dynamodb:{here}:table/{table}"}
    written = {**names, "leaseTable": leases, "streams": streams}
    size = len(json.dumps(written, separators=(",", ":")))
    assert f"which take {size} at least" in str(caught.value)


def test_terraform_refuses_foreign_accounts(stack: TerraformStack, synth: Synth) -> None:
    StreamConsumer(stack, "c", stream=Stream.from_arn(stack, "theirs", ORDERS), name="lake", protected=True)
    (consumer,) = synth()["resource"]["aws_kinesis_stream_consumer"].values()
    region, account = consumer["lifecycle"]["precondition"]
    assert region["condition"] == '${(data.aws_region.kinesis-efo-region.region == "eu-west-1")}'
    assert account["condition"] == '${(data.aws_caller_identity.kinesis-efo-account.account_id == "111122223333")}'
    assert account["error_message"].startswith(
        "StreamConsumer 'c': stream must be of the account that it is deployed to;"
    )
    assert consumer["lifecycle"]["prevent_destroy"] is True


@pytest.mark.parametrize(("region", "refused"), [("us-east-1", True), ("eu-west-1", False), (None, False)])
def test_the_region_of_the_provider_counts(stack: TerraformStack, region: str | None, refused: bool) -> None:
    from cdktf import App
    from cdktf_cdktf_provider_aws.provider import AwsProvider

    AwsProvider(stack, "aws", **({"region": region} if region else {}))
    application(stack, "lake", streams={"orders": Stream.from_arn(stack, "o", ORDERS)}, polling=Polling.ONLY)
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


def test_grant_is_for_one_stream(stack: TerraformStack) -> None:
    orders, clicks = (Stream.from_arn(stack, name, ORDERS.replace("orders", name)) for name in ("orders", "clicks"))
    policy = policy_for(stack)
    orders.grant_read(policy, StreamConsumer.from_arn(stack, "c", CONSUMER, stream=orders), polling=False)
    clicks.grant_poll(policy)
    polled = [each.resources for each in policy.statements.values() if "kinesis:GetRecords" in each.actions]
    assert polled == [(clicks.arn,)]


def test_output_may_be_in_a_declared_bucket(stack: TerraformStack, synth: Synth) -> None:
    bucket = S3Bucket(stack, "lake-bucket", bucket="lake")
    orders = Stream(stack, "orders", name="orders")
    application(stack, "lake", streams={"orders": orders}, output=f"s3://{bucket.bucket}/raw")
    documents = json.dumps(synth()["data"]["aws_iam_policy_document"])
    assert ":s3:::${aws_s3_bucket.lake-bucket.bucket}/raw/*" in documents
