"""What the synthesized Terraform says, construct by construct."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

import infra
from infra.settings import addresses
from infra.settings.literals import literal_policy
from infra.settings.load import load_environment, load_environments
from infra.settings.model import Environment
from infra.stacks import permissions
from infra.stacks.app import synthesize
from kinesis_efo_infra import regions
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.pipeline.known_regions import known_regions
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.missing import terraform
from tests.unit.infra.conftest import without_metadata

Synth = Callable[..., dict[str, Any]]
Load = Callable[..., Environment]

ADOPTED = "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/0123abcd"
PARTITIONS = {"eusc-de-east-1": ("aws-eusc", "amazonaws.eu"), "us-iso-east-1": ("aws-iso", "c2s.ic.gov")}
PARTNER = "arn:aws:iam::777788889999:role/partner"
THEIR_ACCOUNT = {"kind": "other-account", "principals": [PARTNER]}
LISTING = ["kinesis:DescribeStreamSummary", "kinesis:ListShards"]
GETTING = ["kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"]


def apps(**changes: Any) -> dict[str, Any]:
    return {"lake": {"streams": ["orders"], **changes}}


def shared(**changes: Any) -> dict[str, Any]:
    return apps(access=THEIR_ACCOUNT, **changes)


def statements(stack: dict[str, Any], document: str) -> dict[str, dict[str, Any]]:
    return {each["sid"]: each for each in stack["data"]["aws_iam_policy_document"][document]["statement"]}


# -- jobs

SERVERLESS = {"kind": "emr-serverless"}


def test_without_emr_nothing_about_jobs_is_declared(synth: Synth) -> None:
    stack = synth(applications=apps(access=SERVERLESS))
    assert not any("s3" in kind or "emr" in kind for kind in stack["resource"])
    assert set(stack["resource"]["aws_ssm_parameter"]) == {"lake"}
    assert not {"LoadPrograms", "WriteLogs"} & set(statements(stack, "lake_reader"))


def test_the_bucket_of_artifacts_is_private(synth: Synth) -> None:
    stack = synth(emr={"log_days": 5}, protected=True)
    (bucket,) = stack["resource"]["aws_s3_bucket"].values()
    assert bucket == {"bucket": "kinesis-efo-test-111122223333", "lifecycle": {"prevent_destroy": True}}
    access = stack["resource"]["aws_s3_bucket_public_access_block"]["artifacts"]
    assert [value for name, value in access.items() if name != "bucket"] == [True] * 4
    (encryption,) = stack["resource"]["aws_s3_bucket_server_side_encryption_configuration"]["artifacts"]["rule"]
    by_default = encryption["apply_server_side_encryption_by_default"]
    assert by_default == {"kms_master_key_id": "${aws_kms_key.environment_key.arn}", "sse_algorithm": "aws:kms"}
    assert statements(stack, "artifacts_bucket")["TlsOnly"]["effect"] == "Deny"
    rules = stack["resource"]["aws_s3_bucket_lifecycle_configuration"]["artifacts"]["rule"]
    expiring = {rule["filter"][0]["prefix"]: rule["expiration"][0]["days"] for rule in rules if "expiration" in rule}
    assert expiring == {"logs/": 5, "stops/": 7, "environments/": 730, "programs/": 730}


def test_an_application_of_emr_serverless_has_bounds_and_its_role_trusts_no_other(synth: Synth) -> None:
    network = {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}
    emr = {"architecture": "x86_64", "serverless": {"maximum_vcpu": 8, "maximum_memory_gb": 32, **network}}
    stack = synth(emr=emr, applications=apps(access=SERVERLESS))
    application = stack["resource"]["aws_emrserverless_application"]["jobs"]
    assert application["maximum_capacity"] == {"cpu": "8 vCPU", "memory": "32 GB"}
    assert (application["architecture"], application["release_label"]) == ("X86_64", "emr-spark-8.0.0")
    assert application["network_configuration"]["subnet_ids"] == network["subnets"]
    groups = [*network["security_groups"], "${aws_security_group.workers.id}"]
    assert application["network_configuration"]["security_group_ids"] == groups
    (trust,) = stack["data"]["aws_iam_policy_document"]["lake_trust"]["statement"]
    assert ["${aws_emrserverless_application.jobs.arn}"] in [each["values"] for each in trust["condition"]]
    assert stack["output"]["emr_serverless_application"]["value"] == "${aws_emrserverless_application.jobs.id}"


def test_the_workers_of_emr_serverless_reach_each_other_and_nobody_else_reaches_them(synth: Synth) -> None:
    """Executors fetch from a port beside the driver; given security groups may not allow that, and are left alone."""
    subnets = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
    network = {"subnets": subnets, "security_groups": ["sg-0123456789abcdef0"]}
    stack = synth(emr={"serverless": network})
    (group,) = stack["resource"]["aws_security_group"].values()
    assert group["vpc_id"] == "${data.aws_subnet.workers.vpc_id}"
    assert stack["data"]["aws_subnet"]["workers"]["id"] == subnets[0]
    for rule in (*group["ingress"], *group["egress"]):
        given = {name: value for name, value in rule.items() if value and name != "description"}
        assert given == {"to_port": 65_535, "protocol": "tcp", "self": True}
        assert (rule["from_port"], rule["cidr_blocks"], rule["security_groups"]) == (0, [], [])
    assert (len(group["ingress"]), len(group["egress"])) == (1, 1)
    outside = synth(emr={})
    assert "aws_security_group" not in outside["resource"]
    assert "network_configuration" not in outside["resource"]["aws_emrserverless_application"]["jobs"]


def test_a_role_for_another_application_trusts_that_one(synth: Synth) -> None:
    stack = synth(emr={}, applications=apps(access={**SERVERLESS, "application_id": "00f1"}))
    (trust,) = stack["data"]["aws_iam_policy_document"]["lake_trust"]["statement"]
    assert any(
        each["values"] == ["arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00f1"]
        for each in trust["condition"]
    )
    assert "target" not in stack["resource"]["aws_ssm_parameter"]["lake_job"]["value"]


def test_jobs_may_load_artifacts_and_write_only_their_own_logs(synth: Synth) -> None:
    stack = synth(emr={"serverless": None}, applications={**apps(), "reports": {"streams": ["orders"]}})
    assert "aws_emrserverless_application" not in stack["resource"]
    reader = statements(stack, "lake_reader")
    bucket = "${aws_s3_bucket.artifacts.arn}"
    assert reader["WriteLogs"]["resources"] == [f"{bucket}/logs/lake/*"]
    loaded = [f"{bucket}/environments/*", f"{bucket}/programs/*", f"{bucket}/stops/kinesis-efo-test-*"]
    assert reader["LoadPrograms"]["resources"] == loaded
    assert set(stack["resource"]["aws_ssm_parameter"]) == {"lake", "lake_job", "reports", "reports_job"}


# -- streams and consumers


def test_a_declared_stream(synth: Synth) -> None:
    stack = synth(
        streams={
            "orders": {
                "mode": "provisioned",
                "shards": 4,
                "retention_hours": 48,
                "max_record_kib": 2048,
                "shard_metrics": ["IncomingBytes"],
                "tags": {"domain": "shop"},
            }
        }
    )
    assert stack["resource"]["aws_kinesis_stream"] == {
        "orders": {
            "name": "test-orders",
            "stream_mode_details": {"stream_mode": "PROVISIONED"},
            "shard_count": 4,
            "retention_period": 48,
            "encryption_type": "KMS",
            "enforce_consumer_deletion": True,
            "kms_key_id": "${aws_kms_key.orders.arn}",
            "max_record_size_in_kib": 2048,
            "shard_level_metrics": ["IncomingBytes"],
            "tags": {"domain": "shop"},
        }
    }


def test_an_on_demand_stream_has_no_shard_count(synth: Synth) -> None:
    stream = synth()["resource"]["aws_kinesis_stream"]["orders"]
    assert stream["stream_mode_details"] == {"stream_mode": "ON_DEMAND"}
    assert "shard_count" not in stream


@pytest.mark.parametrize(("key", "expected"), [("aws-managed", "alias/aws/kinesis"), (KEY, KEY)])
def test_a_stream_takes_a_given_key_or_the_one_of_aws(key: str, expected: str, synth: Synth) -> None:
    stack = synth(streams={"orders": {"key": key}})
    assert stack["resource"]["aws_kinesis_stream"]["orders"]["kms_key_id"] == expected
    assert "orders" not in stack["resource"]["aws_kms_key"]
    decrypt = statements(stack, "lake_reader").get("DecryptStreams", {"resources": []})
    assert decrypt["resources"] == ([KEY] if key == KEY else [])


@pytest.mark.parametrize("polling", [True, "only"])
def test_readers_decrypt_with_former_keys(polling: object, synth: Synth, load: Load) -> None:
    given = {
        "streams": {"orders": {"key": KEY, "former_keys": {"own": date(2027, 2, 3), f"{KEY}2": date(2027, 2, 3)}}},
        "applications": {
            "lake": {"streams": ["orders"], "batch": True, "polling": polling},
            "loader": {"streams": ["orders"], "writes": ["orders"]},
        },
    }
    stack = synth(**given)
    assert stack["resource"]["aws_kinesis_stream"]["orders"]["kms_key_id"] == KEY
    former = ["${aws_kms_key.orders.arn}", f"{KEY}2"]
    for document in ("lake_reader", "lake_batch", "loader_reader"):
        assert statements(stack, document)["DecryptStreams"]["resources"] == [KEY, *former]
    assert statements(stack, "loader_reader")["EncryptStreams"]["resources"] == [KEY], "new records need no former key"
    environment = load(**given)
    assert len(literal_policy(environment, "lake").statements["DecryptStreams"].resources) == 3
    assert "aws_kms_key.orders" in {each.address for each in addresses.identities(environment)}
    boundary = json.dumps([asdict(each) for each in permissions.boundary(environment)])
    assert f'"{KEY}2"' in boundary


def test_readers_of_an_adopted_stream_decrypt_with_former_keys(synth: Synth) -> None:
    stack = synth(streams={"orders": {"existing_arn": ADOPTED, "former_keys": {KEY: date(2027, 2, 3)}}})
    assert statements(stack, "lake_reader")["DecryptStreams"]["resources"] == [KEY]


def test_own_keys_rotate_and_belong_to_the_account(synth: Synth) -> None:
    stack = synth(streams={"orders": {"name": "shop.orders"}})
    assert set(stack["resource"]["aws_kms_key"]) == {"orders", "environment_key"}
    for key in stack["resource"]["aws_kms_key"].values():
        assert key["enable_key_rotation"] is True
        (statement,) = json.loads(key["policy"])["Statement"]
        assert statement["Principal"] == {"AWS": ["arn:aws:iam::111122223333:root"]}
    aliases = {name: alias["name"] for name, alias in stack["resource"]["aws_kms_alias"].items()}
    assert aliases == {"orders": "alias/kinesis-efo/test/shop/orders", "environment_key": "alias/kinesis-efo/test"}


def test_only_the_consumers_of_an_adopted_stream_are_declared(synth: Synth) -> None:
    stack = synth(streams={"orders": {"existing_arn": ADOPTED, "key": KEY}})
    assert "aws_kinesis_stream" not in stack["resource"]
    assert set(stack["resource"]["aws_kms_key"]) == {"environment_key"}
    assert stack["resource"]["aws_kinesis_stream_consumer"] == {"orders_lake": {"name": "lake", "stream_arn": ADOPTED}}
    reader = statements(stack, "lake_reader")
    assert reader["ReadStreams"]["resources"] == [ADOPTED]
    assert reader["DecryptStreams"]["resources"] == [KEY]


def test_a_given_consumer_is_used_and_not_declared(synth: Synth) -> None:
    consumer = f"{FOREIGN}/consumer/lake:1700000000"
    stack = synth(streams={"orders": {"existing_arn": FOREIGN, "consumers": {"lake": consumer}}})
    assert "aws_kinesis_stream_consumer" not in stack["resource"]
    assert statements(stack, "lake_reader")["SubscribeToConsumers"]["resources"] == [consumer]
    assert consumer in stack["resource"]["aws_ssm_parameter"]["lake"]["value"]
    assert set(stack["resource"]["aws_cloudwatch_metric_alarm"]) == {"lake_leases", "lake_leases_failing"}, (
        "metrics of a stream stay in its account"
    )


def test_a_given_consumer_is_watched_under_its_own_name(synth: Synth) -> None:
    consumer = f"{ADOPTED}/consumer/before:1700000000"
    stack = synth(streams={"orders": {"existing_arn": ADOPTED, "consumers": {"lake": consumer}}})
    lag = stack["resource"]["aws_cloudwatch_metric_alarm"]["orders_lake_lag"]
    assert lag["dimensions"] == {"StreamName": "payments", "ConsumerName": "before"}
    assert '"ConsumerName", "before"' in stack["resource"]["aws_cloudwatch_dashboard"]["applications"]["dashboard_body"]


def test_the_dashboard_leaves_out_streams_of_other_accounts(synth: Synth) -> None:
    streams = {"orders": {"existing_arn": FOREIGN, "consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}}, "clicks": {}}
    stack = synth(streams=streams, applications=apps() | {"pond": {"streams": ["clicks"]}})
    body = stack["resource"]["aws_cloudwatch_dashboard"]["applications"]["dashboard_body"]
    assert "pond: milliseconds behind" in body
    assert "lake: milliseconds behind" not in body
    assert '"events"' not in body


def test_consumers_are_called_as_their_application(synth: Synth) -> None:
    stack = synth(applications=apps(name="Lake.v2"))
    assert stack["resource"]["aws_kinesis_stream_consumer"]["orders_lake"]["name"] == "Lake.v2"
    assert stack["resource"]["aws_ssm_parameter"]["lake"]["name"] == "/kinesis-efo/test/Lake.v2"


@pytest.mark.slow
def test_adding_removing_and_reordering_consumers_changes_no_other(synth: Synth) -> None:
    streams: dict[str, Any] = {"orders": {}, "clicks": {}}

    def declared(*order: str) -> dict[str, Any]:
        stack = synth(streams=streams, applications={name: {"streams": list(streams)} for name in order})
        return {
            f"{kind}.{name}": resource
            for kind, resources in stack["resource"].items()
            for name, resource in resources.items()
            if kind != "aws_cloudwatch_dashboard"
        }

    before = declared("lake", "fraud", "reports")
    assert declared("reports", "lake", "fraud") == before
    added = declared("aaa", "lake", "fraud", "reports")
    assert {address: added[address] for address in before} == before
    assert {address for address in set(added) - set(before) if "consumer" in address} == {
        "aws_kinesis_stream_consumer.orders_aaa",
        "aws_kinesis_stream_consumer.clicks_aaa",
    }
    removed = declared("lake", "reports")
    assert removed == {address: resource for address, resource in before.items() if "fraud" not in address}


def test_a_moved_entry_moves_every_resource(synth: Synth) -> None:
    terraform()
    before = synth(
        streams={"shop": {"name": "orders"}},
        applications={"pond": {"streams": ["shop"], "name": "lake", "access": {"kind": "emr-ec2"}}},
    )
    after = synth(
        streams={"orders": {"name": "orders", "moved_from": "shop"}},
        applications={
            "lake": {"streams": ["orders"], "name": "lake", "moved_from": "pond", "access": {"kind": "emr-ec2"}}
        },
    )

    def addresses(stack: dict[str, Any]) -> set[str]:
        return {f"{kind}.{name}" for kind, resources in stack["resource"].items() for name in resources}

    moved = {each["from"]: each["to"] for each in after["moved"]}
    assert {moved.get(address, address) for address in addresses(before)} == addresses(after)
    assert set(moved) <= addresses(before), "nothing is moved from where nothing was"
    assert moved["aws_kinesis_stream_consumer.shop_pond"] == "aws_kinesis_stream_consumer.orders_lake"


# -- protection


def lifecycle(stack: dict[str, Any]) -> dict[str, bool]:
    return {
        f"{kind}.{name}": resource.get("lifecycle", {}).get("prevent_destroy", False)
        for kind, resources in stack["resource"].items()
        for name, resource in resources.items()
    }


def test_statements_that_share_a_stream_have_ids_of_their_own(synth: Synth) -> None:
    other = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}
    keys = ("a-1", "a1", "ax1", "a--1", "a-b", "ab", "a-x", "a-")
    stack = synth(applications={key: {"streams": ["orders"], "access": other} for key in keys})
    sids = list(statements(stack, "orders_shared"))
    assert len(sids) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z0-9]+", sid) for sid in sids)


@pytest.mark.parametrize("changes", [{"environment": "prod", "protected": True}, {"protected": True, "emr": {}}])
def test_resources_with_an_identity_are_protected(changes: dict[str, Any], load: Load, synth: Synth) -> None:
    environment = load(**changes)
    stack = synth(environment)
    protected = {address for address, kept in lifecycle(stack).items() if kept}
    assert protected == {identity.address for identity in addresses.identities(environment)}
    assert stack["resource"]["aws_dynamodb_table"]["lake"]["deletion_protection_enabled"] is True


def test_in_other_environments_nothing_is_protected(synth: Synth) -> None:
    stack = synth()
    assert not any(lifecycle(stack).values())
    assert stack["resource"]["aws_dynamodb_table"]["lake"]["deletion_protection_enabled"] is False


@pytest.mark.slow
def test_identities_are_what_the_stack_declares(load: Load, synth: Synth) -> None:
    environment = load_environment(EXAMPLE)
    stack = synth(environment)
    kinds = {identity.address.partition(".")[0] for identity in addresses.identities(environment)}
    assert {"aws_kinesis_stream", "aws_dynamodb_table", "aws_kms_key", "aws_s3_bucket"} <= kinds
    declared = {f"{kind}.{name}" for kind in kinds for name in stack["resource"][kind]}
    assert declared == {identity.address for identity in addresses.identities(environment)}


# -- lease tables, manifests, access


def test_the_lease_table(synth: Synth) -> None:
    assert synth()["resource"]["aws_dynamodb_table"]["lake"] == {
        "name": "kinesis-efo-test-lake",
        "billing_mode": "PAY_PER_REQUEST",
        "hash_key": "leaseKey",
        "attribute": [{"name": "leaseKey", "type": "S"}],
        "point_in_time_recovery": {"enabled": True},
        "server_side_encryption": {"enabled": True, "kms_key_arn": "${aws_kms_key.environment_key.arn}"},
        "deletion_protection_enabled": False,
    }


def test_a_kcl_table_is_imported(synth: Synth) -> None:
    terraform()
    stack = synth(applications=apps(lease_table="LakeRestored", import_lease_table=True))
    assert stack["import"] == [{"id": "LakeRestored", "to": "aws_dynamodb_table.lake"}]
    assert stack["resource"]["aws_dynamodb_table"]["lake"]["name"] == "LakeRestored"
    assert "import" not in synth()


def test_the_manifest_is_made_of_references(synth: Synth) -> None:
    parameter = synth()["resource"]["aws_ssm_parameter"]["lake"]
    value = parameter.pop("value")
    assert parameter == {
        "name": "/kinesis-efo/test/lake",
        "description": "kinesis-efo manifest /kinesis-efo/test/lake",
        "type": "SecureString",
        "key_id": "${aws_kms_key.environment_key.arn}",
        "tier": "Standard",
    }
    assert value.startswith("${jsonencode({")
    for reference in (
        "aws_dynamodb_table.lake.arn",
        "aws_dynamodb_table.lake.name",
        "aws_kinesis_stream.orders.arn",
        "aws_kinesis_stream.orders.name",
        "aws_kinesis_stream_consumer.orders_lake.arn",
    ):
        assert reference in value


def test_a_larger_tier_can_be_asked_for(synth: Synth) -> None:
    assert synth(manifest_tier="advanced")["resource"]["aws_ssm_parameter"]["lake"]["tier"] == "Advanced"


def test_the_reader_policy_says_exactly_what_a_reader_does(synth: Synth) -> None:
    stack = synth(streams={"orders": {}, "clicks": {}}, applications=apps(streams=["orders", "clicks"]))
    via = [{"test": "StringEquals", "variable": "kms:ViaService", "values": ["kinesis.eu-west-1.amazonaws.com"]}]
    state = ["dynamodb.eu-west-1.amazonaws.com", "ssm.eu-west-1.amazonaws.com"]
    assert statements(stack, "lake_reader") == {
        each["sid"]: {"effect": "Allow", **each}
        for each in (
            {
                "sid": "ReadStreams",
                "actions": GETTING,
                "resources": ["${aws_kinesis_stream.orders.arn}", "${aws_kinesis_stream.clicks.arn}"],
            },
            {
                "sid": "SubscribeToConsumers",
                "actions": ["kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard"],
                "resources": [
                    "${aws_kinesis_stream_consumer.orders_lake.arn}",
                    "${aws_kinesis_stream_consumer.clicks_lake.arn}",
                ],
            },
            {
                "sid": "DecryptStreams",
                "actions": ["kms:Decrypt"],
                "resources": ["${aws_kms_key.orders.arn}", "${aws_kms_key.clicks.arn}"],
                "condition": via,
            },
            {
                "sid": "KeepLeases",
                "actions": [
                    "dynamodb:DeleteItem",
                    "dynamodb:DescribeTable",
                    "dynamodb:PutItem",
                    "dynamodb:Scan",
                    "dynamodb:UpdateItem",
                ],
                "resources": ["${aws_dynamodb_table.lake.arn}"],
            },
            {
                "sid": "DecryptLeasesAndManifest",
                "actions": ["kms:Decrypt"],
                "resources": ["${aws_kms_key.environment_key.arn}"],
                "condition": [via[0] | {"values": state}],
            },
            {
                "sid": "LoadManifest",
                "actions": ["ssm:GetParameter"],
                "resources": ["arn:aws:ssm:eu-west-1:111122223333:parameter/kinesis-efo/test/lake"],
            },
            {
                "sid": "NeverRegisterConsumers",
                "effect": "Deny",
                "actions": ["kinesis:DeregisterStreamConsumer", "kinesis:RegisterStreamConsumer"],
                "resources": ["*"],
            },
        )
    }
    assert stack["resource"]["aws_iam_policy"]["lake"]["policy"] == "${data.aws_iam_policy_document.lake_reader.json}"


def test_a_policy_for_batch_reads_has_neither_consumers_nor_leases(synth: Synth) -> None:
    stack = synth(applications=apps(batch=True))
    batch = statements(stack, "lake_batch")
    assert set(batch) == {
        "ReadStreams",
        "DecryptStreams",
        "LoadManifest",
        "DecryptLeasesAndManifest",
        "NeverRegisterConsumers",
    }
    assert batch["ReadStreams"]["actions"] == GETTING
    policy = stack["resource"]["aws_iam_policy"]["lake_batch"]
    assert policy["name"] == "kinesis-efo-test-lake@batch"
    assert policy["policy"] == "${data.aws_iam_policy_document.lake_batch.json}"
    assert stack["output"]["batch_policy_arns"]["value"] == {"lake": "${aws_iam_policy.lake_batch.arn}"}
    assert "lake_batch" not in synth()["resource"]["aws_iam_policy"]


@pytest.mark.parametrize(("said", "gets"), [({}, True), ({"polling": True}, True), ({"polling": False}, False)])
def test_records_are_got_to_catch_up_unless_that_is_taken_away(
    said: dict[str, bool], gets: bool, synth: Synth, load: Load
) -> None:
    stack = synth(applications=apps(**said) | {"there": {"streams": ["orders"], "access": THEIR_ACCOUNT, **said}})
    reader = statements(stack, "lake_reader")
    assert reader["ReadStreams"]["actions"] == (GETTING if gets else LISTING)
    assert "SubscribeToConsumers" in reader
    literal = literal_policy(load(applications=apps(**said)), "lake").statements["ReadStreams"]
    assert list(literal.actions) == reader["ReadStreams"]["actions"]
    assert statements(stack, "orders_shared")["ReadThere"]["actions"] == (GETTING if gets else LISTING)


def test_getting_records_changes_two_policies_and_no_alarm(synth: Synth) -> None:
    """A query that catches up is watched as any other with a consumer."""

    def declared(**said: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        stack = synth(applications=apps(**said) | {"there": {"streams": ["orders"], "access": THEIR_ACCOUNT, **said}})
        return stack["data"].pop("aws_iam_policy_document"), stack

    (narrow, rest), (wide, same) = declared(polling=False), declared()
    assert rest == same
    assert {name for name in narrow | wide if narrow.get(name) != wide.get(name)} == {"lake_reader", "orders_shared"}


def test_writing_only_where_it_is_allowed(synth: Synth) -> None:
    stack = synth(streams={"orders": {}, "clicks": {}}, applications=apps(writes=["clicks"]))
    reader = statements(stack, "lake_reader")
    assert reader["WriteStreams"]["resources"] == ["${aws_kinesis_stream.clicks.arn}"]
    assert reader["WriteStreams"]["actions"] == [
        "kinesis:DescribeStreamSummary",
        "kinesis:ListShards",
        "kinesis:PutRecords",
    ]
    assert reader["EncryptStreams"]["actions"] == ["kms:GenerateDataKey"]
    assert reader["EncryptStreams"]["resources"] == ["${aws_kms_key.clicks.arn}"]


def test_other_partitions_have_other_arns_and_hosts(synth: Synth) -> None:
    stack = synth(region="cn-north-1", applications=apps(access={"kind": "emr-ec2"}))
    reader = statements(stack, "lake_reader")
    assert reader["LoadManifest"]["resources"] == [
        "arn:aws-cn:ssm:cn-north-1:111122223333:parameter/kinesis-efo/test/lake"
    ]
    assert reader["DecryptStreams"]["condition"][0]["values"] == ["kinesis.cn-north-1.amazonaws.com.cn"]
    assert statements(stack, "lake_trust")["EmrOnEc2"]["principals"][0]["identifiers"] == ["ec2.amazonaws.com.cn"]


@pytest.mark.parametrize("region", ["eusc-de-east-1", "us-iso-east-1"])
def test_nothing_is_of_the_partition_aws_in_a_region_of_another_one(synth: Synth, load: Load, region: str) -> None:
    given = {"region": region, "pipeline": {"repository": "acme/lake"}, "emr": {}}
    given["applications"] = apps(access={"kind": "emr-ec2"})
    stack = synth(**given)
    told = json.dumps(stack)
    granted = json.dumps([asdict(each) for each in permissions.change_access(load(**given))])
    ours = json.dumps([asdict(each) for each in permissions.boundary(load(**given))])
    for text in (told, granted, ours):
        assert f"arn:{PARTITIONS[region][0]}:" in text
        assert "arn:aws:" not in text
    via = re.findall(rf"[a-z0-9]+\.{region}\.[a-z0-9.-]+", told)
    assert via
    assert {each.partition(f".{region}.")[2] for each in via} == {PARTITIONS[region][1]}
    assert statements(stack, "lake_trust")["EmrOnEc2"]["principals"][0]["identifiers"] == ["ec2.amazonaws.com"]


def test_china_passes_roles_to_services_by_their_names_there(load: Load) -> None:
    granted = permissions.change_access(load(region="cn-north-1", pipeline={"repository": "acme/lake"}, emr={}))
    (services,) = [each.conditions[0].values for each in granted if each.sid == "PassRolesToJobs"]
    assert services == ("ec2.amazonaws.com.cn", "emr-serverless.amazonaws.com", "elasticmapreduce.amazonaws.com.cn")


@pytest.mark.parametrize("described", Session().get_data("partitions")["partitions"], ids=lambda each: str(each["id"]))
def test_partitions_are_those_of_botocore(described: dict[str, Any]) -> None:
    wanted = described["id"], described["outputs"]["dnsSuffix"]
    (areas,) = re.findall(r"^\^(.+?)\\-\\w\+\\-\\d\+\$$", described["regionRegex"])
    beginnings = re.sub(r"[()\\]", "", areas).split("|")
    named = [each for each in described["regions"] if each in known_regions()]
    for region in (*named, *(f"{each}-west-9" for each in beginnings)):
        assert (regions.partition(region), regions.dns_suffix(region)) == wanted


@pytest.mark.parametrize("region", ["moon-west-1", "us-west", "aws-global", "${var.region}", ""])
def test_a_region_of_no_partition_is_an_error_that_names_it(region: str) -> None:
    with pytest.raises(
        ArgumentError, match=f"region must be one of AWS, .*; got {re.escape(repr(region))}: correct it"
    ):
        regions.partition(region)


def test_by_default_there_is_a_policy_and_no_role(synth: Synth) -> None:
    stack = synth()
    assert "aws_iam_role" not in stack["resource"]
    assert stack["output"]["role_arns"]["value"] == {}


def test_an_emr_on_ec2_role_comes_with_its_profile(synth: Synth) -> None:
    stack = synth(applications=apps(access={"kind": "emr-ec2"}))
    resources = stack["resource"]
    assert resources["aws_iam_instance_profile"]["lake"]["role"] == "${aws_iam_role.lake.name}"
    assert resources["aws_iam_role_policy_attachment"] == {
        "lake_reader": {"role": "${aws_iam_role.lake.name}", "policy_arn": "${aws_iam_policy.lake.arn}"}
    }
    trust = statements(stack, "lake_trust")["EmrOnEc2"]
    assert trust["principals"] == [{"type": "Service", "identifiers": ["ec2.amazonaws.com"]}]
    assert "resources" not in trust


def test_an_emr_serverless_role_is_for_this_account_only(synth: Synth) -> None:
    stack = synth(applications=apps(access={"kind": "emr-serverless", "application_id": "00f1"}))
    trust = statements(stack, "lake_trust")["EmrServerless"]
    assert trust["principals"] == [{"type": "Service", "identifiers": ["emr-serverless.amazonaws.com"]}]
    assert trust["condition"] == [
        {"test": "StringEquals", "variable": "aws:SourceAccount", "values": ["111122223333"]},
        {
            "test": "ArnLike",
            "variable": "aws:SourceArn",
            "values": ["arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00f1"],
        },
    ]
    assert "aws_iam_instance_profile" not in stack["resource"]


@pytest.mark.parametrize(("account", "test"), [("spark", "StringEquals"), ("emr-containers-sa-*", "StringLike")])
def test_an_eks_role_is_for_one_service_account(account: str, test: str, synth: Synth) -> None:
    provider = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/AB12"
    access = {"kind": "eks", "oidc_provider_arn": provider, "namespace": "jobs", "service_account": account}
    trust = statements(synth(applications=apps(access=access)), "lake_trust")["ServiceAccount"]
    assert trust["actions"] == ["sts:AssumeRoleWithWebIdentity"]
    assert trust["principals"] == [{"type": "Federated", "identifiers": [provider]}]
    issuer = "oidc.eks.eu-west-1.amazonaws.com/id/AB12"
    assert trust["condition"] == [
        {"test": "StringEquals", "variable": f"{issuer}:aud", "values": ["sts.amazonaws.com"]},
        {"test": test, "variable": f"{issuer}:sub", "values": [f"system:serviceaccount:jobs:{account}"]},
    ]


def test_a_role_takes_more_policies_and_a_boundary(synth: Synth) -> None:
    buckets = ["arn:aws:iam::111122223333:policy/reader", "arn:aws:iam::111122223333:policy/other/reader"]
    access = {"kind": "emr-ec2", "role_name": "lake-runtime", "policies": buckets, "permissions_boundary": buckets[0]}
    resources = synth(applications=apps(access=access))["resource"]
    attached = {each["policy_arn"] for each in resources["aws_iam_role_policy_attachment"].values()}
    assert attached == {"${aws_iam_policy.lake.arn}", *buckets}
    assert resources["aws_iam_role"]["lake"]["name"] == "lake-runtime"
    assert resources["aws_iam_role"]["lake"]["permissions_boundary"] == buckets[0]


# -- other accounts


def test_for_a_job_in_another_account_stream_consumer_and_key_are_shared(synth: Synth) -> None:
    stack = synth(applications=shared() | {"home": {"streams": ["orders"]}})
    resources = stack["resource"]
    assert set(resources["aws_dynamodb_table"]) == set(resources["aws_iam_policy"]) == {"home"}
    assert set(resources["aws_kinesis_resource_policy"]) == {"orders", "orders_lake"}
    on_stream = statements(stack, "orders_shared")["ReadLake"]
    assert on_stream["actions"] == GETTING
    assert on_stream["resources"] == ["${aws_kinesis_stream.orders.arn}"]
    on_consumer = statements(stack, "orders_lake_shared")["Subscribe"]
    assert on_consumer["actions"] == ["kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard"]
    assert on_consumer["resources"] == ["${aws_kinesis_stream_consumer.orders_lake.arn}"]
    assert on_stream["principals"] == on_consumer["principals"] == [{"type": "AWS", "identifiers": [PARTNER]}]
    _, foreign = json.loads(resources["aws_kms_key"]["orders"]["policy"])["Statement"]
    assert foreign["Principal"] == {"AWS": [PARTNER]}
    assert foreign["Action"] == ["kms:Decrypt"]
    assert foreign["Condition"] == {"StringEquals": {"kms:ViaService": ["kinesis.eu-west-1.amazonaws.com"]}}
    assert stack["output"]["consumer_arns"]["value"]["orders/lake"] == "${aws_kinesis_stream_consumer.orders_lake.arn}"


def test_the_policy_of_an_adopted_stream_is_left_to_its_owner(synth: Synth) -> None:
    stack = synth(streams={"orders": {"existing_arn": ADOPTED}}, applications=shared())
    assert set(stack["resource"]["aws_kinesis_resource_policy"]) == {"orders_lake"}


# -- alarms and dashboard


def test_alarms_watch_enhanced_fan_out(synth: Synth) -> None:
    topic = "arn:aws:sns:eu-west-1:111122223333:oncall"
    stack = synth(alarms={"sns_topic": topic}, applications=apps(lag_threshold_seconds=90))
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"]
    watched = {"orders_lake_lag", "orders_lake_rate", "orders_lake_retention", "orders_writes", "lake_leases"}
    assert set(alarms) == watched | {"orders_writes_failing", "lake_leases_failing"}
    lag = alarms["orders_lake_lag"]
    assert lag["metric_name"] == "SubscribeToShardEvent.MillisBehindLatest"
    assert lag["dimensions"] == {"StreamName": "${aws_kinesis_stream.orders.name}", "ConsumerName": "lake"}
    assert (lag["threshold"], lag["statistic"], lag["evaluation_periods"]) == (90_000, "Maximum", 5)
    assert lag["treat_missing_data"] == "breaching", "silence means that nobody reads"
    assert alarms["orders_lake_rate"]["metric_name"] == "SubscribeToShard.RateExceeded"
    assert alarms["orders_writes"]["metric_name"] == "WriteProvisionedThroughputExceeded"
    throttled = alarms["lake_leases"]["metric_query"]
    assert [query["metric"]["metric_name"] for query in throttled[:2]] == ["ReadThrottleEvents", "WriteThrottleEvents"]
    assert [query.get("return_data", False) for query in throttled] == [False, False, True]
    for alarm in alarms.values():
        assert alarm["alarm_actions"] == alarm["ok_actions"] == [topic]
        assert alarm["actions_enabled"] is True
    text = json.dumps(alarms)
    assert "GetRecords" not in text
    assert "IteratorAge" not in text


def test_a_reader_in_another_account_is_watched_as_one_of_our_own(synth: Synth) -> None:
    """CloudWatch has the metrics of a consumer where its stream is, whoever reads it."""
    topic = "arn:aws:sns:eu-west-1:111122223333:oncall"
    stack = synth(alarms={"sns_topic": topic}, applications=shared(lag_threshold_seconds=90))
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"]
    watched = {"orders_lake_lag", "orders_lake_rate", "orders_lake_retention", "orders_writes", "orders_writes_failing"}
    assert set(alarms) == watched
    for name in ("lag", "rate", "retention"):
        assert alarms[f"orders_lake_{name}"]["dimensions"]["ConsumerName"] == "lake"
        assert alarms[f"orders_lake_{name}"]["alarm_actions"] == [topic]
    lag = alarms["orders_lake_lag"]
    assert (lag["threshold"], lag["treat_missing_data"]) == (90_000, "breaching")
    assert "orders_lake_lag.arn" in stack["resource"]["aws_cloudwatch_dashboard"]["applications"]["dashboard_body"]
    silent = synth(applications=shared(continuous=False))["resource"]["aws_cloudwatch_metric_alarm"]
    assert silent["orders_lake_lag"]["treat_missing_data"] == "notBreaching", "its owner says that it runs now and then"


def test_only_the_consumers_of_an_adopted_stream_are_watched_for_another_account(synth: Synth) -> None:
    stack = synth(streams={"orders": {"existing_arn": ADOPTED}}, applications=shared())
    alarms = set(stack["resource"]["aws_cloudwatch_metric_alarm"])
    assert alarms == {"orders_lake_lag", "orders_lake_rate", "orders_lake_retention"}


def test_a_job_that_runs_now_and_then_may_be_silent(synth: Synth) -> None:
    alarms = synth(applications=apps(polling=True))["resource"]["aws_cloudwatch_metric_alarm"]
    assert alarms["orders_lake_lag"]["treat_missing_data"] == "notBreaching", "while it polls, it has no subscription"
    alarms = synth(applications=apps(continuous=False))["resource"]["aws_cloudwatch_metric_alarm"]
    assert alarms["orders_lake_lag"]["treat_missing_data"] == "notBreaching"


def test_without_a_topic_no_alarm_is_declared(synth: Synth) -> None:
    for alarms in ({}, {"dashboard": False}):
        stack = synth(alarms=alarms, emr={}, applications=apps(polling=True))
        assert "aws_cloudwatch_metric_alarm" not in stack["resource"]
    with_topic = synth(emr={}, applications=apps(polling=True))["resource"]["aws_cloudwatch_metric_alarm"]
    assert all(each["alarm_actions"] for each in with_topic.values())


def test_failing_writes_show_a_disabled_key(synth: Synth) -> None:
    alarm = synth()["resource"]["aws_cloudwatch_metric_alarm"]["orders_writes_failing"]
    one, many, failed = alarm["metric_query"]
    names = [
        each["metric"][0]["metric_name"] if isinstance(each["metric"], list) else each["metric"]["metric_name"]
        for each in (one, many)
    ]
    assert names == ["PutRecord.Success", "PutRecords.Success"]
    assert failed["expression"] == "IF(FILL(one, 1) < 0.5 OR FILL(many, 1) < 0.5, 1, 0)"
    assert (alarm["threshold"], alarm["evaluation_periods"], alarm["datapoints_to_alarm"]) == (0, 3, 2)


def test_faults_of_dynamodb_are_watched(synth: Synth) -> None:
    alarm = synth()["resource"]["aws_cloudwatch_metric_alarm"]["lake_leases_failing"]
    *metrics, total = alarm["metric_query"]
    found = [each["metric"][0] if isinstance(each["metric"], list) else each["metric"] for each in metrics]
    assert {each["metric_name"] for each in found} == {"SystemErrors"}
    assert {each["dimensions"]["Operation"] for each in found} == {"DeleteItem", "PutItem", "Scan", "UpdateItem"}
    assert total["expression"] == " + ".join(f"FILL({each['id']}, 0)" for each in metrics)


def test_almost_all_capacity_of_emr_is_watched(synth: Synth) -> None:
    alarm = synth(emr={"serverless": {"maximum_vcpu": 40}})["resource"]["aws_cloudwatch_metric_alarm"]["jobs_capacity"]
    (query,) = alarm["metric_query"]
    assert query["expression"].startswith('SELECT SUM(CPUAllocated) FROM "AWS/EMRServerless" WHERE ApplicationId = ')
    # One sum a minute, because Metrics Insights adds all samples of a period.
    assert (query["period"], alarm["threshold"]) == (60, 36)
    assert (alarm["datapoints_to_alarm"], alarm["evaluation_periods"]) == (8, 15)


def test_archives_and_programs_expire(synth: Synth) -> None:
    for emr, days in (({}, 730), ({"artifact_days": 90}, 90)):
        (rules,) = [
            each["rule"] for each in synth(emr=emr)["resource"]["aws_s3_bucket_lifecycle_configuration"].values()
        ]
        expiring = {each["id"]: each["expiration"] for each in rules if "expiration" in each}
        for name in ("environments", "programs"):
            (expiration,) = [expiring[name]] if isinstance(expiring[name], dict) else expiring[name]
            assert expiration == {"days": days}


def test_no_two_alarms_have_one_name(synth: Synth) -> None:
    stack = synth(
        streams={"a-b": {}, "b": {}, "lake": {}},
        applications={"x": {"streams": ["a-b"]}, "x-a": {"streams": ["b"]}, "lake": {"streams": ["lake"]}},
    )
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"].values()
    assert len({alarm["alarm_name"] for alarm in alarms}) == len(alarms) == 3 * 7


def test_an_application_that_may_poll_is_watched_by_the_metrics_of_its_streams(synth: Synth) -> None:
    alarms = synth(
        streams={"orders": {}, "clicks": {}},
        applications=apps(polling=True, lag_threshold_seconds=90)
        | {"pond": {"streams": ["orders", "clicks"]}, "well": {"streams": ["orders"], "polling": True}},
    )["resource"]["aws_cloudwatch_metric_alarm"]
    age = alarms["orders_lake_age"]
    assert (age["metric_name"], age["threshold"]) == ("GetRecords.IteratorAgeMilliseconds", 90_000)
    assert age["dimensions"] == {"StreamName": "${aws_kinesis_stream.orders.name}"}, "no consumer has that metric"
    assert age["treat_missing_data"] == "notBreaching", "it may read through its consumer instead"
    assert alarms["orders_reads"]["metric_name"] == "ReadProvisionedThroughputExceeded"
    assert alarms["orders_retention"]["metric_name"] == "GetRecords.IteratorAgeMilliseconds"
    assert "orders_well_age" in alarms
    assert not {"orders_pond_age", "clicks_pond_age", "clicks_reads", "clicks_retention"} & set(alarms)
    assert len({each["alarm_name"] for each in alarms.values()}) == len(alarms)


def test_half_of_the_retention_is_the_last_call(synth: Synth) -> None:
    def threshold(stream: dict[str, Any]) -> float:
        alarms = synth(streams={"orders": stream})["resource"]["aws_cloudwatch_metric_alarm"]
        alarm = alarms["orders_lake_retention"]
        assert alarm["metric_name"] == "SubscribeToShardEvent.MillisBehindLatest"
        assert alarm["dimensions"]["ConsumerName"] == "lake"
        return float(alarm["threshold"])

    hour = 3_600_000
    assert threshold({"retention_hours": 168}) == 84 * hour
    assert threshold({}) == 12 * hour
    assert threshold({"existing_arn": ADOPTED}) == 12 * hour, "it may be the shortest that there is"


def test_failed_runs_are_watched_where_the_environment_has_an_application_for_them(synth: Synth) -> None:
    topic = "arn:aws:sns:eu-west-1:111122223333:oncall"
    alarm = synth(emr={}, alarms={"sns_topic": topic})["resource"]["aws_cloudwatch_metric_alarm"]["jobs_failures"]
    (query,) = alarm["metric_query"]
    assert query["expression"] == (
        'SELECT SUM(FailedJobs) FROM "AWS/EMRServerless" '
        "WHERE ApplicationId = '${aws_emrserverless_application.jobs.id}'"
    )
    assert (query["return_data"], query["period"], alarm["threshold"]) == (True, 300, 0)
    assert alarm["alarm_actions"] == [topic]
    without = synth(emr={"serverless": None})["resource"]["aws_cloudwatch_metric_alarm"]
    assert "jobs_failures" not in without


def test_the_dashboard_shows_each_application_against_its_threshold(synth: Synth) -> None:
    stack = synth(applications=apps(lag_threshold_seconds=90) | {"pond": {"streams": ["orders"]}})
    body = stack["resource"]["aws_cloudwatch_dashboard"]["applications"]["dashboard_body"]
    for title in ("lake: milliseconds behind", "pond: milliseconds behind", "Is each application keeping up?"):
        assert title in body
    assert '\\"value\\" = 90000'.replace("\\", "") in body
    assert "aws_cloudwatch_metric_alarm.orders_lake_lag.arn" in body
    assert "aws_cloudwatch_dashboard" not in synth(alarms={"dashboard": False})["resource"]


# -- the stack around them


def test_state_is_in_s3_with_native_locks_and_the_provider_in_one_account(synth: Synth) -> None:
    stack = synth(state_region="eu-central-1", tags={"owner": "us"})
    assert stack["terraform"]["backend"] == {
        "s3": {
            "bucket": "state",
            "key": "kinesis-efo/test.tfstate",
            "region": "eu-central-1",
            "encrypt": True,
            "use_lockfile": True,
        }
    }
    (provider,) = stack["provider"]["aws"]
    assert provider["allowed_account_ids"] == ["111122223333"]
    assert provider["default_tags"] == [{"tags": {"environment": "test", "managed-by": "kinesis-efo", "owner": "us"}}]


def test_a_terraform_without_native_locks_is_refused(synth: Synth) -> None:
    assert synth()["terraform"]["required_version"] == ">= 1.10"


def test_outputs_say_where_things_are(synth: Synth) -> None:
    output = {
        name: each["value"] for name, each in synth(applications=apps(access={"kind": "emr-ec2"}))["output"].items()
    }
    assert output == {
        "stream_arns": {"orders": "${aws_kinesis_stream.orders.arn}"},
        "consumer_arns": {"orders/lake": "${aws_kinesis_stream_consumer.orders_lake.arn}"},
        "manifests": {"lake": "ssm://${aws_ssm_parameter.lake.name}"},
        "policy_arns": {"lake": "${aws_iam_policy.lake.arn}"},
        "role_arns": {"lake": "${aws_iam_role.lake.arn}"},
    }


def test_two_syntheses_are_the_same_to_the_byte(load: Load, tmp_path: Path) -> None:
    environment = load()
    texts = [
        next(synthesize([environment], tmp_path, outdir=tmp_path / name).glob("stacks/*/cdk.tf.json")).read_bytes()
        for name in ("one", "two")
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dev", "prod"])
def test_only_the_denial_has_all_resources(name: str, tmp_path: Path) -> None:
    out = synthesize(load_environments(DIRECTORY, [name]), DIRECTORY, outdir=tmp_path)
    stack = without_metadata(json.loads(next(out.glob("stacks/*/cdk.tf.json")).read_text(encoding="utf-8")))
    for document in stack["data"]["aws_iam_policy_document"].values():
        for statement in document["statement"]:
            wild = [action for action in statement["actions"] if "*" in action]
            assert not wild or statement["effect"] == "Deny"
            if "*" in statement.get("resources", []):
                assert statement["effect"] == "Deny"


def test_only_one_module_imports_cdktf() -> None:
    importing, root = set(), Path(infra.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(
                module.split(".")[0] in ("cdktf", "cdktf_cdktf_provider_aws", "constructs", "cdktn")
                for module in modules
            ):
                importing.add(str(path.relative_to(root)))
    assert importing == {"stacks/cdk.py"}


def test_a_removed_stream_is_retained_if_the_file_says_so(synth: Synth) -> None:
    left = {"lake": {"streams": ["clicks"]}}
    stack = synth(streams={"clicks": {}}, applications=left, retain=["orders"])
    kinds = ("aws_kinesis_stream", "aws_kms_key", "aws_kms_alias", "aws_kinesis_resource_policy")
    assert stack["removed"] == [{"from": f"{each}.orders", "lifecycle": {"destroy": False}} for each in kinds]
    assert "removed" not in synth(streams={"clicks": {}}, applications=left)
