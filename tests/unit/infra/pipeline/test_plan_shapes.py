"""No plan that Terraform documents ends a step with a traceback."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

from hypothesis import given
from hypothesis import strategies as st

from infra.errors import InfraError
from kinesis_efo_infra.gate import allowed, granted
from kinesis_efo_infra.gate.scan import scannable
from kinesis_efo_infra.pipeline import bundle, comparison, cost, foreign, limits, report
from kinesis_efo_infra.pipeline.deployment import Deployment
from kinesis_efo_infra.pipeline.prices import prices_of

Json = dict[str, Any]
TEXTS = st.sampled_from(["", "a", "arn:aws:kinesis:eu-west-1:111122223333:stream/a", "${x}", "{}"])
SCALARS = st.none() | st.booleans() | st.integers(0, 9) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2), max_leaves=4
)
# What the provider's schema says: an attribute has one type, and may always be null.
MODES = st.fixed_dictionaries({"stream_mode": st.sampled_from(["ON_DEMAND", "PROVISIONED", None])})
ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(
        ["name", "arn", "stream_arn", "kms_key_id", "policy", "role", "permissions_boundary", "tier"], TEXTS
    ),
    **dict.fromkeys(["shard_count", "retention_period"], st.integers(0, 99)),
    **dict.fromkeys(["shard_level_metrics", "alarm_actions"], st.lists(TEXTS, max_size=2)),
    "tags": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "stream_mode_details": st.lists(MODES, max_size=1),
    "deletion_protection_enabled": st.booleans(),
    "ingress": st.lists(st.fixed_dictionaries({"cidr_blocks": st.lists(TEXTS, max_size=1)}), max_size=2),
    "other": VALUES,
}
OBJECTS = st.fixed_dictionaries({"id": TEXTS}, optional={name: st.none() | each for name, each in ATTRIBUTES.items()})
ACTIONS = st.sampled_from(
    ["no-op", "create", "read", "update", "delete,create", "create,delete", "delete", "forget", "create,forget"]
)


@st.composite
def changes(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Json:
    """A change: absent, null and false stand for each other, and marks have the form of what they mark."""
    actions = draw(ACTIONS).split(",")
    before = None if actions == ["create"] else draw(values)
    after = None if actions in (["delete"], ["forget"]) else draw(values)
    marks = [dict.fromkeys(each, draw(st.booleans())) if isinstance(each, dict) else False for each in (before, after)]
    unknown = draw(st.sampled_from([{}, {"name": True}, {"tags": {}}, {"ingress": [{}]}, False]))
    found = {"actions": actions, "before": before, "after": after, "after_unknown": unknown}
    found |= dict(zip(("before_sensitive", "after_sensitive"), marks, strict=True))
    more = {
        "importing": st.just({"id": "a"}),
        "replace_paths": st.just([["name"], ["tags", 0]]),
        "generated_config": TEXTS,
    }
    found |= draw(st.fixed_dictionaries({}, optional=more))
    return {name: each for name, each in found.items() if each is not None or draw(st.booleans())}


@st.composite
def resources(draw: st.DrawFn) -> Json:
    kind, at = draw(st.sampled_from(sorted(allowed.RESOURCES))), draw(st.sampled_from(["", "[0]", '["x"]']))
    found = {"address": f"{kind}.{draw(st.sampled_from('ab'))}{at}", "mode": "managed", "type": kind, "name": "a"}
    found |= {"provider_name": "registry.terraform.io/hashicorp/aws", "change": draw(changes(OBJECTS))}
    return found | draw(st.fixed_dictionaries({}, optional={"deposed": st.just("0a"), "previous_address": TEXTS}))


@st.composite
def plans(draw: st.DrawFn) -> Json:
    changed = draw(st.lists(resources(), max_size=3))
    arn = draw(st.sampled_from([{}, {"constant_value": "a"}, {"references": ["aws_kinesis_stream.a.arn"]}]))
    declared = [
        {"address": each["address"], "type": each["type"], "expressions": {"stream_arn": arn}} for each in changed
    ]
    values = [{"mode": "managed", "type": each["type"], "values": draw(OBJECTS)} for each in changed]
    parts = {
        "resource_changes": st.just(changed),
        "resource_drift": st.lists(resources(), max_size=2),
        "output_changes": st.dictionaries(st.sampled_from("xy"), changes(VALUES), max_size=2),
        "configuration": st.just({"root_module": {"resources": declared}}),
        "prior_state": st.just({"values": {"root_module": {"resources": values}}}),
    }
    return draw(st.fixed_dictionaries({}, optional=parts))


@given(plans(), plans())
def test_no_plan_shape_ends_in_a_traceback(plan: Json, other: Json) -> None:
    resources = {kind: {"a": {"name": "a"}, "b": {}} for kind in allowed.RESOURCES}
    stack = {"resource": resources, "output": {"x": {"value": "a"}}}
    named = granted.Named("1", frozenset(), frozenset())
    deployment = Deployment("dev", "dev", "s", "eu-west-1", "1", "b", "k", "r", named)
    for each in (plan, other):
        with suppress(InfraError):
            allowed.in_plan(each)
            granted.in_plan(each, deployment.named)
    shown, against = (comparison.shown(each, stack, "k") for each in (plan, other))
    digest, counted = comparison.digest(shown), bundle.Changes.of(plan)
    meta = bundle.Meta("dev", "c", "d", digest, "l", 1, "t", any_changes=True, changes=counted)
    with TemporaryDirectory() as directory:
        path = Path(directory)
        (path / bundle.PLAN_JSON).write_text(json.dumps(shown), encoding="utf-8")
        bundle.write_meta(path, meta)
        read = bundle.read_plan(path)
    comparison.differences(read, against)
    region, prices = "eu-west-1", prices_of("eu-west-1")
    assert prices
    kinesis = MagicMock()
    kinesis.describe_stream_summary.return_value = {"StreamDescriptionSummary": {}}
    told = (
        *limits.refusals(plan, ["aws_dynamodb_table.a"]), *limits.of_another_account(plan, ["1"]), *limits.notes(read),
        *limits.applications_to_stop(plan), *foreign.beyond_quota(kinesis, deployment, plan),
        *cost.table(cost.changes(plan), region, prices, advantage=False), *cost.idle(plan, region, prices, advantage=False),
    )  # fmt: skip
    foreign.as_planned(deployment, plan)
    scannable(read, stack)
    report.comment([report.Planned("s", replace(meta, notes=told), "text", read)], [], all_planned=True)


def test_an_output_that_becomes_known_is_commented() -> None:
    output = {"actions": ["update"], "before": ["a"], "after": ["a", "b"], "after_unknown": False}
    assert comparison.told({"output_changes": {"arns": output}}) == ["output.arns: update"]


def test_partly_unknown_output_is_compared_by_declaration() -> None:
    def shown(value: str) -> Json:
        change = {"actions": ["create"], "before": None, "after": {"a": "1"}, "after_unknown": {"b": True}}
        return comparison.shown({"output_changes": {"x": change}}, {"output": {"x": {"value": {"b": value}}}}, "k")

    assert comparison.differences(shown("${aws_x.a.arn}"), shown("${aws_x.b.arn}"))


def test_known_nested_blocks_do_not_hide_a_refusal() -> None:
    mode = [{"stream_mode": "PROVISIONED"}]
    before, after = ({"shard_count": count, "stream_mode_details": mode} for count in (2, 9))
    change = {"actions": ["update"], "before": before, "after": after, "after_unknown": {"stream_mode_details": [{}]}}
    plan = {"resource_changes": [{"address": "aws_kinesis_stream.a", "type": "aws_kinesis_stream", "change": change}]}
    assert len(limits.refusals(plan)) == 1
    assert limits.notes(plan) == []
