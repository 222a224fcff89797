"""Checks what a stack or plan grants, and to whom: only what the settings name is allowed.

A checkov check receives one resource at a time, without the settings. The checks in this module use the boundaries, accounts and workloads
listed in an environment file. They also cover resources that grant access without a policy: instance profiles, images, alarm actions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_network
from typing import Any

_READS = ("kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:SubscribeToShard")
_ACCOUNT = re.compile(r"(\d{12})|arn:[^:]*:(?:iam|sts)::([^:]*):.*")
_SERVICE = re.compile(r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?")
_OUR_ROLE = re.compile(r"\$\{aws_iam_(role|openid_connect_provider)\.[\w-]+\.arn\}")
_ARN = re.compile(
    r"\$\{((data\.)?aws_\w+\.[\w-]+\.arn"
    r"|data\.aws_(caller_identity\.[\w-]+\.account_id|partition\.[\w-]+\.partition|region\.[\w-]+\.\w+))\}"
    r"|\$?\$\{[a-z0-9-]+:[\w/-]+\}"
)
"""Pattern for the `${...}` parts that an ARN may contain: references with values that have no wildcards, and IAM variables."""
_PLAIN = re.compile(r"arn:[\w-]+:([\w-]+):[\w-]*:\w*:(.*)", re.IGNORECASE)
"""Pattern for an ARN with a literal partition, service, region and account. Only its last part may contain wildcards."""
_DOCUMENT = re.compile(r"\$\{data\.aws_iam_policy_document\.[\w-]+\.(minified_)?json\}")
_PRINCIPALS = (
    "allowed_principals", "grantee_principal", "principal", "principal_arn", "principal_org_id", "principals", "retiring_principal"
)  # fmt: skip
"""Arguments that give principals access without a policy, such as those of a Lambda permission or a KMS grant."""
_INCLUDED = ("source_json", "override_json", "source_policy_documents", "override_policy_documents")
"""Arguments of a policy document that include the statements of other policies."""
_POLICIES = ("access_policies", "access_policy", "assume_role_policy", "policy", "policy_document")
_POLICY_KEYS = frozenset({"Id", "Statement", "Version"})
_STATEMENT_KEYS = frozenset(
    {"Action", "Condition", "Effect", "NotAction", "NotPrincipal", "NotResource", "Principal", "Resource", "Sid"}
)
_RECEIVERS = (
    "group", "group_name", "groups", "role", "role_arn", "role_name", "roles", "target_role_arn", "user", "user_name", "users"
)  # fmt: skip
"""Arguments that name the role, user or group to which a policy is attached, or the role whose permissions an instance or pod gets."""
_OURS = re.compile(r"\$\{aws_iam_(?:group|role|user)\.[\w-]+\.(?:arn|id|name)\}")
_ALARM_ACTIONS = ("alarm_actions", "insufficient_data_actions", "ok_actions")
_OUR_TOPIC, _TOPIC = (
    re.compile(r"\$\{aws_sns_topic\.[\w-]+\.(?:arn|id)\}"),
    re.compile(r"arn:[\w-]+:sns:[\w-]+:(\d{12}):[\w.-]+"),
)
_OUR_IMAGE = re.compile(r"\$\{aws_ecr_repository\.[\w-]+\.repository_url\}[:@][\w.:-]+")
_IMAGE = re.compile(r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.(?:com(?:\.cn)?|eu)/[\w./@:-]+")
_PLACE = re.compile(r"arn:[\w-]+:[\w-]+:[\w-]*:(\d{12}):.*")
_NOT_PLACES = (
    *_PRINCIPALS,
    *_POLICIES,
    *_RECEIVERS,
    *_ALARM_ACTIONS,
    "identifiers",
    "permissions_boundary",
    "resources",
    "values",
)
"""Arguments that the check for ARNs of other accounts skips: other checks cover them, such as those of policy statements."""
_INTERACTIVE = ("livy_endpoint_enabled", "studio_enabled")
_CLOSED_ACLS = ("bucket-owner-full-control", "bucket-owner-read", "log-delivery-write", "private")
_BRINGS_CODE = re.compile(r"spark\.(?:archives|extraListeners|files|jars|plugins|submit\.pyFiles)(?:\..*)?")


@dataclass(frozen=True, slots=True)
class Named:
    """The accounts, boundaries, names and paths that an environment's settings allow in its stack.

    Attributes:
        account: Id of the environment's account.
        accounts: Ids of other accounts that the environment's policies may give access.
        boundaries: ARNs of permissions boundaries, one of which each role must have.
        declared: Terraform addresses of boundaries that the stack declares. They may list all roles and streams: they only limit access.
        reserved: Terraform names reserved for the boundaries of other stacks. No resource of this stack may have such a name.
        unbounded: IAM path of the roles that need no boundary; empty if all roles need one.
        identities: Workloads that may assume roles, as patterns: `<issuer>:<subject>` of an OIDC provider, such as
            `token.actions.githubusercontent.com:repo:acme/lake:*`, and `<cluster>/<namespace>/<service account>` of EKS Pod Identity.
        roles: Names of roles declared elsewhere that may get policies.
        topics: ARNs of topics, in any account, that alarms may notify.
        services: AWS services that may assume the environment's roles, such as `ec2`.
    """

    account: str
    accounts: frozenset[str]
    boundaries: frozenset[str]
    declared: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    unbounded: str = ""
    identities: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    services: frozenset[str] = frozenset({"emr-serverless", "pods.eks", "scheduler"})

    def has(self, account: str | None) -> bool:
        """Whether `account` is the environment's account or one of the other accounts in its settings."""
        return account == self.account or account in self.accounts


@dataclass(frozen=True, slots=True)
class _Statement:
    """An `Allow` statement of a policy."""

    actions: Sequence[str]
    but_actions: Sequence[str]
    resources: Sequence[str]
    principals: Sequence[tuple[str, str]]
    conditions: Sequence[tuple[str, str, Sequence[str]]] = ()

    def allows(self, action: str) -> bool:
        """Whether the statement may allow an action."""
        if self.but_actions:
            return not any(_is_like(action, each) for each in self.but_actions)
        return any(_is_like(action, each) for each in self.actions)


def in_stack(stack: Mapping[str, Any], named: Named) -> list[str]:
    """Return a message for each forbidden grant in a stack's Terraform JSON, which `allowed.in_stack` must have accepted."""
    found: list[str] = []
    declared = {
        body["name"]
        for receiver in ("group", "role", "user")
        for body in stack.get("resource", {}).get(f"aws_iam_{receiver}", {}).values()
        if body.get("name")
    }
    for section, prefix in (("resource", ""), ("data", "data.")):
        for kind, entries in stack.get(section, {}).items():
            for name, body in entries.items():
                found += _faults(f"{prefix}{kind}.{name}", kind, body, named, declared)
    return found


def in_plan(plan: Mapping[str, Any], named: Named) -> list[str]:
    """Return a message for each forbidden grant in a plan, as `terraform show -json` writes it."""
    root = plan.get("configuration", {}).get("root_module", {})
    refers = {each["address"]: each.get("expressions", {}) for each in root.get("resources", [])}
    found: list[str] = []
    changes = [each for each in plan.get("resource_changes", []) if each["change"].get("after") is not None]
    declared = {
        each["change"]["after"]["name"]
        for each in changes
        if each["type"] in ("aws_iam_group", "aws_iam_role", "aws_iam_user") and each["change"]["after"].get("name")
    }
    for each in changes:
        unknown = each["change"].get("after_unknown") or {}
        expressions = refers.get(_as_declared(each["address"]))
        # Skip values that the stack does not set: they were computed by AWS.
        known = {
            name: value for name, value in each["change"]["after"].items() if expressions is None or name in expressions
        }
        for attribute in ("permissions_boundary", *_POLICIES, *_RECEIVERS):
            if unknown.get(attribute) is True and (expressions is None or attribute in expressions):
                # The value is not known before the plan is applied: check the reference instead.
                references = (expressions or {}).get(attribute, {}).get("references") or ["?"]
                known[attribute] = f"${{{references[0]}}}"
        found += _faults(each["address"], each["type"], known, named, declared)
    return found


def allows(policy: str | None, action: str) -> bool:
    """Whether a JSON policy may allow an action on some resource. False if the policy cannot be read or is not known yet."""
    statements = _statements("", "", {"policy": policy})
    return any(not isinstance(each, str) and each.allows(action) for each in statements)


def _faults(
    address: str, kind: str, body: Mapping[str, Any], named: Named, receivers: Collection[str]
) -> Iterator[str]:
    declared = _as_declared(address)
    yield from _received(address, kind, body, named, receivers)
    yield from _given(address, kind, body, named)
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
            for actions, service, resource in ((("iam:PassRole",), "iam", "role"), (_READS, "kinesis", "stream")):
                if any(map(statement.allows, actions)):
                    verb = "pass" if resource == "role" else "read"
                    yield from (
                        f"{address}: lets {verb} every {resource}; name them, with partition, region and account: {each}"
                        for each in statement.resources
                        if _is_open(each, service, f"{resource}/")
                    )
        trusts = any(map(statement.allows, ("sts:AssumeRole", "sts:TagSession")))
        for principal_kind, principal in statement.principals:
            service = principal.removesuffix(".cn").removesuffix(".amazonaws.com")
            if trusts and principal_kind == "Service" and service not in named.services:
                yield f"{address}: lets {principal} assume it, which the environment's file does not name"
            elif principal == "*":
                yield f"{address}: lets everybody in"
            elif principal_kind == "Federated":
                yield from _federated(address, principal, statement, named)
            elif told := _outsider(principal_kind, principal, named):
                yield f"{address}: lets {told} in, which the environment's file does not name"


def _as_declared(address: str) -> str:
    """Return a plan resource's address without an index of `count` or `for_each`, which is its address in the stack."""
    return address.partition("[")[0]


def _unbounded(address: str, role: Mapping[str, Any], named: Named) -> Iterator[str]:
    """Yield a message if a role's permissions boundary is not in the settings."""
    if named.unbounded and role.get("path") == named.unbounded:
        return
    boundary = role.get("permissions_boundary")
    if boundary not in named.boundaries or ":iam::aws:" in str(boundary):
        known = ", ".join(sorted(named.boundaries)) or "none"
        yield f"{address}: its permissions boundary is {boundary or 'none'}, and the settings name {known}"


def _statements(address: str, kind: str, body: Mapping[str, Any]) -> Iterator[_Statement | str]:
    """Yield the `Allow` statements of a resource's policies, and a message for each policy that cannot be read."""
    if kind == "aws_iam_policy_document":
        for each in _blocks(body.get("statement")):
            if each.get("effect") != "Deny":
                principals = [
                    (str(group.get("type")), name)
                    for group in _blocks(each.get("principals"))
                    for name in _many(group.get("identifiers"))
                ]
                everybody = [("AWS", "*")] if each.get("not_principals") else []
                conditions = [
                    (str(test.get("test")), str(test.get("variable")), _many(test.get("values")))
                    for test in _blocks(each.get("condition"))
                ]
                yield _Statement(
                    _many(each.get("actions")),
                    _many(each.get("not_actions")),
                    _many(each.get("resources")) + (["*"] if each.get("not_resources") else []),
                    principals + everybody,
                    conditions,
                )
        policies: list[Any] = [policy for attribute in _INCLUDED for policy in _many(body.get(attribute))]
    else:
        inline = [each.get("policy") for each in _blocks(body.get("inline_policy"))]
        policies = [*(body.get(attribute) for attribute in _POLICIES), *inline]
    for policy in policies:
        if policy is None or _DOCUMENT.fullmatch(str(policy)):
            continue
        try:
            written = json.loads(policy, object_pairs_hook=_once)
            statements = written["Statement"]
            statements = statements if isinstance(statements, list) else [statements]
            _only(written, _POLICY_KEYS)
            for each in statements:
                _only(each, _STATEMENT_KEYS)
                if each["Effect"] not in ("Allow", "Deny"):
                    raise ValueError(f"Effect {each['Effect']!r} is neither Allow nor Deny")
            yield from [_written(each) for each in statements if each["Effect"] == "Allow"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            yield (
                f"{address}: its policy cannot be read: it must be JSON, or refer to a policy document ({type(error).__name__}: {error})"
            )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs. Reject repeated keys: AWS and this check might use different values."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key is written twice among {', '.join(name for name, _ in pairs)}")
    return found


def _only(written: Mapping[str, Any], keys: Collection[str]) -> None:
    if unknown := sorted(written.keys() - keys):
        raise ValueError(f"unknown keys: {', '.join(unknown)}")


def _written(statement: Mapping[str, Any]) -> _Statement:
    principal = statement.get("Principal")
    groups = principal if isinstance(principal, Mapping) else {"AWS": principal}
    principals = [(kind, name) for kind, group in groups.items() for name in _many(group)]
    return _Statement(
        _many(statement.get("Action")),
        _many(statement.get("NotAction")),
        _many(statement.get("Resource")) + (["*"] if "NotResource" in statement else []),
        principals + ([("AWS", "*")] if "NotPrincipal" in statement else []),
        [
            (test, variable, _many(values))
            for test, variables in (statement.get("Condition") or {}).items()
            for variable, values in variables.items()
        ],
    )


def _received(
    address: str, kind: str, body: Mapping[str, Any], named: Named, declared: Collection[str]
) -> Iterator[str]:
    """Yield a message for each IAM or EKS resource whose role, group, user or pod is neither in the stack nor in the settings."""
    if kind.startswith("aws_iam_") or kind == "aws_eks_pod_identity_association":
        for attribute in _RECEIVERS:
            for each in _many(body.get(attribute)):
                account, _, path = each.removeprefix("arn:").partition(":role/")
                arn = not path or (account.partition(":iam::")[2] == named.account)
                receiver = path.rpartition("/")[2] or each
                known = receiver in declared or ("role" in attribute and receiver in named.roles)
                if not (_OURS.fullmatch(each) or (arn and known)):
                    yield (
                        f"{address}: its {attribute} is {each}, which neither the stack declares nor the environment's file names"
                    )
    if kind == "aws_eks_pod_identity_association":
        workload = "/".join(str(body.get(each)) for each in ("cluster_name", "namespace", "service_account"))
        if not _is_named(workload, named):
            yield f"{address}: lets pods of {workload} in, which the environment's file does not name"


def _given(address: str, kind: str, body: Mapping[str, Any], named: Named) -> Iterator[str]:
    """Yield a message for each argument that gives others access without a policy, acts on other accounts, or copies data elsewhere."""
    if "replica" in kind or kind == "aws_dynamodb_global_table":
        yield f"{address}: replicates elsewhere, which no environment's file names"
    if kind.startswith("aws_s3"):
        closed = body.get("acl") is None or body["acl"] in _CLOSED_ACLS
        listed = [each for each in ("access_control_policy", "grant") if body.get(each)]
        yield from (
            f"{address}: lets others in by its {each}; only policies may" for each in listed + ["acl"] * (not closed)
        )
    for name, value in _entries(body):
        for each in _many(value) if name and name not in _NOT_PLACES else ():
            place = _PLACE.fullmatch(each)
            if place and not named.has(place[1]) and each not in named.topics:
                yield f"{address}: its {name} is of account {place[1]}, which the environment's file does not name"
        if name in _ALARM_ACTIONS:
            for each in _many(value):
                topic = _TOPIC.fullmatch(each)
                if not (each in named.topics or _OUR_TOPIC.fullmatch(each) or (topic and named.has(topic[1]))):
                    yield f"{address}: its action {each} is no topic of an account that the environment's file names"
        elif name == "image_uri" and value is not None:
            image = _IMAGE.fullmatch(str(value))
            if not (_OUR_IMAGE.fullmatch(str(value)) or (image and named.has(image[1]))):
                yield f"{address}: its image {value} is of no account that the environment's file names"
        elif name in ("replica", "replication_configuration") and value:
            yield f"{address}: its {name} copies elsewhere, which no environment's file names"
        elif name == "runtime_configuration":
            for setting, text in _entries(value):
                if _BRINGS_CODE.fullmatch(setting) or (isinstance(text, str) and "://" in text):
                    yield f"{address}: its setting {setting} brings code or names a place that every job has; leave it to a job"
        elif name in _INTERACTIVE and str(value).lower() == "true":
            yield f"{address}: its {name} lets others run code with a job's rights; submit jobs instead"
        elif name == "ingress" or ("cidr" in name and ("ingress" in kind or body.get("type") == "ingress")):
            open_to = {str(each) for _, each in _entries({"": value}) if _is_wide(str(each))}
            yield from (f"{address}: lets everybody in, from {each}" for each in sorted(open_to))


def _is_wide(cidr: str) -> bool:
    """Whether a network is larger than /8, the largest private IPv4 network, or than /16 for IPv6."""
    try:
        network = ip_network(cidr, strict=False)
    except ValueError:
        return False
    return network.prefixlen < (8 if network.version == 4 else 16)


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of objects at any depth, as name and value. Plain values in lists have an empty name."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield name, each
            for inner in each if isinstance(each, list) else [each]:
                if isinstance(each, list) and not isinstance(inner, Mapping | list):
                    yield "", inner
                else:
                    yield from _entries(inner)
    elif isinstance(value, list):
        for each in value:
            yield from _entries(each)


def _federated(address: str, provider: str, statement: _Statement, named: Named) -> Iterator[str]:
    """Yield a message if a role trusts workloads that are not in the settings. Without a condition on `sub`, it trusts all of GitHub."""
    told = [
        f"{variable.removesuffix(':sub')}:{each}"
        for test, variable, values in statement.conditions
        if test in ("StringEquals", "StringLike") and variable.endswith(":sub")
        for each in values
    ]
    outsiders = [each for each in told if not _is_named(each, named)]
    if account := _outsider("Federated", provider, named):
        yield f"{address}: lets {account} in, which the environment's file does not name"
    elif not told or outsiders:
        whom = ", ".join(outsiders) or f"all for whom {provider} vouches"
        yield f"{address}: lets {whom} in, which the environment's file does not name"


def _is_named(workload: str, named: Named) -> bool:
    return any(fnmatchcase(workload, each) for each in named.identities)


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    """Return Terraform blocks as a list; in JSON, a single block may be an object."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Mapping)]


def _many(value: Any) -> list[str]:
    """Return a value, or a list of values, as a list of strings, without unknown values (None)."""
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each is not None]


def _is_computed(value: str) -> bool:
    return "${" in value or "%{" in value


def _is_like(action: str, pattern: str) -> bool:
    """Whether an action matches an IAM pattern with `*` and `?`. Brackets are ordinary characters."""
    return fnmatchcase(action.lower(), pattern.lower().replace("[", "[[]"))


def _is_open(pattern: str, service: str, kind: str) -> bool:
    """Whether an ARN pattern may match resources of any name, or in several partitions, regions or accounts."""

    def told(reference: re.Match[str]) -> str:
        # A Terraform reference resolves to a value without wildcards: insert a sample. An IAM variable may have any value: insert `*`.
        return "arn:aws:x:::x" if reference[0].endswith(".arn}") else "x" if reference[1] else "*"

    plain = _PLAIN.fullmatch(_ARN.sub(told, pattern))
    if plain is None:
        return True
    begins = re.split(r"[*?]", plain[2])[0].lower()
    return plain[1].lower() == service and kind.startswith(begins)


def _outsider(kind: str, principal: str, named: Named) -> str | None:
    """Describe a principal that is not allowed. None for services, accounts in the settings, and principals that the stack declares."""
    if (kind == "Service" and _SERVICE.fullmatch(principal)) or _OUR_ROLE.fullmatch(principal):
        return None
    found = None if _is_computed(principal) or kind not in ("AWS", "Federated") else _ACCOUNT.fullmatch(principal)
    if found is None:
        return f"account of {principal}" if _is_computed(principal) else f"{kind} {principal}"
    account = found[1] or found[2]
    return None if named.has(account) else f"account {account}"
