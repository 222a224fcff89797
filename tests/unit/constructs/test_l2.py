"""The constructs behave as L2 constructs of the CDK do, and an upgrade changes nothing that is deployed."""

import json
from pathlib import Path
from typing import Any

import pytest

import kinesis_efo_infra as efo
from kinesis_efo_infra.cdk import IamRole, TerraformResource, TerraformStack
from tests.unit.constructs.conftest import Synth
from tests.unit.constructs.test_arguments import CONSUMER, ORDERS

TAGS = {"team": "shop"}


def test_tags_and_default_children_reach_the_resources(stack: TerraformStack, synth: Synth) -> None:
    orders = efo.Stream(stack, "orders", name="orders", tags=TAGS, encryption_key="aws-managed")
    streams = {"orders": orders}
    lake = efo.StreamingApplication(
        stack, "lake", name="lake", streams=streams, trust=efo.EmrServerless(), batch=True, tags=TAGS
    )
    lake.consumers["orders"].alarms(tags={"severity": "high"})
    efo.StreamConsumer.from_arn(stack, "given", CONSUMER, stream=orders).alarms(application="theirs", tags=TAGS)
    policy = efo.policy_for(stack)
    access = efo.ReaderAccess(stack, "access", application="glue", policy=policy, trust=efo.Glue(), tags=TAGS)
    job = efo.StreamingGlueJob(stack, "job", name="lake", access=access, script="s3://acme-jobs/lake.py", tags=TAGS)
    table = efo.LeaseTable(stack, "table", name="leases", tags=TAGS)
    consumer = efo.StreamConsumer(stack, "c", stream=orders, name="c", tags=TAGS)
    in_s3 = efo.Manifest(stack, "m", application="m", table=table, streams=streams, bucket="manifests", tags=TAGS)
    parts = [orders, consumer, table, lake.manifest, in_s3, access, lake.batch_access, lake.dashboard(), job]
    children = [each.node.default_child for each in parts if each]
    assert " ".join(each.terraform_resource_type for each in children if isinstance(each, TerraformResource)) == (
        "aws_kinesis_stream aws_kinesis_stream_consumer aws_dynamodb_table aws_ssm_parameter aws_s3_object "
        "aws_iam_policy aws_iam_policy aws_cloudwatch_dashboard aws_glue_job"
    )
    declared = synth()
    found = {kind: [each.get("tags") for each in entries.values()] for kind, entries in declared["resource"].items()}
    bare = {kind for kind, each in found.items() if each == [None] * len(each)}
    assert bare == {"aws_cloudwatch_dashboard", "aws_kms_alias", "aws_iam_role_policy_attachment"}
    tagged = [each for kind in found.keys() - bare for each in found[kind]]
    assert (tagged.count(TAGS), tagged.count({**TAGS, "severity": "high"})) == (len(tagged) - 3, 3)


@pytest.mark.parametrize(("former", "now"), [(True, "ALLOWED"), (False, "NEVER"), ("only", "ONLY")])
def test_former_values_of_polling_warn(former: Any, now: str, stack: TerraformStack) -> None:
    streams = {"orders": efo.Stream.from_arn(stack, "orders", ORDERS)}
    with pytest.warns(DeprecationWarning, match=rf"'lake': polling={former!r} is Polling.{now} now") as caught:
        lake = efo.StreamingApplication(stack, "lake", name="lake", streams=streams, polling=former)
    assert caught[0].filename == __file__, "it is the caller's line"
    assert bool(lake.consumers) == (now != "ONLY")


def test_released_stack_is_synthesized_unchanged(stack: TerraformStack, synth: Synth) -> None:
    """What the version before L2 constructs declared is in `released.txt`."""
    orders = efo.Stream(stack, "orders", name="orders", shards=4, tags=TAGS, protected=True)
    theirs = efo.Stream.from_arn(stack, "theirs", ORDERS)
    given = efo.StreamConsumer.from_arn(stack, "given", CONSUMER, stream=theirs)
    lake = efo.StreamingApplication(
        stack,
        "lake",
        name="lake",
        streams={"orders": orders, "theirs": given},
        writes=[orders],
        batch=True,
        output="s3://lake/raw",
        checkpoint="s3://lake/state",
        trust=efo.EmrServerless(),
        protected=True,
        place=efo.Place("lake", before="pond"),
    )
    lake.dashboard(alarms=[each.alarms() for each in lake.consumers.values()], lag_threshold_seconds=60)
    table = efo.LeaseTable(stack, "table", name="leases", protected=True)
    manifest = efo.Manifest(stack, "m", application="m", table=table, streams={"o": orders}, bucket="manifests")
    for grantee in ("job.a", IamRole(stack, "job", assume_role_policy="{}").name):
        for polling in (False, True):
            orders.grant_read(grantee, lake.consumers["orders"], polling=polling)
        for grant in (orders.grant_poll, orders.grant_write, table.grant_read_write, manifest.grant_read):
            grant(grantee)
    for trust in (efo.EmrOnEc2(), efo.PodIdentity("analytics", "lake"), efo.Glue()):
        policy, name = efo.policy_for(stack), type(trust).__name__
        orders.grant_batch(policy)
        access = efo.ReaderAccess(stack, name, application=name, policy=policy, trust=trust)
    efo.StreamingGlueJob(stack, "glue", name="lake", access=access, script="s3://acme-jobs/lake.py")
    declared = synth()
    lines = [
        f"{section}.{kind}.{name} {json.dumps(each)}"
        for section in ("data", "resource")
        for kind, entries in declared[section].items()
        for name, each in entries.items()
    ]
    assert lines == Path(__file__).with_name("released.txt").read_text(encoding="utf-8").splitlines()
