"""Roles for pods through EKS Pod Identity: who may assume them, what is associated, and what the pipeline may associate."""

from __future__ import annotations

import json

import pytest

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.settings.pods import without_associations
from infra.stacks import permissions
from kinesis_efo_infra import ArgumentError, PodIdentity
from tests.support.missing import terraform
from tests.unit.infra.conftest import Load, Synth, attempt, policy, tags

ACCOUNT = "111122223333"
CLUSTER = f"arn:aws:eks:eu-west-1:{ACCOUNT}:cluster/analytics"
EMR = "applications.lake.access: {kind: eks, cluster: analytics, namespace: jobs}"
POD = f"{EMR}, applications.lake.access.service_account: lake"


@pytest.mark.parametrize("role_name", [None, "Lake_Runtime"])
def test_service_accounts_of_emr_on_eks_are_the_default(role_name: str | None, synth: Synth) -> None:
    stack = synth(f"{EMR}, applications.lake.access.role_name: {role_name}" if role_name else EMR)
    associated = stack["resource"]["aws_eks_pod_identity_association"]
    assert set(associated) == {"lake_client", "lake_driver", "lake_executor"}
    found = {each["service_account"] for each in associated.values()}
    for account in found:
        digits = account.rpartition("-")[2]
        length = len(role_name or "kinesis-efo-test-lake")
        assert int(digits, 36).to_bytes(length, "big").decode() == (role_name or "kinesis-efo-test-lake")
        assert account.startswith("emr-containers-sa-spark-")
        assert f"-{ACCOUNT}-" in account
        assert len(account) <= 253, "the most that Kubernetes takes"
    (trust,) = stack["data"]["aws_iam_policy_document"]["lake_trust"]["statement"]
    assert set(trust["condition"][-1]["values"]) == found


def test_moved_application_moves_its_associations(synth: Synth) -> None:
    terraform()
    archive = f"applications: {{archive: {{streams: [orders], name: lake, moved_from: lake}}}}, {POD}"
    moved = synth(archive.replace("lake.access", "archive.access"))["moved"]
    kind = "aws_eks_pod_identity_association"
    assert {each["from"]: each["to"] for each in moved}[f"{kind}.lake_pods"] == f"{kind}.archive_pods"


def test_emr_on_eks_needs_a_known_role_name() -> None:
    with pytest.raises(ArgumentError, match=r"PodIdentity of 'c': role_name must be a text, .*; got '\$\{x\}': write"):
        PodIdentity("c", "n").service_accounts(ACCOUNT, "${x}")
    assert PodIdentity("c", "n", "s").service_accounts(ACCOUNT, "${x}") == {"pods": "s"}
    with pytest.raises(ArgumentError, match=r"service_account must be a name; got 'emr-\*': an association"):
        PodIdentity("c", "n", "emr-*")


@pytest.fixture
def environment(load: Load) -> Environment:
    return load(f"{POD}, PIPELINE")


CHANGES = "eks:DeletePodIdentityAssociation,eks:UpdatePodIdentityAssociation,eks:UntagResource"


def test_pipeline_associates_its_roles_in_named_clusters(environment: Environment) -> None:
    contexts = {
        "new": tags("Request"),
        "ours": tags("Resource"),
        "pods": {"iam:PassedToService": "pods.eks.amazonaws.com"},
    }
    # Without tags, an association would be nobody's.
    applies = f"""
+ eks:CreatePodIdentityAssociation cluster/analytics | new
- eks:CreatePodIdentityAssociation cluster/analytics
- eks:CreatePodIdentityAssociation cluster/other | new
+ eks:TagResource podidentityassociation/analytics/a-1 | new
+ {CHANGES} podidentityassociation/analytics/a-1 | ours
+ iam:PassRole {Names(environment).role_arn("lake")} | pods
- iam:PassRole role/admin | pods
"""
    attempt(policy(environment), applies, **contexts)
    plans = """
+ eks:DescribePodIdentityAssociation podidentityassociation/analytics/a-1
- eks:CreatePodIdentityAssociation cluster/analytics | new
"""
    attempt(policy(environment, *permissions.PLANNING), plans, **contexts)


@pytest.mark.parametrize(
    "foreign",
    [{}, {"environment": "prod", "managed-by": "kinesis-efo"}, {"environment": "test"}, {"managed-by": "kinesis-efo"}],
    ids=str,
)
def test_foreign_associations_cannot_be_taken_over(foreign: dict[str, str], environment: Environment) -> None:
    theirs = {f"aws:ResourceTag/{name}": value for name, value in foreign.items()}
    # What has no owner's tags yet counts as new, as with whatever else is tagged when it is created.
    table = f"""
- {CHANGES} podidentityassociation/analytics/a-1 | theirs
{"-" if foreign else "+"} eks:TagResource podidentityassociation/analytics/a-1 | theirs + new
"""
    attempt(policy(environment), table, theirs=theirs, new=tags("Request"))


def test_without_pods_the_pipeline_may_nothing_in_eks(load: Load) -> None:
    statements = policy(load("PIPELINE"))
    assert "eks:" not in json.dumps(statements).replace("elasticmapreduce", "")
    assert "pods.eks" not in json.dumps(statements)


def test_local_aws_gets_no_associations(load: Load, synth: Synth) -> None:
    local = without_associations(load(POD))
    assert "aws_eks_pod_identity_association" not in synth(local)["resource"]
