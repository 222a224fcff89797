"""Manifests in S3: who may read and write them, and how large they may be."""

from __future__ import annotations

import json

import pytest

from infra.errors import SettingsError
from infra.settings.literals import literal_manifest, literal_policy
from infra.settings.names import Names
from infra.stacks import permissions
from tests.unit.infra.conftest import Load, attempt, policy, tags

IN_S3 = "manifest_store: s3, manifest_bucket: manifests, PIPELINE"
GIVEN = "arn:aws:kms:eu-west-1:111122223333:key/given"
CONTEXTS = {"s3": {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}, "ours": tags("Resource")}


@pytest.mark.parametrize("bucket", ["emr: {}", "manifest_bucket: manifests", "emr: {}, manifest_bucket: m-m"])
def test_job_loads_its_manifest_and_writes_none(bucket: str, load: Load) -> None:
    environment = load(f"manifest_store: s3, PIPELINE, {bucket}, applications.lake.access: EC2")
    arn = Names(environment).manifest_arn("lake")
    assert arn.endswith("/kinesis-efo/test/lake")
    own = f"+ s3:GetObject {arn}\n- s3:PutObject,s3:DeleteObject {arn}\n- s3:GetObject {arn}-2"
    attempt(json.loads(literal_policy(environment, "lake").json())["Statement"], own)
    bounded = f"+ s3:GetObject {arn}\n"
    if "manifest_bucket" in bucket:
        bounded += f"- s3:PutObject {arn}\n- s3:GetObject {arn.replace('/test/', '/prod/')}"
    attempt(policy(environment, "boundary"), bounded)


@pytest.mark.parametrize(
    ("key", "arn", "s3", "ours"), [("own", "key/own", "ours + s3", "ours"), (GIVEN, GIVEN, "s3", "")]
)
def test_pipeline_writes_manifests_and_nothing_else(key: str, arn: str, s3: str, ours: str, load: Load) -> None:
    environment = load(f"{IN_S3}, key: '{key}'")
    change = "s3:PutObject,s3:DeleteObject,s3:DeleteObjectVersion"
    contexts = {**CONTEXTS, "lake": {"s3:prefix": "kinesis-efo/test/lake"}, "all": {"s3:prefix": ""}}
    applies = f"""
+ {change} manifests/kinesis-efo/test/lake
- {change} manifests/kinesis-efo/prod/lake
- {change} manifests/x
- {change} other/kinesis-efo/test/lake
+ s3:ListBucket,s3:ListBucketVersions manifests | lake
- s3:ListBucket,s3:ListBucketVersions manifests | all
+ kms:GenerateDataKey {arn} | {s3}
- kms:GenerateDataKey {arn} | {ours}
- s3:PutBucketPolicy manifests
"""
    attempt(policy(environment), applies, **contexts)
    plans = f"""
- {change} manifests/kinesis-efo/test/lake
+ s3:GetObject manifests/kinesis-efo/test/lake
- s3:GetObject manifests/x
+ kms:Decrypt {arn} | {s3}
- kms:GenerateDataKey {arn} | {s3}
"""
    attempt(policy(environment, *permissions.PLANNING), plans, **contexts)
    uploads = f"""
+ kms:GenerateDataKey {arn} | {s3}
- kms:GenerateDataKey {arn} | {ours}
- kms:GenerateDataKey {arn}-2 | s3
"""
    attempt(policy(load(f"emr: {{}}, PIPELINE, key: '{key}'"), "run-jobs"), uploads, **contexts)


def test_projects_do_not_reach_each_others_manifests(load: Load) -> None:
    environment = load(f"{IN_S3}, project: lake")
    assert Names(environment).manifest_arn("lake") == "arn:aws:s3:::manifests/lake/test/lake"
    table = "+ s3:PutObject manifests/lake/test/lake\n- s3:PutObject manifests/kinesis-efo/test/lake"
    attempt(policy(environment), table)


def test_pipeline_of_parameters_has_no_bucket_of_manifests(load: Load) -> None:
    assert "s3:PutObject arn:aws:s3" not in json.dumps(policy(load("PIPELINE"), "change-access"))
    assert not any(each["Sid"].endswith("ManifestObjects") for each in policy(load("PIPELINE")))


def test_manifest_in_s3_may_be_large(load: Load) -> None:
    streams = {f"{'a' * 55}-{n}": {"name": f"s{n}", "key": "aws-managed"} for n in range(36)}
    many = {"streams": streams, "applications": {"lake": {"streams": list(streams)}}}
    with pytest.raises(
        SettingsError, match=r"its manifest must fit the advanced .*; say manifest_store: s3; got '\d+ by"
    ):
        load(**many, manifest_tier="advanced")
    environment = load(**many, manifest_store="s3", manifest_bucket="manifests")
    assert len(literal_manifest(environment, "lake")) > 8192
