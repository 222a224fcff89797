"""Manifests in S3: what the stack declares, who may read and write them, and what a file must not say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.settings.literals import literal_deployment, literal_manifest, literal_policy
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from kinesis_efo_infra import iam
from tests.support.iam import Statement, allowed

Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]
KEY = "arn:aws:kms:eu-west-1:111122223333:key/given"
IN_S3 = {"manifest_store": "s3", "emr": {}}
PIPELINE = {"repository": "acme/lake"}
ROLE = {"lake": {"streams": ["orders"], "access": {"kind": "emr-ec2"}}}
OURS = {"aws:ResourceTag/environment": "test", "aws:ResourceTag/managed-by": "kinesis-efo"}
VIA_S3 = {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}


def applying(environment: Environment, *kinds: str) -> list[Statement]:
    policies = permissions.policies(environment)
    found = [each for kind in kinds or set(policies) - {"boundary"} for each in policies[kind]]
    return list(json.loads(iam.policy_json(found))["Statement"])


def test_a_manifest_is_an_encrypted_object_in_the_bucket_of_artifacts(synth: Synth) -> None:
    stack = synth(**IN_S3, tags={f"tag-{n}": "x" for n in range(12)})
    (manifest,) = stack["resource"]["aws_s3_object"].values()
    assert "aws_dynamodb_table.lake.arn" in manifest.pop("content")
    assert manifest == {
        "bucket": "${aws_s3_bucket.artifacts.bucket}",
        "key": "kinesis-efo/test/lake",
        "content_type": "application/json",
        "server_side_encryption": "aws:kms",
        "kms_key_id": "${aws_kms_key.environment_key.arn}",
        "override_provider": {"default_tags": {"tags": {}}},
    }, "an object has ten tags at most, so those of the provider must not be on it"
    location = "s3://${aws_s3_bucket.artifacts.bucket}/${aws_s3_object.lake.key}"
    assert stack["output"]["manifests"]["value"] == {"lake": location}
    assert set(stack["resource"]["aws_ssm_parameter"]) == {"lake_job"}
    described = stack["resource"]["aws_ssm_parameter"]["lake_job"]["value"]
    assert "s3://kinesis-efo-test-111122223333/kinesis-efo/test/lake" in described


def test_a_bucket_may_be_given(synth: Synth) -> None:
    stack = synth(manifest_store="s3", manifest_bucket="manifests", applications=ROLE)
    assert stack["resource"]["aws_s3_object"]["lake"]["bucket"] == "manifests"
    assert "aws_s3_bucket" not in stack["resource"]
    statements = stack["data"]["aws_iam_policy_document"]["lake_reader"]["statement"]
    reader = {each["sid"]: each for each in statements}
    assert reader["LoadManifest"]["actions"] == ["s3:GetObject"]
    assert reader["LoadManifest"]["resources"] == ["arn:aws:s3:::manifests/kinesis-efo/test/lake"]
    assert reader["DecryptManifest"]["condition"][0]["values"] == ["s3.eu-west-1.amazonaws.com"]


def test_the_batch_policy_loads_the_same_manifest(synth: Synth) -> None:
    stack = synth(
        manifest_store="s3", manifest_bucket="manifests", applications={"lake": {"streams": ["orders"], "batch": True}}
    )
    batch = {each["sid"]: each for each in stack["data"]["aws_iam_policy_document"]["lake_batch"]["statement"]}
    assert batch["LoadManifest"]["resources"] == ["arn:aws:s3:::manifests/kinesis-efo/test/lake"]


@pytest.mark.parametrize(
    "where", [{"emr": {}}, {"manifest_bucket": "manifests"}, {"emr": {}, "manifest_bucket": "m-m"}]
)
def test_a_job_may_load_its_manifest_and_write_none(where: dict[str, Any], load: Load) -> None:
    environment = load(manifest_store="s3", applications=ROLE, pipeline=PIPELINE, **where)
    policy = json.loads(literal_policy(environment, "lake").json())["Statement"]
    boundary = json.loads(iam.policy_json(permissions.boundary(environment)))["Statement"]
    arn = Names(environment).manifest_arn("lake")
    assert arn.endswith("/kinesis-efo/test/lake")
    assert allowed(policy, "s3:GetObject", arn, {})
    assert allowed(boundary, "s3:GetObject", arn, {})
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert not allowed(policy, action, arn, {})
    assert not allowed(policy, "s3:GetObject", f"{arn}-2", {})
    if "manifest_bucket" in where:
        assert not allowed(boundary, "s3:PutObject", arn, {})
        assert not allowed(boundary, "s3:GetObject", arn.replace("/test/", "/prod/"), {})


@pytest.mark.parametrize("key", ["own", KEY])
def test_the_pipeline_writes_manifests_and_nothing_beside(key: str, load: Load) -> None:
    environment = load(manifest_store="s3", manifest_bucket="manifests", pipeline=PIPELINE, key=key)
    everything, plans = applying(environment), applying(environment, *permissions.PLANNING)
    bucket, ours = "arn:aws:s3:::manifests", "arn:aws:s3:::manifests/kinesis-efo/test/lake"
    encrypts, tags = (KEY, {}) if key == KEY else (KEY.replace("given", "own"), OURS)
    for action in ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"):
        assert allowed(everything, action, ours, {})
        assert not allowed(plans, action, ours, {})
        for other in (f"{bucket}/kinesis-efo/prod/lake", f"{bucket}/x", "arn:aws:s3:::other/kinesis-efo/test/lake"):
            assert not allowed(everything, action, other, {})
    assert allowed(plans, "s3:GetObject", ours, {})
    assert not allowed(plans, "s3:GetObject", f"{bucket}/x", {})
    for action in ("s3:ListBucket", "s3:ListBucketVersions"):
        assert allowed(everything, action, bucket, {"s3:prefix": "kinesis-efo/test/lake"})
        assert not allowed(everything, action, bucket, {"s3:prefix": ""})
    assert allowed(everything, "kms:GenerateDataKey", encrypts, {**VIA_S3, **tags})
    assert allowed(plans, "kms:Decrypt", encrypts, {**VIA_S3, **tags})
    assert not allowed(plans, "kms:GenerateDataKey", encrypts, {**VIA_S3, **tags})
    assert not allowed(everything, "kms:GenerateDataKey", encrypts, tags)
    assert not allowed(everything, "s3:PutBucketPolicy", bucket, {})


@pytest.mark.parametrize("key", ["own", KEY])
def test_the_pipeline_uploads_programs_with_the_environments_key(key: str, load: Load) -> None:
    runs = applying(load(emr={}, pipeline=PIPELINE, key=key), "run-jobs")
    arn, tags = (KEY, {}) if key == KEY else (KEY.replace("given", "own"), OURS)
    assert allowed(runs, "kms:GenerateDataKey", arn, {**VIA_S3, **tags})
    assert not allowed(runs, "kms:GenerateDataKey", arn, tags)
    assert not allowed(runs, "kms:GenerateDataKey", f"{arn}-2", VIA_S3)


def test_projects_that_share_a_bucket_of_manifests_do_not_reach_each_others(load: Load) -> None:
    environment = load(project="lake", manifest_store="s3", manifest_bucket="manifests", pipeline=PIPELINE)
    everything, ours = applying(environment), Names(environment).manifest_arn("lake")
    assert ours == "arn:aws:s3:::manifests/lake/test/lake"
    assert allowed(everything, "s3:PutObject", ours, {})
    assert not allowed(everything, "s3:PutObject", "arn:aws:s3:::manifests/kinesis-efo/test/lake", {})


def test_with_parameters_the_pipeline_has_no_bucket_of_manifests(load: Load) -> None:
    assert "s3:PutObject arn:aws:s3" not in json.dumps(applying(load(pipeline=PIPELINE), "change-access"))
    assert not any(each["Sid"].endswith("ManifestObjects") for each in applying(load(pipeline=PIPELINE)))


def test_a_manifest_in_s3_may_be_large(load: Load) -> None:
    streams = {f"{'a' * 55}-{n}": {"name": f"s{n}", "key": "aws-managed"} for n in range(36)}
    many = {"streams": streams, "applications": {"lake": {"streams": list(streams)}}}
    with pytest.raises(
        SettingsError, match=r"its manifest must fit the advanced .*; say manifest_store: s3; got '\d+ by"
    ):
        load(**many, manifest_tier="advanced")
    environment = load(**many, manifest_store="s3", manifest_bucket="manifests")
    assert len(literal_manifest(environment, "lake")) > 8192


def test_jobs_are_described_with_the_location_of_their_manifest(load: Load) -> None:
    described = json.loads(literal_deployment(load(**IN_S3), "lake"))
    assert described["manifest"] == "s3://kinesis-efo-test-111122223333/kinesis-efo/test/lake"
    assert json.loads(literal_deployment(load(emr={}), "lake"))["manifest"] == "ssm:///kinesis-efo/test/lake"
