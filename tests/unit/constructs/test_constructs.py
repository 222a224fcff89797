"""What the constructs declare in somebody's own app: secure by default, without an environment file."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_efo_infra import (
    ArgumentError,
    CustomerKey,
    EmrOnEc2,
    EmrServerless,
    LeaseTable,
    Place,
    ReaderAccess,
    ServiceAccount,
    Stream,
    StreamConsumer,
    StreamingApplication,
    pin_account,
    policy_for,
)
from kinesis_efo_infra.cdk import IamRole, TerraformStack
from kinesis_efo_infra.trust import Trust
from tests.support.missing import terraform
from tests.unit.constructs.conftest import Synth

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/1b2c3d4e"
OIDC = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/ABC"


def only(declared: dict[str, Any], kind: str) -> Any:
    """The only resource of a type."""
    (found,) = declared["resource"][kind].values()
    return found


def sids(document: Any) -> set[str]:
    return {statement["sid"] for statement in document["statement"]}


def test_a_stream_is_encrypted_with_a_key_of_its_own(stack: TerraformStack, synth: Synth) -> None:
    Stream(stack, "orders", name="orders")
    declared = synth()
    stream = only(declared, "aws_kinesis_stream")
    assert stream["stream_mode_details"] == {"stream_mode": "ON_DEMAND"}
    assert "shard_count" not in stream
    assert stream["kms_key_id"].startswith("${aws_kms_key.orders_key_")
    assert only(declared, "aws_kms_key")["enable_key_rotation"] is True
    assert only(declared, "aws_kms_alias")["name"] == "alias/kinesis-efo/stream/orders"


@pytest.mark.parametrize(("key", "expected"), [("aws-managed", "alias/aws/kinesis"), (KEY, KEY)])
def test_another_key_may_be_chosen(key: str, expected: str, stack: TerraformStack, synth: Synth) -> None:
    Stream(stack, "orders", name="orders", encryption_key=key)
    declared = synth()
    assert only(declared, "aws_kinesis_stream")["kms_key_id"] == expected
    assert "aws_kms_key" not in declared["resource"]


def test_a_key_may_be_shared(stack: TerraformStack, synth: Synth) -> None:
    key = CustomerKey(stack, "key", alias="shared", description="Records", foreign_readers=["arn:aws:iam::1:root"])
    for name in ("orders", "clicks"):
        Stream(stack, name, name=name, encryption_key=key)
    declared = synth()
    assert "OtherAccounts" in only(declared, "aws_kms_key")["policy"]
    assert len({each["kms_key_id"] for each in declared["resource"]["aws_kinesis_stream"].values()}) == 1


def test_what_is_protected_is_not_destroyed(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream(stack, "orders", name="orders", protected=True)
    StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, protected=True)
    declared = synth()["resource"]
    for kind in ("aws_kinesis_stream", "aws_kinesis_stream_consumer", "aws_dynamodb_table", "aws_kms_key"):
        for each in declared[kind].values():
            assert each["lifecycle"] == {"prevent_destroy": True}, kind
    assert only({"resource": declared}, "aws_dynamodb_table")["deletion_protection_enabled"] is True


def test_a_scaler_keeps_its_shards_and_protection_stays(stack: TerraformStack, synth: Synth) -> None:
    Stream(stack, "orders", name="orders", shards=4, protected=True, ignore_shard_changes=True)
    lifecycle = only(synth(), "aws_kinesis_stream")["lifecycle"]
    assert lifecycle == {"prevent_destroy": True, "ignore_changes": ["shard_count"]}


def test_what_exists_is_taken_over(stack: TerraformStack, synth: Synth) -> None:
    terraform()
    orders = Stream(stack, "orders", name="orders", import_existing=True, place=Place("orders"))
    lake = f"{ORDERS}/consumer/lake:1700000000"
    StreamConsumer(stack, "lake", stream=orders, name="lake", import_existing=lake, place=Place("lake"))
    LeaseTable(stack, "leases", name="lake-leases", import_existing=True, place=Place("leases"))
    assert {each["to"]: each["id"] for each in synth()["import"]} == {
        "aws_kinesis_stream.orders": "orders",
        "aws_kinesis_stream_consumer.lake": lake,
        "aws_dynamodb_table.leases": "lake-leases",
    }


def test_of_a_stream_of_somebody_else_nothing_but_the_consumer_is_declared(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS, encryption_key=KEY)
    assert (orders.name, orders.arn, orders.key_arn) == ("orders", ORDERS, KEY)
    lake = StreamConsumer(stack, "lake", stream=orders, name="lake")
    orders.grant_read("lake-job", lake)
    declared = synth()
    assert set(declared["resource"]) == {"aws_kinesis_stream_consumer", "aws_iam_role_policy"}
    (document,) = declared["data"]["aws_iam_policy_document"].values()
    assert sids(document) == {"ReadStreams", "SubscribeToConsumers", "DecryptStreams", "NeverRegisterConsumers"}


def test_a_consumer_of_somebody_else_is_used_as_it_is(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    given = StreamConsumer.from_arn(stack, "given", f"{ORDERS}/consumer/lake:1700000000", stream=orders)
    lake = StreamingApplication(stack, "lake", name="lake", streams={"orders": given})
    assert lake.consumers["orders"] is given
    declared = synth()
    assert "aws_kinesis_stream_consumer" not in declared["resource"]
    assert f"{ORDERS}/consumer/lake:1700000000" in only(declared, "aws_ssm_parameter")["value"]


@pytest.mark.parametrize("grant", ["read", "batch", "write", "leases", "manifest"])
def test_every_inline_policy_denies_registration(grant: str, stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    lake = StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, encryption_key="aws-managed")
    match grant:
        case "read":
            orders.grant_read("job", lake.consumers["orders"])
        case "batch":
            orders.grant_batch("job")
        case "write":
            orders.grant_write("job")
        case "leases":
            lake.lease_table.grant_read_write("job")
        case _:
            lake.manifest.grant_read("job")
    declared = synth()
    inline = only(declared, "aws_iam_role_policy")
    assert inline["role"] == "job"
    name = inline["policy"].removeprefix("${data.aws_iam_policy_document.").removesuffix(".json}")
    document = declared["data"]["aws_iam_policy_document"][name]
    (denied,) = [each for each in document["statement"] if each["effect"] == "Deny"]
    assert denied["actions"] == ["kinesis:DeregisterStreamConsumer", "kinesis:RegisterStreamConsumer"]
    assert denied["resources"] == ["*"]
    assert len(document["statement"]) > 1


def test_roles_that_are_declared_elsewhere_get_policies_with_names_that_do_not_move(
    stack: TerraformStack, synth: Synth
) -> None:
    first = Stream.from_arn(stack, "first", ORDERS.replace("orders", "first"))
    role = IamRole(stack, "job", assume_role_policy="{}")
    orders = Stream.from_arn(stack, "orders", ORDERS)
    for stream in (first, orders):
        stream.grant_write(role.name)
        stream.grant_write("another")
    inline = synth()["resource"]["aws_iam_role_policy"]
    assert sorted(key.rpartition("_")[0] for key in inline) == [
        "first_write-another",
        "first_write-aws_iam_role-job-name",
        "orders_write-another",
        "orders_write-aws_iam_role-job-name",
    ]
    assert len({(each["role"], each["name"]) for each in inline.values()}) == 4, "none overwrites another"


def test_an_application_may_do_what_a_reader_calls_and_no_more(stack: TerraformStack, synth: Synth) -> None:
    orders, copy = Stream(stack, "orders", name="orders"), Stream(stack, "copy", name="copy")
    lake = StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, writes=[copy], batch=True)
    assert lake.access.role_name is None
    assert lake.manifest.location == "ssm:///kinesis-efo/streaming/lake"
    declared = synth()
    documents = declared["data"]["aws_iam_policy_document"]
    (reading,) = [each for name, each in documents.items() if name.startswith("lake_access_")]
    (stretches,) = [each for name, each in documents.items() if name.startswith("lake_batch-access_")]
    assert sids(reading) == {
        "ReadStreams",
        "SubscribeToConsumers",
        "DecryptStreams",
        "WriteStreams",
        "EncryptStreams",
        "KeepLeases",
        "DecryptLeasesAndManifest",
        "LoadManifest",
        "NeverRegisterConsumers",
    }
    assert sids(stretches) == {
        "ReadStreams",
        "DecryptStreams",
        "DecryptLeasesAndManifest",
        "LoadManifest",
        "NeverRegisterConsumers",
    }
    table = only(declared, "aws_dynamodb_table")
    assert table["name"] == "kinesis-efo-streaming-lake"
    assert table["point_in_time_recovery"] == {"enabled": True}
    assert table["server_side_encryption"]["kms_key_arn"] == only(declared, "aws_ssm_parameter")["key_id"]


def test_without_customer_keys_nothing_is_decrypted(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream(stack, "orders", name="orders", encryption_key="aws-managed")
    StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, encryption_key="aws-managed")
    declared = synth()
    assert "aws_kms_key" not in declared["resource"]
    assert "key_id" not in only(declared, "aws_ssm_parameter")
    assert only(declared, "aws_ssm_parameter")["type"] == "SecureString"
    assert only(declared, "aws_dynamodb_table")["server_side_encryption"] == {"enabled": True}
    (document,) = declared["data"]["aws_iam_policy_document"].values()
    assert not any(action.startswith("kms:") for each in document["statement"] for action in each["actions"])


@pytest.mark.parametrize(
    ("trust", "principal"),
    [
        (
            EmrOnEc2(),
            '${(data.aws_partition.kinesis-efo-partition.partition == "aws-cn") ? "ec2.amazonaws.com.cn" : "ec2.amazonaws.com"}',
        ),
        (EmrServerless(), "emr-serverless.amazonaws.com"),
        (ServiceAccount(OIDC, "spark", "lake"), OIDC),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_role_is_for_what_is_trusted(trust: Trust, principal: str, stack: TerraformStack, synth: Synth) -> None:
    policy = policy_for(stack)
    access = ReaderAccess(
        stack, "access", application="lake", policy=policy, trust=trust, role_policies=[KEY], permissions_boundary=KEY
    )
    assert access.role_name
    declared = synth()
    (trusted,) = [
        each for name, each in declared["data"]["aws_iam_policy_document"].items() if name.startswith("access_trust")
    ]
    assert trusted["statement"][0]["principals"][0]["identifiers"] == [principal]
    assert ("aws_iam_instance_profile" in declared["resource"]) == isinstance(trust, EmrOnEc2)
    assert len(declared["resource"]["aws_iam_role_policy_attachment"]) == 2
    assert only(declared, "aws_iam_role")["permissions_boundary"] == KEY


def test_terraform_asks_for_account_and_region_once(stack: TerraformStack, synth: Synth) -> None:
    for name in ("orders", "clicks"):
        Stream(stack, name, name=name)
    data = synth()["data"]
    assert {kind: len(each) for kind, each in data.items()} == {
        "aws_caller_identity": 1,
        "aws_region": 1,
        "aws_partition": 1,
    }


def test_an_account_may_be_pinned(stack: TerraformStack, synth: Synth) -> None:
    pin_account(stack, "111122223333", "cn-north-1")
    Stream(stack, "orders", name="orders").grant_write("job")
    declared = synth()
    assert set(declared["data"]) == {"aws_iam_policy_document"}
    assert "arn:aws-cn:iam::111122223333:root" in only(declared, "aws_kms_key")["policy"]
    assert "kinesis.cn-north-1.amazonaws.com.cn" in str(declared["data"])


def test_a_region_that_no_partition_has_is_refused(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-wst-one")
    with pytest.raises(ArgumentError, match="region must be one of AWS, such as eu-west-1; got 'eu-wst-one'"):
        Stream(stack, "orders", name="orders").grant_write("job")


def test_places_are_the_terraform_names_and_moves_are_told(stack: TerraformStack, synth: Synth) -> None:
    terraform()
    orders = Stream(stack, "orders", name="orders", place=Place("orders"))
    place = Place("archive", before="lake")
    StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, batch=True, place=place)
    declared = synth()
    assert set(declared["resource"]["aws_kinesis_stream"]) == {"orders"}
    assert set(declared["resource"]["aws_kms_key"]) == {"orders", "archive"}
    assert set(declared["resource"]["aws_kinesis_stream_consumer"]) == {"archive_orders"}
    assert set(declared["resource"]["aws_dynamodb_table"]) == {"archive"}
    assert set(declared["resource"]["aws_iam_policy"]) == {"archive", "archive_batch"}
    assert {"from": "aws_dynamodb_table.lake", "to": "aws_dynamodb_table.archive"} in declared["moved"]
    assert {
        "from": "aws_kinesis_stream_consumer.lake_orders",
        "to": "aws_kinesis_stream_consumer.archive_orders",
    } in declared["moved"]


def test_without_places_the_construct_tree_names(stack: TerraformStack, synth: Synth) -> None:
    Stream(stack, "orders", name="orders")
    ((name, _),) = synth()["resource"]["aws_kinesis_stream"].items()
    assert name.startswith("orders_stream_")


def test_an_application_uses_its_output_and_nothing_beside(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    where: dict[str, Any] = {"output": "s3://lake/raw", "checkpoint": "s3://lake/state", "output_key": KEY}
    StreamingApplication(stack, "lake", name="lake", streams={"orders": orders}, **where)
    (document,) = synth()["data"]["aws_iam_policy_document"].values()
    found = {each["sid"]: each for each in document["statement"]}
    bucket = "arn:${data.aws_partition.kinesis-efo-partition.partition}:s3:::lake"
    keys = [f"{bucket}/{key}" for key in ("raw", "raw/*", "state", "state/*")]
    assert found["UseObjects"]["resources"] == keys
    assert found["ListCheckpoint"]["condition"][0]["values"] == ["state", "state/*"]
    assert found["EncryptObjects"]["resources"] == [KEY]
