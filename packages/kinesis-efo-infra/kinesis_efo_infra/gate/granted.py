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

_READS = ("kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:SubscribeToShard")
_SOMETHING = "0a-1.B_2"
"""A name of what nobody declares: a pattern that fits it is not of names."""
_ANY_STREAM, _ANY_ROLE = ("kinesis", f"stream/{_SOMETHING}"), ("iam", f"role/{_SOMETHING}")
_ACCOUNT = re.compile(r"(\d{12})|arn:[^:]*:(?:iam|sts)::([^:]*):.*")
_SERVICE = re.compile(r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?")
_OUR_ROLE = re.compile(r"\$\{aws_iam_(role|openid_connect_provider)\.[\w-]+\.arn\}")
_ARN = re.compile(
    r"\$\{((data\.)?aws_\w+\.[\w-]+\.arn"
    r"|data\.aws_(caller_identity\.[\w-]+\.account_id|partition\.[\w-]+\.partition|region\.[\w-]+\.\w+))\}"
    r"|\$?\$\{[a-z0-9-]+:[\w/-]+\}"
)
"""What a resource may refer to: the provider tells it, so that it can be no pattern; and IAM's variables, as `${aws:username}`."""
_DOCUMENT = re.compile(r"\$\{data\.aws_iam_policy_document\.[\w-]+\.(minified_)?json\}")
_PRINCIPALS = ("principal", "principals", "grantee_principal")
"""Arguments of resources that a team adds, as permissions of Lambda and grants of KMS have them. A document's are in its statements."""
_INCLUDED = ("source_json", "override_json", "source_policy_documents", "override_policy_documents")
"""Arguments of a policy document that bring in statements of other policies."""
_POLICIES = ("policy", "assume_role_policy")


@dataclass(frozen=True, slots=True)
class Named:
    """What the settings of an environment name.

    Attributes:
        account: Its account.
        accounts: Other accounts that its policies may let in.
        boundaries: ARNs of boundaries, one of which each role must have.
        declared: Addresses of what declares a boundary in the stack itself; a boundary grants nothing.
        reserved: Names of resources that the gate takes for a boundary's, and that nothing here may have.
        unbounded: The IAM path of roles that need no boundary; empty if all need one.
    """

    account: str
    accounts: frozenset[str]
    boundaries: frozenset[str]
    declared: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    unbounded: str = ""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement that allows something."""

    actions: Sequence[str]
    but_actions: Sequence[str]
    resources: Sequence[str]
    principals: Sequence[tuple[str, str]]

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
            expressions = refers.get(_as_declared(each["address"]))
            if expressions is not None and attribute not in expressions:
                # Nobody sets it; AWS tells the provider.
                known.pop(attribute, None)
            elif unknown.get(attribute) is True:
                # What only AWS knows yet, by what it refers to.
                references = (expressions or {}).get(attribute, {}).get("references") or ["?"]
                known[attribute] = f"${{{references[0]}}}"
        found += _faults(each["address"], each["type"], known, named)
    return found


def allows(policy: str | None, action: str) -> bool:
    """Whether a policy in JSON may allow an action, on whatever resource; False for one that cannot be read, or that is not known yet."""
    statements = _statements("", "", {"policy": policy})
    return any(not isinstance(each, str) and each.allows(action) for each in statements)


def _faults(address: str, kind: str, body: Mapping[str, Any], named: Named) -> Iterator[str]:
    declared = _as_declared(address)
    if declared.removeprefix("data.").partition(".")[2] in named.reserved:
        yield f"{address}: has the name of the boundary that environments without a pipeline declare; use another"
    if kind == "aws_iam_role":
        yield from _unbounded(address, body, named)
    for attribute in _PRINCIPALS:
        for each in _many(body.get(attribute)):
            if each == "*":
                yield f"{address}: lets everybody in"
            elif told := _outsider("Service" if _SERVICE.fullmatch(each) else "AWS", each, named):
                yield f"{address}: lets {told} in, which the environment's file does not name"
    for statement in _statements(address, kind, body):
        if isinstance(statement, str):
            yield statement
            continue
        for each in (*statement.actions, *statement.but_actions):
            if _is_computed(each):
                yield f"{address}: its action {each} is computed; write it out"
        for each in statement.resources:
            if _is_computed(_ARN.sub("", each)):
                yield f"{address}: its resource {each} is computed; write it out, or refer to an ARN"
        if declared not in named.declared:
            if statement.allows("iam:PassRole") and any(_fits(each, *_ANY_ROLE) for each in statement.resources):
                yield f"{address}: lets pass every role; name them"
            if any(map(statement.allows, _READS)) and any(_fits(each, *_ANY_STREAM) for each in statement.resources):
                yield f"{address}: lets read every stream; name them"
        for principal_kind, principal in statement.principals:
            if principal == "*":
                yield f"{address}: lets everybody in"
            elif told := _outsider(principal_kind, principal, named):
                yield f"{address}: lets {told} in, which the environment's file does not name"


def _as_declared(address: str) -> str:
    """The address that a stack has for what a plan has one of: without the index of `count` and `for_each`."""
    return address.partition("[")[0]


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
        for each in _blocks(body.get("statement")):
            if each.get("effect") != "Deny":
                principals = [
                    (str(group.get("type")), name)
                    for group in _blocks(each.get("principals"))
                    for name in _many(group.get("identifiers"))
                ]
                everybody = [("AWS", "*")] if each.get("not_principals") else []
                yield _Statement(
                    _many(each.get("actions")),
                    _many(each.get("not_actions")),
                    _many(each.get("resources")) or (["*"] if each.get("not_resources") else []),
                    principals + everybody,
                )
        policies: list[Any] = [policy for attribute in _INCLUDED for policy in _many(body.get(attribute))]
    else:
        inline = [each.get("policy") for each in _blocks(body.get("inline_policy"))]
        policies = [*(body.get(attribute) for attribute in _POLICIES), *inline]
    for policy in policies:
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
    groups = principal if isinstance(principal, Mapping) else {"AWS": principal}
    principals = [(kind, name) for kind, group in groups.items() for name in _many(group)]
    return _Statement(
        _many(statement.get("Action")),
        _many(statement.get("NotAction")),
        _many(statement.get("Resource")) or (["*"] if "NotResource" in statement else []),
        principals + ([("AWS", "*")] if "NotPrincipal" in statement else []),
    )


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    """Blocks of Terraform: JSON may have one of them alone."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Mapping)]


def _many(value: Any) -> list[str]:
    """Values as a list, without those of a plan that only AWS knows yet: the stack says what they refer to."""
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each is not None]


def _is_computed(value: str) -> bool:
    return "${" in value or "%{" in value


def _fits(pattern: str, service: str, resource: str) -> bool:
    """Whether a pattern of ARNs fits a resource of whatever name, in some account and region."""
    given = pattern.split(":", 5)
    partition, region, account = ((given[at] if len(given) > at else "") for at in (1, 3, 4))
    arn = ":".join(
        [
            "arn",
            "aws" if set("*?$") & set(partition) or not partition else partition,
            service,
            "eu-west-1" if set("*?$") & set(region) else region,
            "111122223333" if set("*?$") & set(account) else account,
            resource,
        ]
    )
    expression = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    return re.fullmatch(expression, arn) is not None


def _outsider(kind: str, principal: str, named: Named) -> str | None:
    """Who a principal is, as words; None for services, for accounts that are named, and for what the stack itself declares."""
    if (kind == "Service" and _SERVICE.fullmatch(principal)) or _OUR_ROLE.fullmatch(principal):
        return None
    found = None if _is_computed(principal) or kind not in ("AWS", "Federated") else _ACCOUNT.fullmatch(principal)
    if found is None:
        return f"account of {principal}" if _is_computed(principal) else f"{kind} {principal}"
    account = found[1] or found[2]
    return None if account == named.account or account in named.accounts else f"account {account}"
