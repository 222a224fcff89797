"""Grants permissions: to whom, and which policies a grant declares."""

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
        """Its role."""


Grantee = Policy | Grantable | IamRole | ArnPrincipal | ServicePrincipal | str
"""A policy that gathers grants; a role, its name or its ARN; or a principal that resource policies name."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The result of granting permissions. If a permission cannot be granted, an `ArgumentError` is raised instead.

    Attributes:
        principal_statements: Statements added to the policy of the grantee.
        resource_statements: Statements added to resource policies.
        resources: The Terraform resources that have them; none if a `Policy` gathers them.
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
    """A policy that is declared, to which statements may be added."""

    policy: Policy
    document: DataAwsIamPolicyDocument
    resource: TerraformResource

    def add(self, *statements: Statement) -> TerraformResource:
        for each in statements:
            self.policy.add(each)
        put_statements(self.document, self.policy.statements.values())
        return self.resource


class Resource(Part):
    """Base of resources on which permissions are granted."""

    _arn: str
    _shared: _Declared | None = None

    @property
    def arn(self) -> str:
        """Its ARN."""
        return self._arn

    def grant(self, grantee: Grantee, *actions: str) -> Grant:
        """Grant API actions on it; the use of its customer key is not included.

        Raises:
            ArgumentError: There are no actions, or one registers consumers, or the grantee is none.
        """
        if not actions or set(actions) & set(REGISTRATION):
            raise ArgumentError(
                f"{self.node.path}, grant: actions must be API actions that do not register consumers; got {actions!r}: declare a "
                "StreamConsumer for that"
            )
        return grant(self, "grant", grantee, lambda to: to.add(Statement("Grant", actions, (self.arn,))))

    def _declare(self, resource: TerraformResource, place: Place | None) -> None:
        self.node.default_child = put(resource, place)
        # Set this only now: a reference contains the name that the resource has when the reference is created.
        self._arn = resource.arn  # type: ignore[attr-defined]
        _DECLARED.setdefault(self.node.root, {})[self._arn] = self


_DECLARED: WeakKeyDictionary[IConstruct, dict[str, Resource]] = WeakKeyDictionary()
"""The resources that each app declares, by ARN."""


class Shareable(Resource):
    """Base of resources that may have a resource policy."""

    def add_to_resource_policy(self, statement: Statement) -> TerraformResource:
        """Add a statement to its resource policy, which is declared with the first one.

        Raises:
            ArgumentError: The resource is declared elsewhere, so this would replace its only policy; or the statement has no principals.
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
"""The policies that each construct has granted, by permission and role: a second grant extends the policy instead of adding one."""


_ACCOUNTS: WeakKeyDictionary[IConstruct, Account] = WeakKeyDictionary()
"""The accounts of stacks, created once: each new reference has a different text, but equal statements must have equal texts."""


def _account(scope: Construct) -> Account:
    account = account_of(scope)
    return _ACCOUNTS.setdefault(TerraformStack.of(scope), account) if checks.is_token(account.region) else account


def policy_for(scope: Construct) -> Policy:
    """Return an empty policy for the account and region of a stack, to pass to the grants of constructs."""
    account = _account(scope)
    return Policy(account.region, account.dns_suffix)


def grant(scope: Construct, what: str, grantee: Grantee, add: Callable[[Policy], None]) -> Grant:
    """Grant permissions. The same grant again changes nothing.

    Args:
        scope: The construct that grants; the inline policy of a role is declared in it.
        what: What is granted, as a part of names, such as `read`.
        grantee: To whom. The inline policy of a role also denies registering and deregistering consumers. Roles of other
            accounts are added to resource policies.
        add: Adds the permissions to a policy.

    Raises:
        ArgumentError: The grantee is invalid, or needs a resource policy where there can be none.
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
    # Use a reference's text in Terraform: the number of a token changes whenever something before it changes.
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
    # A name allows fewer characters than an id. Add part of the construct's address, so that another construct's grant to the same role
    # does not overwrite this one.
    called = f"kinesis-efo-{re.sub(r'[^a-zA-Z0-9_.-]', '-', what)[:100]}-{scope.node.addr[-10:]}"
    return _Declared(policy, document, IamRolePolicy(scope, name, name=called, role=role, policy=document.json))


def _share(scope: Construct, owner: str, to: ArnPrincipal | ServicePrincipal, statements: Sequence[Statement]) -> Grant:
    """Add statements to the policies of their resources. The policy of a key that is given by its ARN is not changed."""
    conditions: tuple[Condition, ...] = ()
    if isinstance(to, ArnPrincipal):
        checks.text(owner, "the principal", to.arn, checks.PRINCIPAL_ARN, "give the ARN of a role, user or account")
        principals = {"AWS": (to.arn,)}
    else:
        principals = {"Service": (to.service,)}
        # Against the confused deputy: only for what the service does for this account.
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
