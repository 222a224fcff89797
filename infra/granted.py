"""What a stack, or a plan of it, may grant, and to whom: what the settings name, whatever is in it besides.

checkov's checks see one resource at a time, and nothing of the settings. These see which boundaries and which accounts an
environment's file names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from infra import names
from infra.settings import Environment, OtherAccount, RoleAccess

_READS = ("kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:SubscribeToShard")
_EVERY_STREAM = re.compile(r"\*|arn:[^:]*:kinesis:[^:]*:[^:]*:(\*|stream/\*.*)")
_EVERY_ROLE = re.compile(r"\*|arn:[^:]*:iam::[^:]*:(\*|role/\*)")
_ACCOUNT = re.compile(r"(\d{12})|arn:[^:]*:(?:iam|sts)::([^:]*):.*")
_REFERENCE = re.compile(r"\$\{(data\.)?aws_[\w.]+\}")
_DOCUMENT = re.compile(r"\$\{data\.aws_iam_policy_document\.[\w-]+\.(minified_)?json\}")
_POLICIES = ("policy", "assume_role_policy")


@dataclass(frozen=True, slots=True)
class Named:
    """What the settings of an environment name.

    Attributes:
        account: Its account.
        accounts: Other accounts that its policies may let in.
        boundaries: ARNs of boundaries, one of which each role must have.
        declared: Addresses of what declares a boundary in the stack itself; a boundary grants nothing.
        unbounded: The IAM path of roles that need no boundary; empty if all need one.
    """

    account: str
    accounts: frozenset[str]
    boundaries: frozenset[str]
    declared: frozenset[str] = frozenset()
    unbounded: str = ""

    @classmethod
    def by(cls, environment: Environment) -> Named:
        """What the stack of an environment may use."""
        accesses = [application.access for application in environment.applications.values()]
        others = {each for access in accesses if isinstance(access, OtherAccount) for each in access.principals}
        given = {access.permissions_boundary for access in accesses if isinstance(access, RoleAccess)}
        # Without a pipeline, which brings a boundary, the stack declares one.
        own = f"aws_iam_policy.{names.BOUNDARY.now}"
        declared = set() if environment.pipeline else {own, f"data.aws_iam_policy_document.{names.BOUNDARY.now}"}
        arn = names.iam_arn(environment, f"policy/{names.roles_boundary_name(environment)}")
        ours = {names.boundary_arn(environment)} if environment.pipeline else {f"${{{own}.arn}}", arn}
        return cls(
            account=environment.account_id,
            accounts=frozenset(names.parse_arn(each).account for each in others),
            boundaries=frozenset(ours | {each for each in given if each}),
            declared=frozenset(declared),
        )

    @classmethod
    def by_bootstrap_of(cls, environment: Environment) -> Named:
        """What the bootstrap stack of an environment may use: only there, the pipeline's own roles have no boundary."""
        return cls(environment.account_id, frozenset(), frozenset(), unbounded=names.pipeline_path(environment))


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement that allows something."""

    actions: Sequence[str]
    but_actions: Sequence[str]
    resources: Sequence[str]
    principals: Sequence[str]

    def allows(self, action: str) -> bool:
        """Whether it may allow an action."""
        if self.but_actions:
            return not any(fnmatchcase(action.lower(), each.lower()) for each in self.but_actions)
        return any(fnmatchcase(action.lower(), each.lower()) for each in self.actions)


def in_stack(stack: Mapping[str, Any], named: Named) -> list[str]:
    """What a stack's Terraform JSON grants that it may not grant; its form is that of `allowed.in_stack`."""
    found: list[str] = []
    for section, prefix in (("resource", ""), ("data", "data.")):
        for kind, entries in stack.get(section, {}).items():
            for name, body in entries.items():
                found += _faults(f"{prefix}{kind}.{name}", kind, body, named)
    return found


def in_plan(plan: Mapping[str, Any], named: Named) -> list[str]:
    """What a plan, as `terraform show -json` writes it, grants that it may not grant."""
    root = plan.get("configuration", {}).get("root_module", {})
    refers = {each["address"]: each.get("expressions", {}) for each in root.get("resources", [])}
    found: list[str] = []
    for each in plan.get("resource_changes", []):
        after = each["change"].get("after")
        if after is None:
            continue
        unknown = each["change"].get("after_unknown") or {}
        known = dict(after)
        for attribute in ("permissions_boundary", *_POLICIES):
            expressions = refers.get(each["address"])
            if expressions is not None and attribute not in expressions:
                # Nobody sets it; AWS tells the provider.
                known.pop(attribute, None)
            elif unknown.get(attribute) is True:
                # What only AWS knows yet, by what it refers to.
                references = (expressions or {}).get(attribute, {}).get("references") or ["?"]
                known[attribute] = f"${{{references[0]}}}"
        found += _faults(each["address"], each["type"], known, named)
    return found


def _faults(address: str, kind: str, body: Mapping[str, Any], named: Named) -> Iterator[str]:
    if kind == "aws_iam_role":
        yield from _unbounded(address, body, named)
    for statement in _statements(address, kind, body):
        if isinstance(statement, str):
            yield statement
            continue
        if address not in named.declared:
            if statement.allows("iam:PassRole") and any(map(_EVERY_ROLE.fullmatch, statement.resources)):
                yield f"{address}: lets pass every role; name them"
            if any(map(statement.allows, _READS)) and any(map(_EVERY_STREAM.fullmatch, statement.resources)):
                yield f"{address}: lets read every stream; name them"
        for principal in statement.principals:
            if principal == "*":
                yield f"{address}: lets everybody in"
            elif (account := _account(principal)) and account != named.account and account not in named.accounts:
                yield f"{address}: lets account {account} in, which the environment's file does not name"


def _unbounded(address: str, role: Mapping[str, Any], named: Named) -> Iterator[str]:
    """Faults of a role that could do more than a boundary of the settings."""
    if named.unbounded and role.get("path") == named.unbounded:
        return
    boundary = role.get("permissions_boundary")
    if boundary not in named.boundaries or ":iam::aws:" in str(boundary):
        known = ", ".join(sorted(named.boundaries)) or "none"
        yield f"{address}: its permissions boundary is {boundary or 'none'}, and the settings name {known}"


def _statements(address: str, kind: str, body: Mapping[str, Any]) -> Iterator[_Statement | str]:
    """The statements of policies that allow something; or what is wrong with a policy that cannot be read."""
    if kind == "aws_iam_policy_document":
        for each in body.get("statement") or []:
            if each.get("effect") in (None, "Allow"):
                principals = [
                    name for group in each.get("principals") or [] for name in _many(group.get("identifiers"))
                ]
                everybody = ["*"] if each.get("not_principals") else []
                yield _Statement(
                    _many(each.get("actions")),
                    _many(each.get("not_actions")),
                    _many(each.get("resources")) or (["*"] if each.get("not_resources") else []),
                    principals + everybody,
                )
        return
    inline = [each.get("policy") for each in body.get("inline_policy") or [] if isinstance(each, Mapping)]
    for policy in [*(body.get(attribute) for attribute in _POLICIES), *inline]:
        if policy is None or _DOCUMENT.fullmatch(str(policy)):
            continue
        try:
            written = json.loads(policy)["Statement"]
            statements = written if isinstance(written, list) else [written]
            yield from [_written(each) for each in statements if each.get("Effect") != "Deny"]
        except (ValueError, TypeError, KeyError, AttributeError):
            yield f"{address}: its policy cannot be read: it must be JSON, or refer to a policy document"


def _written(statement: Mapping[str, Any]) -> _Statement:
    """A statement of a policy in JSON."""
    principal = statement.get("Principal")
    groups = list(principal.values()) if isinstance(principal, Mapping) else [principal]
    principals = [name for group in groups for name in _many(group)]
    return _Statement(
        _many(statement.get("Action")),
        _many(statement.get("NotAction")),
        _many(statement.get("Resource")) or (["*"] if "NotResource" in statement else []),
        principals + (["*"] if "NotPrincipal" in statement else []),
    )


def _many(value: Any) -> list[str]:
    """Values as a list, without those of a plan that only AWS knows yet: the stack says what they refer to."""
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each is not None]


def _account(principal: str) -> str | None:
    """The account of a principal; None for services, and for what the stack itself declares."""
    if found := _ACCOUNT.fullmatch(principal):
        return found[1] or found[2]
    if "${" in principal and not _REFERENCE.fullmatch(principal):
        return f"of {principal}"
    return None
