"""What all constructs need: fixed Terraform names, protection, and IAM statements as Terraform data sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from infra.cdk import (
    Construct,
    DataAwsIamPolicyDocument,
    DataAwsIamPolicyDocumentStatement,
    DataAwsIamPolicyDocumentStatementCondition,
    DataAwsIamPolicyDocumentStatementPrincipals,
    TerraformResource,
    TerraformResourceLifecycle,
)
from infra.iam import Statement
from infra.names import Place
from infra.settings import Environment

_Resource = TypeVar("_Resource", bound=TerraformResource)


def put(resource: _Resource, place: Place) -> _Resource:
    """Give a resource the Terraform name of its place, and move it there from its earlier one.

    CDKTF would derive a name from the construct tree, so moving code would replace resources.
    """
    resource.override_logical_id(place.now)
    if place.before != place.now:
        resource.move_from_id(f"{resource.terraform_resource_type}.{place.before}")
    return resource


def keep(environment: Environment) -> TerraformResourceLifecycle | None:
    """Lifecycle of a resource that has an identity: it is not destroyed where the environment is protected."""
    return TerraformResourceLifecycle(prevent_destroy=True) if environment.protected else None


def policy_document(scope: Construct, name: str, statements: Iterable[Statement]) -> DataAwsIamPolicyDocument:
    """Statements as a Terraform data source, which evaluates references and which checkov understands.

    Args:
        scope: The parent construct.
        name: Its Terraform name.
        statements: Its statements.
    """
    document = DataAwsIamPolicyDocument(scope, f"{name}-document", statement=[_statement(each) for each in statements])
    document.override_logical_id(name)
    return document


def _statement(statement: Statement) -> DataAwsIamPolicyDocumentStatement:
    return DataAwsIamPolicyDocumentStatement(
        sid=statement.sid,
        effect=statement.effect,
        actions=list(statement.actions) or None,
        not_actions=list(statement.but_actions) or None,
        resources=list(statement.resources) or None,
        not_resources=list(statement.excepted) or None,
        principals=[
            DataAwsIamPolicyDocumentStatementPrincipals(type=kind, identifiers=list(identifiers))
            for kind, identifiers in statement.principals.items()
        ]
        or None,
        condition=[
            DataAwsIamPolicyDocumentStatementCondition(test=each.test, variable=each.variable, values=list(each.values))
            for each in statement.conditions
        ]
        or None,
    )
