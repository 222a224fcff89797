"""Permissions of the pipeline's roles for EKS Pod Identity: associating the environment's roles with pods of clusters in its settings."""

from __future__ import annotations

from infra.settings.access import Eks
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.permissions.scope import tagged, tags_new
from kinesis_efo_infra.iam import Condition, Statement


def see_associations(environment: Environment) -> list[Statement]:
    """Allow reading Pod Identity associations. Source: Service Authorization Reference, Amazon Elastic Kubernetes Service."""
    if not _clusters(environment):
        return []
    return [Statement("ReadAssociations", ("eks:DescribePodIdentityAssociation",), _associations(environment))]


def change_associations(environment: Environment, roles: tuple[str, ...]) -> list[Statement]:
    """Allow creating Pod Identity associations for the environment's roles, and changing and deleting those with its tags.

    Args:
        environment: The environment.
        roles: ARN patterns of the environment's roles.
    """
    clusters = _clusters(environment)
    if not clusters:
        return []
    return [
        Statement(
            "CreateAssociations",
            ("eks:CreatePodIdentityAssociation",),
            tuple(Names(environment).arn("eks", f"cluster/{each}") for each in clusters),
            conditions=tagged("aws:RequestTag", environment),
        ),
        Statement(
            "TagNewAssociations", ("eks:TagResource",), _associations(environment), conditions=tags_new(environment)
        ),
        Statement(
            "WriteAssociations",
            (
                "eks:DeletePodIdentityAssociation",
                "eks:TagResource",
                "eks:UntagResource",
                "eks:UpdatePodIdentityAssociation",
            ),
            _associations(environment),
            conditions=tagged("aws:ResourceTag", environment),
        ),
        Statement(
            "PassRolesToPods",
            ("iam:PassRole",),
            roles,
            conditions=(Condition("StringEquals", "iam:PassedToService", ("pods.eks.amazonaws.com",)),),
        ),
    ]


def _clusters(environment: Environment) -> list[str]:
    accesses = [application.access for application in environment.applications.values()]
    return sorted({each.cluster for each in accesses if isinstance(each, Eks) and each.cluster})


def _associations(environment: Environment) -> tuple[str, ...]:
    return tuple(Names(environment).arn("eks", f"podidentityassociation/{each}/*") for each in _clusters(environment))
