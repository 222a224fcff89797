"""What a stack hides from those who look at it is not planned: they see what is written out, and no plan knows all of the rest."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Repository
from tests.integration.pipeline.test_forged import configuration

Checkout = Callable[[str], Repository]
Json = dict[str, Any]

FOREIGN = "arn:aws:iam::999988887777:root"
LATER = "${substr(aws_kinesis_stream.orders.arn, 0, 0)}"
"""Nothing; but no plan knows that before the stream is there."""
HARMLESS = {"actions": ["kinesis:ListShards"], "resources": ["${aws_kinesis_stream.orders.arn}"]}
DOCUMENT = "${data.aws_iam_policy_document.x.json}"


def granting(*statements: Json, **others: Any) -> Json:
    """A policy that is what a document says."""
    return {
        "resource": {"aws_iam_policy": {"x": {"name": "x", "policy": DOCUMENT}}},
        "data": {"aws_iam_policy_document": {"x": {"statement": list(statements), **others}}},
    }


def trusting(kind: str, who: str, **others: Any) -> Json:
    """A key that lets somebody in."""
    let_in = {"actions": ["kms:Decrypt"], "resources": ["*"], "principals": [{"type": kind, "identifiers": [who]}]}
    return {
        "resource": {"aws_kms_key": {"x": {"policy": DOCUMENT}}, **others},
        "data": {"aws_iam_policy_document": {"x": {"statement": let_in}}},
    }


PASSING = {"Statement": {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "*"}}
# By what is said of it.
HIDDEN: dict[str, Json] = {
    "reads files": {"output": {"x": {"value": {'${file("/etc/hostname")}': "x"}}}},
    "source: it reads a file": {
        "resource": {"aws_s3_object": {"x": {"bucket": "x", "key": "x", "source": "/proc/self/environ"}}}
    },
    "lets account of": trusting(
        "AWS",
        "${aws_ssm_parameter.x.value}",
        aws_ssm_parameter={"x": {"name": "x", "type": "String", "value": FOREIGN + LATER}},
    ),
    "lets CanonicalUser 79a59d": trusting("CanonicalUser", "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"),
    "lets Federated cognito": trusting("Federated", "cognito-identity.amazonaws.com"),
    "lets AWS AROA": trusting("AWS", "AROA1234567890EXAMPLE"),
    "lets pass every role": granting(HARMLESS, source_policy_documents=[json.dumps(PASSING)]),
    "its action iam:PassRole": granting({"actions": ["iam:PassRole" + LATER], "resources": ["*"]}),
    r"its resource \*": granting({"actions": ["kinesis:GetRecords"], "resources": ["*" + LATER]}),
    "its resource .*stream.orders.name": granting(
        {"actions": ["kinesis:GetRecords"], "resources": ["${aws_kinesis_stream.orders.name}"]}
    ),
    "dynamic: blocks": granting(
        HARMLESS,
        dynamic={
            "statement": {"for_each": ["iam:PassRole"], "content": {"actions": ["${statement.value}" + LATER], "resources": ["*"]}}
        },
    ),
    "lets read every stream": granting({"actions": ["kinesis:GetRecords"], "resources": ["arn:aws:kinesis:*:*:*/*"]}),
    "lets pass every role; name": granting({"actions": ["iam:PassRole"], "resources": ["arn:aws:iam::111122223333:ro*"]}),
    "pass every role": granting({"effect": '${"Allow"}', "actions": ["iam:PassRole"], "resources": ["arn:*:role/?*"]}),
    "import somebody-elses: the": {"import": {"to": "somebody-elses", "id": "x"}},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("said", HIDDEN)
def test_stack_with_hidden_parts_is_not_planned(said: str, aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("hidden")
    repository.commit()
    path = configuration(repository)
    forged = json.loads(path.read_text(encoding="utf-8"))
    for section, kinds in HIDDEN[said].items():
        for kind, entries in kinds.items():
            there = forged.setdefault(section, {})
            there[kind] = {**there.get(kind, {}), **entries} if isinstance(entries, dict) else entries
    path.write_text(json.dumps(forged), encoding="utf-8")
    with pytest.raises(PipelineError, match=said):
        repository.planner(aws).plan(deployment_of(repository.environment), "one", repository.plans)


@pytest.mark.long
def test_copies_of_a_secret_are_not_shown(aws: LocalAws, checkout: Checkout, caplog: pytest.LogCaptureFixture) -> None:
    repository = checkout("copied")
    repository.commit()
    path = configuration(repository)
    stack = json.loads(path.read_text(encoding="utf-8"))
    name = "/kinesis-efo/copied"
    stack["resource"].setdefault("aws_ssm_parameter", {}).update(
        secret={"name": f"{name}/secret", "type": "SecureString", "value": "hunter2-of-the-lake"},
        copy={"name": f"{name}/copy", "type": "String", "value": "x", "description": "hunter2-of-the-lake"},
    )
    path.write_text(json.dumps(stack), encoding="utf-8")
    planner, deployment = repository.planner(aws), deployment_of(repository.environment)
    planner.plan(deployment, "one", repository.plans)
    bundle = repository.plans / repository.stack
    assert "aws_ssm_parameter.copy" in (bundle / "plan.txt").read_text(encoding="utf-8")
    with caplog.at_level(logging.INFO):
        planner.apply(deployment, ["one"], repository.plans)
    assert "aws_ssm_parameter.copy" in caplog.text
    for each in (*bundle.glob("plan.*"), *bundle.glob("*.json")):
        assert b"hunter2" not in each.read_bytes() or each.suffix == ".tfplan", each
    assert "hunter2" not in caplog.text
