"""Grants of permissions: who can receive them, and the policies that a grant declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import Part, account_of, keep, policy_document, put, put_statements
from kinesis_efo_infra.cdk import (
    Construct,
    DataAwsIamPolicyDocument,
    DefaultTokenResolver,
    IamRole,
    IamRolePolicy,
    IConstruct,
    KinesisResourcePolicy,
    Op,
    Precondition,
    StringConcat,
    TerraformResource,
    TerraformStack,
    Tokenization,
)
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.iam import REGISTRATION, ArnPrincipal, Condition, Policy, ServicePrincipal, Statement
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import Account


class Grantable(Protocol):
    """A construct with a role to which permissions can be granted."""

    @property
    def grant_principal(self) -> IamRole:
        """The role that receives the permissions."""


Grantee = Policy | Grantable | IamRole | ArnPrincipal | ServicePrincipal | str
"""Who receives permissions: a `Policy`; a role (the construct, its name or its ARN); or a principal, through resource policies."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The result of granting permissions. If a permission cannot be granted, an `ArgumentError` is raised instead.

    Attributes:
        principal_statements: Statements added to the policy of the grantee.
        resource_statements: Statements added to resource policies.
        resources: The Terraform resources that contain these statements; empty if the grantee is a `Policy`.
    """

    principal_statements: Sequence[Statement] = ()
    resource_statements: Sequence[Statement] = ()
    resources: Sequence[TerraformResource] = ()

    def apply_before(self, *constructs: IConstruct) -> None:
        """Make Terraform apply the grant before it creates or changes these constructs."""
        names = [f"{each.terraform_resource_type}.{each.friendly_unique_id}" for each in self.resources]
        for each in (part for construct in constructs for part in construct.node.find_all()):
            if isinstance(each, TerraformResource):
                each.depends_on = [*(each.depends_on or ()), *names]


@dataclass(frozen=True, slots=True)
class _Declared:
    """A policy that is already declared, to which statements can still be added."""

    policy: Policy
    document: DataAwsIamPolicyDocument
    resource: TerraformResource

    def add(self, *statements: Statement) -> TerraformResource:
        for each in statements:
            self.policy.add(each)
        put_statements(self.document, self.policy.statements.values())
        return self.resource


class Resource(Part):
    """Base class of resources on which permissions can be granted."""

    _arn: str
    _shared: _Declared | None = None

    @property
    def arn(self) -> str:
        """ARN of the resource."""
        return self._arn

    def grant(self, grantee: Grantee, *actions: str) -> Grant:
        """Grant API actions on the resource. This does not include the use of its customer key.

        Raises:
            ArgumentError: No actions are given, one of them registers or deregisters consumers, or the grantee is invalid.
        """
        if not actions or set(actions) & set(REGISTRATION):
            raise ArgumentError(
                f"{self.node.path}, grant: actions must be API actions that do not register consumers; got {actions!r}: declare a "
                "StreamConsumer for that"
            )
        return grant(self, "grant", grantee, lambda to: to.add(Statement("Grant", actions, (self.arn,))))

    def _declare(self, resource: TerraformResource, place: Place | None) -> None:
        self.node.default_child = put(resource, place)
        # Read the ARN only after `put`: a reference contains the Terraform name that the resource has when the reference is created.
        self._arn = resource.arn  # type: ignore[attr-defined]
        _DECLARED.setdefault(self.node.root, {})[self._arn] = self


_DECLARED: WeakKeyDictionary[IConstruct, dict[str, Resource]] = WeakKeyDictionary()
"""The resources declared in each app, by ARN, to find the resource policy that a grant extends."""


class Shareable(Resource):
    """Base class of resources that can have a resource policy."""

    def add_to_resource_policy(self, statement: Statement) -> TerraformResource:
        """Add a statement to the resource policy, which is declared when the first statement is added.

        Raises:
            ArgumentError: The resource is declared elsewhere, where it may have a policy that this one would replace; or the statement
                has no principals.
        """
        if self.node.default_child is None or not statement.principals:
            raise ArgumentError(
                f"{self.node.path}: a resource policy must be of what is declared here, with principals in its statements; got "
                f"{statement!r}: have the owner of what exists elsewhere add it"
            )
        if self._shared is None:
            document = policy_document(self, "resource-policy-document", ())
            resource = KinesisResourcePolicy(self, "resource-policy", resource_arn=self.arn, policy=document.json)
            self._shared = _Declared(Policy(""), document, resource)
        return self._shared.add(statement)


_GIVEN: WeakKeyDictionary[Construct, dict[tuple[str, str], _Declared]] = WeakKeyDictionary()
"""Inline policies that each construct has declared, by permission and role, so that another grant extends the existing policy."""

_ACCOUNTS: WeakKeyDictionary[IConstruct, Account] = WeakKeyDictionary()
"""The account of each stack, created only once: each new reference is a different token, but equal statements must have equal tokens."""


def _account(scope: Construct) -> Account:
    account = account_of(scope)
    return _ACCOUNTS.setdefault(TerraformStack.of(scope), account) if checks.is_token(account.region) else account


def policy_for(scope: Construct) -> Policy:
    """Return an empty policy for the account and region of a stack, to be passed to the constructs' `grant_...` methods."""
    account = _account(scope)
    return Policy(account.region, account.dns_suffix)


def grant(scope: Construct, what: str, grantee: Grantee, add: Callable[[Policy], None]) -> Grant:
    """Grant permissions. Repeating a grant has no effect.

    Args:
        scope: The construct that grants; a role's inline policy is declared in it.
        what: Short name of the permissions, such as `read`, which becomes part of names.
        grantee: Who receives the permissions. A role's inline policy also denies registering and deregistering consumers. Roles of
            other accounts are added to resource policies instead.
        add: Function that adds the permissions to a policy.

    Raises:
        ArgumentError: The grantee is invalid, or needs a resource policy on a resource that is not declared in this app.
    """
    to: Any = getattr(grantee, "grant_principal", grantee)
    policy = Policy(to.region, to.dns_suffix) if isinstance(to, Policy) else policy_for(scope)
    add(policy)
    statements = tuple(policy.statements.values())
    if isinstance(to, Policy):
        for each in statements:
            to.add(each)
        return Grant(statements)
    owner, account_id = f"{scope.node.path}, grant to {what}", _account(scope).account_id
    arn = checks.ROLE_ARN.fullmatch(to) if isinstance(to, str) else None
    if arn and arn[1] != account_id and not checks.is_token(account_id):
        to = ArnPrincipal(arn[0])
    if isinstance(to, ArnPrincipal | ServicePrincipal):
        return _share(scope, owner, to, statements)
    role = arn[2] if arn else to if isinstance(to, str) else to.name
    remedy = "give a role, its name or its ARN, or an ArnPrincipal or a ServicePrincipal"
    checks.text(owner, "the role's name", role, checks.ROLE_NAME, remedy)
    # Derive ids from the Terraform expression, not from the token: a token's number changes if an earlier token is added or removed.
    resolver = DefaultTokenResolver(StringConcat())
    text = str(Tokenization.resolve(role, scope=scope, resolver=resolver, preparing=False))
    given = _GIVEN.setdefault(scope, {})
    if (what, text) not in given:
        given[what, text] = _inline(scope, what, role, text, policy)
    resource = given[what, text].add(*statements)
    if arn and checks.is_token(account_id):
        told = f"{owner}: {to} is a role of another account: call pin_account, so that resource policies name it."
        here = Precondition(condition=Op.eq(account_id, arn[1]), error_message=told)
        resource.lifecycle = keep(False, requiring=[here])
    return Grant(statements, resources=(resource,))


def _inline(scope: Construct, what: str, role: str, text: str, policy: Policy) -> _Declared:
    policy.deny_registration()
    name = f"{what}-{re.sub(r'[^a-zA-Z0-9_]+', '-', text).strip('-')}"
    document = policy_document(scope, f"{name}-document", policy.statements.values())
    # A policy name allows fewer characters than a construct id. Add part of the construct's address, so that another construct's grant
    # to the same role does not overwrite this policy.
    called = f"kinesis-efo-{re.sub(r'[^a-zA-Z0-9_.-]', '-', what)[:100]}-{scope.node.addr[-10:]}"
    return _Declared(policy, document, IamRolePolicy(scope, name, name=called, role=role, policy=document.json))


def _share(scope: Construct, owner: str, to: ArnPrincipal | ServicePrincipal, statements: Sequence[Statement]) -> Grant:
    """Add each statement to the resource policies of its resources. KMS keys that this app does not declare are skipped."""
    conditions: tuple[Condition, ...] = ()
    if isinstance(to, ArnPrincipal):
        checks.text(owner, "the principal", to.arn, checks.PRINCIPAL_ARN, "give the ARN of a role, user or account")
        principals = {"AWS": (to.arn,)}
    else:
        principals = {"Service": (to.service,)}
        # Prevent the confused deputy problem: the service may only act on behalf of this account.
        conditions = (Condition("StringEquals", "aws:SourceAccount", (_account(scope).account_id,)),)
    shared: list[tuple[Statement, TerraformResource]] = []
    for each in statements:
        for arn in each.resources:
            declared = _DECLARED.get(scope.node.root, {}).get(arn)
            if isinstance(declared, Shareable):
                allowed = replace(
                    each, resources=(arn,), principals=principals, conditions=each.conditions + conditions
                )
                shared.append((allowed, declared.add_to_resource_policy(allowed)))
            elif not each.actions[0].startswith("kms:"):
                raise ArgumentError(
                    f"{owner}: {arn} has no resource policy here, and needs one for {to!r}: grant to a role of this account, or "
                    "have its owner share it"
                )
    return Grant((), [each for each, _ in shared], list(dict.fromkeys(each for _, each in shared)))
