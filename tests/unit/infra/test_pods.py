"""Roles for pods through EKS Pod Identity: who may assume them, what is associated, and what the pipeline may associate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.settings.load import load_environments
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.settings.pods import without_associations
from infra.stacks import permissions
from kinesis_efo_infra import ArgumentError, PodIdentity, iam
from tests.support.iam import Statement, allowed
from tests.support.missing import terraform

Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]
ACCOUNT = "111122223333"
CLUSTER = f"arn:aws:eks:eu-west-1:{ACCOUNT}:cluster/analytics"
ASSOCIATION = f"arn:aws:eks:eu-west-1:{ACCOUNT}:podidentityassociation/analytics/a-1"
OURS = {"environment": "test", "managed-by": "kinesis-efo"}
POD = {"kind": "eks", "cluster": "analytics", "namespace": "jobs", "service_account": "lake"}
EMR = {"kind": "eks", "cluster": "analytics", "namespace": "jobs"}


def apps(access: dict[str, Any]) -> dict[str, Any]:
    return {"lake": {"streams": ["orders"], "access": access}}


def test_a_service_account_is_associated_with_a_role_that_trusts_it_alone(synth: Synth) -> None:
    stack = synth(applications=apps(POD))
    assert stack["resource"]["aws_eks_pod_identity_association"] == {
        "lake_pods": {
            "cluster_name": "analytics",
            "namespace": "jobs",
            "service_account": "lake",
            "role_arn": "${aws_iam_role.lake.arn}",
        }
    }
    (trust,) = stack["data"]["aws_iam_policy_document"]["lake_trust"]["statement"]
    assert trust["principals"] == [{"type": "Service", "identifiers": ["pods.eks.amazonaws.com"]}]
    assert trust["actions"] == ["sts:AssumeRole", "sts:TagSession"]
    assert {each["test"] for each in trust["condition"]} == {"StringEquals"}
    assert {each["variable"]: each["values"] for each in trust["condition"]} == {
        "aws:SourceAccount": [ACCOUNT],
        "aws:RequestTag/eks-cluster-arn": [CLUSTER],
        "aws:RequestTag/kubernetes-namespace": ["jobs"],
        "aws:RequestTag/kubernetes-service-account": ["lake"],
    }


@pytest.mark.parametrize("role_name", [None, "Lake_Runtime"])
def test_by_default_it_is_for_the_service_accounts_that_emr_on_eks_makes(role_name: str | None, synth: Synth) -> None:
    stack = synth(applications=apps(EMR | ({"role_name": role_name} if role_name else {})))
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


def test_with_an_oidc_provider_nothing_is_associated(synth: Synth) -> None:
    provider = f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/AB12"
    access = {"kind": "eks", "oidc_provider_arn": provider, "namespace": "jobs", "service_account": "lake"}
    assert "aws_eks_pod_identity_association" not in synth(applications=apps(access))["resource"]


def test_a_moved_application_takes_its_associations_with_it(synth: Synth) -> None:
    terraform()
    moved = {"archive": {"streams": ["orders"], "name": "lake", "moved_from": "lake", "access": POD}}
    pairs = {each["from"]: each["to"] for each in synth(applications=moved)["moved"]}
    kind = "aws_eks_pod_identity_association"
    assert pairs[f"{kind}.lake_pods"] == f"{kind}.archive_pods"


def test_names_of_emr_on_eks_are_made_of_a_role_whose_name_is_known() -> None:
    with pytest.raises(ArgumentError, match=r"PodIdentity of 'c': role_name must be a text, .*; got '\$\{x\}': write"):
        PodIdentity("c", "n").service_accounts(ACCOUNT, "${x}")
    assert PodIdentity("c", "n", "s").service_accounts(ACCOUNT, "${x}") == {"pods": "s"}
    with pytest.raises(ArgumentError, match=r"service_account must be a name; got 'emr-\*': an association"):
        PodIdentity("c", "n", "emr-*")


def role(environment: Environment, *kinds: str) -> list[Statement]:
    policies = permissions.policies(environment)
    found = [each for kind in kinds or set(policies) - {"boundary"} for each in policies[kind]]
    return list(json.loads(iam.policy_json(found))["Statement"])


def tags(kind: str, **others: str) -> dict[str, str]:
    return {f"aws:{kind}/{name}": value for name, value in {**OURS, **others}.items()}


@pytest.fixture
def environment(load: Load) -> Environment:
    return load(applications=apps(POD), pipeline={"repository": "acme/lake"})


CHANGES = ("DeletePodIdentityAssociation", "UpdatePodIdentityAssociation", "UntagResource")


def test_the_pipeline_associates_its_own_roles_in_the_clusters_that_the_file_names(environment: Environment) -> None:
    applies, plans = role(environment), role(environment, *permissions.PLANNING)
    create = "eks:CreatePodIdentityAssociation"
    assert allowed(applies, create, CLUSTER, tags("RequestTag"))
    assert not allowed(applies, create, CLUSTER, {}), "without tags, it would be nobody's"
    assert not allowed(applies, create, CLUSTER.replace("analytics", "other"), tags("RequestTag"))
    assert allowed(applies, "eks:TagResource", ASSOCIATION, tags("RequestTag"))
    assert all(allowed(applies, f"eks:{each}", ASSOCIATION, tags("ResourceTag")) for each in CHANGES)
    assert allowed(plans, "eks:DescribePodIdentityAssociation", ASSOCIATION, {})
    assert not allowed(plans, create, CLUSTER, tags("RequestTag"))
    to_pods = {"iam:PassedToService": "pods.eks.amazonaws.com"}
    assert allowed(applies, "iam:PassRole", Names(environment).role_arn("lake"), to_pods)
    assert not allowed(applies, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", to_pods)


@pytest.mark.parametrize(
    "foreign",
    [{}, {"environment": "prod", "managed-by": "kinesis-efo"}, {"environment": "test"}, {"managed-by": "kinesis-efo"}],
    ids=str,
)
def test_associations_of_others_cannot_be_changed_nor_taken_over(
    foreign: dict[str, str], environment: Environment
) -> None:
    applies = role(environment)
    context = {f"aws:ResourceTag/{name}": value for name, value in foreign.items()}
    for action in CHANGES:
        assert not allowed(applies, f"eks:{action}", ASSOCIATION, context)
    # What has no owner's tags yet counts as new, as with whatever else is tagged when it is created.
    assert allowed(applies, "eks:TagResource", ASSOCIATION, {**context, **tags("RequestTag")}) == (not foreign)


def test_without_pod_identity_the_pipeline_may_do_nothing_in_eks(load: Load) -> None:
    statements = role(load(pipeline={"repository": "acme/lake"}))
    assert "eks:" not in json.dumps(statements).replace("elasticmapreduce", "")
    assert "pods.eks" not in json.dumps(statements)


def test_two_environments_do_not_associate_one_service_account(write: Callable[..., Path], tmp_path: Path) -> None:
    write(environment="one", applications=apps(POD), state_bucket="s-1")
    write(environment="two", applications=apps(POD), state_bucket="s-2")
    with pytest.raises(
        SettingsError, match=r"two.yaml applications.lake: is declared by one.yaml .*analytics/jobs/lake"
    ):
        load_environments(tmp_path)
    write(environment="two", applications=apps(EMR), state_bucket="s-2")
    write(environment="one", applications=apps(EMR), state_bucket="s-1")
    assert len(load_environments(tmp_path)) == 2, "those of EMR on EKS are named after the role"


def test_local_aws_has_no_clusters_to_associate_roles_in(load: Load, synth: Synth) -> None:
    local = without_associations(load(applications=apps(POD)))
    assert "aws_eks_pod_identity_association" not in synth(local)["resource"]
