"""Helpers shared by the constructs, for Terraform names, `lifecycle` blocks, the account and region, and policy documents."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from kinesis_efo_infra import checks
from kinesis_efo_infra.cdk import (
    Construct,
    DataAwsCallerIdentity,
    DataAwsIamPolicyDocument,
    DataAwsIamPolicyDocumentStatement,
    DataAwsIamPolicyDocumentStatementCondition,
    DataAwsIamPolicyDocumentStatementPrincipals,
    DataAwsPartition,
    DataAwsRegion,
    Fn,
    IValidation,
    Op,
    Precondition,
    TerraformProvider,
    TerraformResource,
    TerraformResourceLifecycle,
    TerraformStack,
    Token,
    implements,
)
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.iam import Statement
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import Account, principal

_Resource = TypeVar("_Resource", bound=TerraformResource)
_CONTEXT: Final = "kinesis-efo-infra:account"
_TAGS: Final = "kinesis-efo-infra:tags"


class Part(Construct):
    """Base class of the constructs. Adds `tags` to all resources of a construct, and lists the valid arguments if one is unknown."""

    def __init__(self, scope: Construct, id: str, tags: Mapping[str, str] | None = None) -> None:
        super().__init__(scope, id)
        if tags:
            self.node.set_context(_TAGS, {**(self.node.try_get_context(_TAGS) or {}), **tags})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _naming_keywords(cls.__init__)  # type: ignore[method-assign]
        for name in ("from_arn", "from_name"):
            if isinstance(given := vars(cls).get(name), staticmethod):
                setattr(cls, name, staticmethod(_naming_keywords(given.__func__)))


def _naming_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        for wrong in sorted(named.keys() - parameters.keys()):
            known = ", ".join(name for name in parameters if name != "self")
            owner = function.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{owner} has no argument {wrong!r}: its arguments are {known}")
        return function(*given, **named)

    return called


def put(resource: _Resource, place: Place | None) -> _Resource:
    """Set a resource's tags and Terraform name. If `place` contains a former name, also declare that the resource was renamed."""
    tags = resource.node.try_get_context(_TAGS)
    if tags and hasattr(type(resource), "tags"):
        resource.tags = tags  # type: ignore[attr-defined]
    if place is not None:
        resource.override_logical_id(place.now)
        if place.before != place.now:
            resource.move_from_id(f"{resource.terraform_resource_type}.{place.before}")
    return resource


def keep(
    protected: bool, *, ignoring: Sequence[str] = (), requiring: Sequence[Precondition] = ()
) -> TerraformResourceLifecycle | None:
    """Return the `lifecycle` block of a resource; None if it would be empty.

    Args:
        protected: Whether Terraform refuses to destroy the resource.
        ignoring: Attributes that something else changes; Terraform ignores these changes.
        requiring: Preconditions; Terraform rejects a plan that does not meet them.
    """
    if not (protected or ignoring or requiring):
        return None
    return TerraformResourceLifecycle(
        prevent_destroy=protected or None,
        ignore_changes=list(ignoring) or None,
        precondition=list(requiring) or None,
    )


@implements(IValidation)
class _Validation:
    def __init__(self, rule: Callable[[], Iterable[str]]) -> None:
        self._rule = rule

    def validate(self) -> list[str]:
        return list(self._rule())


def validate(scope: Construct, rule: Callable[[], Iterable[str]]) -> None:
    """Register a check that runs when the construct tree is complete; synthesis fails if it yields an error.

    Args:
        scope: The construct to check.
        rule: The check, which yields a message for each error.
    """
    scope.node.add_validation(_Validation(rule))


def region_of(scope: Construct) -> str | None:
    """Return the region set by `pin_account`, else that of the default provider; None if it is unknown until Terraform runs."""
    pinned = scope.node.try_get_context(_CONTEXT)
    if pinned:
        return str(pinned["region"])
    return next((each for each in _regions(TerraformStack.of(scope)) if not checks.is_token(each)), None)


def _regions(stack: TerraformStack) -> Iterator[str]:
    for each in stack.node.children:
        if isinstance(each, TerraformProvider) and each.alias is None and (region := getattr(each, "region", None)):
            yield str(region)


def pin_account(scope: Construct, account_id: str, region: str) -> None:
    """Set the account and region that a stack is deployed to, so that Terraform need not look them up.

    Call this before adding anything to the scope. Without it, the stack's default provider looks them up with the data sources
    `aws_caller_identity`, `aws_region` and `aws_partition`.

    Args:
        scope: A stack, or an app.
        account_id: Id of the account.
        region: Name of the region.

    Raises:
        ArgumentError: The scope already contains constructs.
    """
    if scope.node.children:
        there = ", ".join(each.node.id for each in scope.node.children)
        raise ArgumentError(
            f"pin_account: the scope must be empty; got one with {there}: call it first, right after the stack was made"
        )
    scope.node.set_context(_CONTEXT, {"account_id": account_id, "region": region})


def account_of(scope: Construct) -> Account:
    """Return the account and region set by `pin_account`, else references to those of the default provider, resolved by Terraform."""
    pinned = scope.node.try_get_context(_CONTEXT)
    if pinned:
        return Account.literal(pinned["account_id"], pinned["region"])
    stack = TerraformStack.of(scope)
    identity = stack.node.try_find_child("kinesis-efo-account") or DataAwsCallerIdentity(stack, "kinesis-efo-account")
    region = stack.node.try_find_child("kinesis-efo-region") or DataAwsRegion(stack, "kinesis-efo-region")
    partition = stack.node.try_find_child("kinesis-efo-partition") or DataAwsPartition(stack, "kinesis-efo-partition")
    assert isinstance(identity, DataAwsCallerIdentity)
    assert isinstance(region, DataAwsRegion)
    assert isinstance(partition, DataAwsPartition)
    china = Op.eq(partition.partition, "aws-cn")
    ec2 = Token.as_string(Fn.conditional(china, principal("ec2", "aws-cn"), principal("ec2", "aws")))
    return Account(identity.account_id, region.region, partition.partition, partition.dns_suffix, ec2)


def environment_of(scope: Construct, owner: str, environment: str | None) -> str:
    """Return the environment's name, for use in names and messages: `environment` if given, else the name of the stack."""
    chosen = environment or TerraformStack.of(scope).node.id
    remedy = "give `environment` a short name such as 'dev'; its default is the name of the stack"
    return checks.text(owner, "environment", chosen, checks.PART_OF_NAMES, remedy)


def policy_document(
    scope: Construct, id: str, statements: Iterable[Statement], *, name: str | None = None
) -> DataAwsIamPolicyDocument:
    """Create an `aws_iam_policy_document` data source. checkov can check it even if it contains references.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        statements: The statements of the document.
        name: Terraform name; default: derived by CDKTF.
    """
    document = DataAwsIamPolicyDocument(scope, id, statement=[_statement(each) for each in statements])
    if name:
        document.override_logical_id(name)
    return document


def put_statements(document: DataAwsIamPolicyDocument, statements: Iterable[Statement]) -> None:
    """Replace the statements of a policy document."""
    document.put_statement([_statement(each) for each in statements])


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
