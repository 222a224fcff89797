"""Enforces an IAM policy on local AWS, as AWS does: for every call, its resource, and the uses of keys that it implies."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from kinesis_efo_local import AwsError, NoFaults, Request

Statement = Mapping[str, Any]
Context = Mapping[str, str]
"""What a request says of itself, of its resource and of its caller, by the names of IAM's context keys."""
_KEY_USES = {"PutRecords": "kms:GenerateDataKey", "ListShards": None, "DescribeStreamSummary": None}
"""The action on the key of an encrypted resource, by operation; None for none. Other operations use `kms:Decrypt`."""


def many(value: Any) -> list[str]:
    """A value of a JSON policy as a list, whether it is one or not."""
    return list(value) if isinstance(value, list) else [value]


def allowed(statements: Iterable[Statement], action: str, resource: str, context: Context) -> bool:
    """Whether a policy allows an action: some statement allows it, and none denies it.

    Knows the elements of this project's policies only, and fails for any other.
    """
    answers = {each["Effect"] for each in statements if _applies(each, action, resource, context)}
    return "Allow" in answers and "Deny" not in answers


def _applies(statement: Statement, action: str, resource: str, context: Context) -> bool:
    assert set(statement) <= {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}, statement
    if not (_covers(statement, "Action", action) and _covers(statement, "Resource", resource)):
        return False
    # Names of context keys are not case-sensitive.
    known = {name.lower(): value for name, value in context.items()}
    return all(
        _holds(test, many(values), known.get(variable.lower()))
        for test, variables in statement.get("Condition", {}).items()
        for variable, values in variables.items()
    )


def _covers(statement: Statement, element: str, text: str) -> bool:
    """Whether an element matches, or its opposite (`NotAction`) does not."""
    excepted = f"Not{element}" in statement
    patterns = many(statement[f"Not{element}" if excepted else element])
    return any(_matches(element, text, pattern) for pattern in patterns) != excepted


@cache
def _matches(element: str, text: str, pattern: str) -> bool:
    # Names of actions are not case-sensitive.
    return fnmatchcase(text.lower(), pattern.lower()) if element == "Action" else fnmatchcase(text, pattern)


def _holds(test: str, values: list[str], actual: str | None) -> bool:
    match test:
        case "Null":
            return values == [str(actual is None).lower()]
        case "StringEquals":
            return actual in values
        case "StringNotEquals":
            return actual not in values  # holds as well where the request has no such key
        case "ForAllValues:StringLike":
            # Several values of a request are separated by commas here. Without any, it holds.
            return all(
                any(fnmatchcase(each, pattern) for pattern in values) for each in (actual or "").split(",") if each
            )
        case "StringLike" | "ArnLike":
            return actual is not None and any(fnmatchcase(actual, each) for each in values)
        case _:
            raise AssertionError(f"this evaluator does not know {test}")


@dataclass
class Enforced(NoFaults):
    """Enforces the runtime's policy on local AWS.

    Attributes:
        region: Region of all resources.
        account: Account of all resources.
        keys: ARN of the key that encrypts a resource, by ARN of the resource.
        statements: The policy; None to allow everything, during set-up.
        calls: Every action called since, with its resource.
        refused: The refused ones among them.
    """

    region: str
    account: str
    keys: Mapping[str, str] = field(default_factory=dict)
    statements: list[Statement] | None = None
    calls: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)

    def enforce(self, policy: str, keys: Mapping[str, str], without: str | None = None) -> None:
        """Enforce a policy from now on; `without` leaves out the statement with that sid."""
        self.statements = [each for each in json.loads(policy)["Statement"] if each["Sid"] != without]
        self.keys = keys
        self.calls.clear()
        self.refused.clear()

    async def before(self, request: Request) -> None:
        """Refuse a request that the policy does not allow."""
        if self.statements is None:
            return
        resource = self._resource(request)
        self._check(f"{request.service}:{request.operation}", resource, {})
        key, use = self.keys.get(resource), _KEY_USES.get(request.operation, "kms:Decrypt")
        if key and use:
            # The service uses the key in the caller's name.
            self._check(use, key, {"kms:ViaService": f"{request.service}.{self.region}.amazonaws.com"})

    def _check(self, action: str, resource: str, context: Mapping[str, str]) -> None:
        assert self.statements is not None
        self.calls.add((action, resource))
        if not allowed(self.statements, action, resource, context):
            self.refused.add((action, resource))
            raise AwsError("AccessDeniedException", f"not authorized to perform: {action} on resource: {resource}")

    def _resource(self, request: Request) -> str:
        arn = f"arn:aws:{request.service}:{self.region}:{self.account}"
        match request.service:
            case "dynamodb":
                return f"{arn}:table/{request.params['TableName']}"
            case "ssm":
                return f"{arn}:parameter{request.params['Name']}"
            case _:
                named = request.params.get("ConsumerARN") or request.params.get("StreamARN")
                return str(named or f"{arn}:stream/{request.params.get('StreamName', '')}")
