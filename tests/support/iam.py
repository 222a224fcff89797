"""Enforces an IAM policy on local AWS, as AWS does: every call, on its resource, with the key uses it entails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from kinesis_efo.local import AwsError, NoFaults, Request

Statement = Mapping[str, Any]
_KEY_USES = {"PutRecords": "kms:GenerateDataKey", "ListShards": None, "DescribeStreamSummary": None}
"""What operations ask of the key that encrypts their resource, where it is not to decrypt."""


def many(value: Any) -> list[str]:
    """What JSON policies write with or without brackets."""
    return list(value) if isinstance(value, list) else [value]


def allowed(statements: Iterable[Statement], action: str, resource: str, context: Mapping[str, str]) -> bool:
    """Whether a policy allows something: some statement does, and none denies it.

    Knows what the policies here consist of; anything else is an error, never a silent yes.
    """
    answers = set()
    for statement in statements:
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition"}, statement
        tests = statement.get("Condition", {})
        assert set(tests) <= {"StringEquals"}, tests
        if (
            any(fnmatchcase(action.lower(), each.lower()) for each in many(statement["Action"]))
            and any(fnmatchcase(resource, each) for each in many(statement["Resource"]))
            and all(context.get(key) in many(values) for key, values in tests.get("StringEquals", {}).items())
        ):
            answers.add(statement["Effect"])
    return "Allow" in answers and "Deny" not in answers


@dataclass
class Enforced(NoFaults):
    """The policy of the runtime, in front of local AWS.

    Attributes:
        region: Region of everything.
        account: Account of everything.
        keys: Which customer key encrypts a resource, by ARN of the resource.
        statements: The policy; None while things are being set up.
        calls: Every action asked for since, with its resource.
        refused: Those that were refused.
    """

    region: str
    account: str
    keys: Mapping[str, str] = field(default_factory=dict)
    statements: list[Statement] | None = None
    calls: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)

    def enforce(self, policy: str, keys: Mapping[str, str], without: str | None = None) -> None:
        """From now on, this is what the caller may do; `without` leaves out the statement with that sid."""
        self.statements = [each for each in json.loads(policy)["Statement"] if each["Sid"] != without]
        self.keys = keys
        self.calls.clear()
        self.refused.clear()

    async def before(self, request: Request) -> None:
        """Refuse what the policy does not allow."""
        if self.statements is None:
            return
        resource = self._resource(request)
        self._check(f"{request.service}:{request.operation}", resource, {})
        key, use = self.keys.get(resource), _KEY_USES.get(request.operation, "kms:Decrypt")
        if key and use:
            # In the caller's name: what is encrypted is decrypted for it, through the service.
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
