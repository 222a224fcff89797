"""To whom permissions are granted: a policy that gathers them, or a role that exists, which gets an inline policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import account_of, policy_document, put_statements
from kinesis_efo_infra.cdk import (
    Construct,
    DataAwsIamPolicyDocument,
    DefaultTokenResolver,
    IamRolePolicy,
    StringConcat,
    Tokenization,
)
from kinesis_efo_infra.iam import Policy

Grantee = Policy | str
"""A policy that gathers grants, or the name of a role."""


@dataclass(frozen=True, slots=True)
class _Inline:
    """The inline policy that a construct has given to a role."""

    policy: Policy
    document: DataAwsIamPolicyDocument


_GIVEN: WeakKeyDictionary[Construct, dict[tuple[str, str], _Inline]] = WeakKeyDictionary()
"""What each construct has granted, by what and by role: the same again adds to it, and is no second policy."""


def policy_for(scope: Construct) -> Policy:
    """An empty policy for the account and region of a stack, to be handed to the grants of constructs."""
    account = account_of(scope)
    return Policy(account.region, account.dns_suffix)


def grant(scope: Construct, what: str, grantee: Grantee, add: Callable[[Policy], None]) -> None:
    """Grant permissions. The same grant again changes nothing.

    Args:
        scope: The construct that grants; the inline policy of a role is declared in it.
        what: What is granted, as a part of names: `read`.
        grantee: A policy that gathers permissions, or the name of a role. The inline policy of a role also denies to register
            and to deregister consumers, whatever else the role is allowed.
        add: Adds the permissions to a policy.

    Raises:
        ArgumentError: The role's name is none.
    """
    if isinstance(grantee, Policy):
        add(grantee)
        return
    owner = f"{scope.node.path}, grant to {what}"
    checks.text(owner, "the role's name", grantee, checks.ROLE_NAME, "give the name of a role, not its ARN")
    role = _part_of_ids(scope, grantee)
    given = _GIVEN.setdefault(scope, {})
    if (before := given.get((what, role))) is not None:
        add(before.policy)
        put_statements(before.document, before.policy.statements.values())
        return
    policy = policy_for(scope)
    add(policy)
    policy.deny_registration()
    document = policy_document(scope, f"{what}-{role}-document", policy.statements.values())
    given[what, role] = _Inline(policy, document)
    # A name takes fewer characters than an id. Part of the construct's own address: another construct's grant to the same role must not overwrite this one.
    name = f"kinesis-efo-{re.sub(r'[^a-zA-Z0-9_.-]', '-', what)[:100]}-{scope.node.addr[-10:]}"
    IamRolePolicy(scope, f"{what}-{role}", name=name, role=grantee, policy=document.json)


def _part_of_ids(scope: Construct, role: str) -> str:
    # Of a reference, its text in Terraform: a token has another number whenever something before it changes.
    resolver = DefaultTokenResolver(StringConcat())
    text = str(Tokenization.resolve(role, scope=scope, resolver=resolver, preparing=False))
    return re.sub(r"[^a-zA-Z0-9_]+", "-", text).strip("-")
