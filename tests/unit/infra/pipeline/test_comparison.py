"""Plans that do the same have one digest; where they differ, names of attributes are told, and no values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import PipelineError
from kinesis_efo_infra.pipeline.comparison import differences, digest, redacted, secrets, shown

Json = dict[str, Any]


def changed(address: str, *actions: str, **change: Any) -> Json:
    return {"address": address, "type": address.split(".")[0], "change": {"actions": list(actions), **change}}


CREATED = changed("aws_kms_key.a", "create", before=None, after={"description": "secret"}, after_unknown={"arn": True})
UPDATED = changed("aws_x.b", "update", before={"hours": 24, "name": "b"}, after={"hours": 48, "name": "b"})


def plan(*changes: Json, **besides: Any) -> Json:
    return {"resource_changes": list(changes), **besides}


def test_digest_ignores_order_and_unchanged_resources() -> None:
    kept = changed("aws_y.c", "no-op", before={"a": 1}, after={"a": 1})
    assert digest(plan(CREATED, UPDATED)) == digest(
        plan(UPDATED, kept, CREATED, timestamp="2026", terraform_version="1")
    )
    assert digest({}) == digest(plan(kept)) != digest(plan(CREATED))
    assert differences(plan(CREATED, kept), plan(CREATED)) == []


def test_digest_covers_changes_of_the_state_alone() -> None:
    kept = changed("aws_y.c", "no-op", before={}, after={})
    moved = {**kept, "previous_address": "aws_y.b"}
    imported = changed("aws_y.c", "no-op", before={}, after={}, importing={"id": "c"})
    output = plan(output_changes={"arn": {"actions": ["create"], "before": None, "after": "x"}})
    assert len({digest(each) for each in (plan(kept), plan(moved), plan(imported), output)}) == 4
    assert differences(plan(), output) == ["output.arn: create, which was not shown"]


def test_differences_name_attributes_and_no_values() -> None:
    other = changed("aws_x.b", "update", before={"hours": 24, "name": "b"}, after={"hours": 72, "name": "c"})
    replaced = changed("aws_x.b", "delete", "create", before={}, after={})
    assert differences(plan(CREATED, UPDATED), plan(other)) == [
        "aws_kms_key.a: create was shown, and would not be done",
        "aws_x.b: update with other values of hours, name",
    ]
    assert differences(plan(UPDATED), plan(replaced, CREATED)) == [
        "aws_kms_key.a: create, which was not shown",
        "aws_x.b: update was shown, and it would be delete and create",
    ]


KEY = "k" * 64


def unknown(body: Json, *, unknown: bool = True, at: str = "[0]", mode: str = "managed", **change: Any) -> Json:
    """A plan of consumers, as it is shown, whose `stream_arn` only AWS knows yet; and what the stack says of them."""
    made = changed(f"aws_x.a{at}", "create", before=None, after={} if unknown else {"stream_arn": "arn:1"}, **change)
    made |= {"mode": mode, "name": "a"}
    made["change"]["after_unknown"] = {"arn": True, "stream_arn": unknown, "tags": {}, "statement": [{"x": unknown}]}
    return shown(plan(made), {{"managed": "resource", "data": "data"}[mode]: {"aws_x": {"a": body}}}, KEY)


BODY: Json = {"stream_arn": "${aws_s.one.arn}", "statement": {"x": "${aws_s.one.id}"}, "name": "one", "count": 1}


def test_unknown_values_are_compared_by_their_expressions() -> None:
    assert digest(unknown(BODY)) == digest(unknown({**BODY, "name": "other"})), "which is known"
    other = unknown({**BODY, "stream_arn": "${aws_s.other.arn}", "statement": []})
    assert differences(unknown(BODY), other) == ["aws_x.a[0]: create with other values of statement, stream_arn"]
    known = unknown(BODY, unknown=False)
    assert digest(known) == digest(unknown({**BODY, "stream_arn": "${aws_s.other.arn}"}, unknown=False))


@pytest.mark.parametrize(
    "said",
    [
        # All refer to the same, which is all that Terraform says of an expression.
        {"stream_arn": "${aws_s.one.arn}/*"},
        {"stream_arn": '${replace(aws_s.one.arn, "one", "prod")}'},
        {"for_each": {"a": "${aws_s.one.arn}"}, "stream_arn": "${each.value}"},
        {"for_each": {"a": "${aws_s.other.arn}"}, "stream_arn": "${each.value}"},
        {"for_each": "${aws_s.one}", "stream_arn": "${each.value}"},
        {"count": 2},
        {"count": "${length(aws_s.one.tags)}"},
    ],
)
@pytest.mark.parametrize("mode", ["managed", "data"])
def test_digest_covers_whatever_decides_what_is_applied(said: Json, mode: str) -> None:
    others = [{"for_each": {"a": "${aws_s.third.arn}"}, "stream_arn": "${each.value}"}, {}]
    plain = [unknown({**BODY, **each}, mode=mode) for each in others]
    assert digest(unknown({**BODY, **said}, mode=mode)) not in {digest(each) for each in plain}


def test_unknown_outputs_are_compared_by_their_expressions() -> None:
    def output(value: str, *, secret: bool = False) -> Json:
        change = {"actions": ["create"], "before": None, "after_unknown": True, "after_sensitive": secret}
        stack = {"output": {"x": {"value": value}}}
        return shown(plan(output_changes={"x": change}), stack, KEY)

    assert digest(output("${aws_x.a.arn}")) != digest(output("${aws_x.a.arn}/*"))
    assert "aws_x.a.id" not in json.dumps(output("${aws_x.a.id}", secret=True))


def test_unknown_part_of_a_plan_is_an_error() -> None:
    for change in ({"ephemeral": True}, {"actions_after": []}):
        with pytest.raises(PipelineError, match=rf"aws_x\.b: its plan has {next(iter(change))}, which this version"):
            shown(plan(changed("aws_x.b", "update", **change)), {}, KEY)
    with pytest.raises(PipelineError, match=r"aws_x\.b: its plan has trigger, which"):
        shown(plan({**UPDATED, "trigger": {}}), {}, KEY)
    with pytest.raises(PipelineError, match=r"aws_kms_key\.a: its plan has values that are not in the stack"):
        shown(plan(CREATED), {}, KEY)


def test_secrets_of_a_plan_become_keyed_hashes() -> None:
    def secret(value: Any, key: str = KEY) -> Json:
        marks = {"value": True, "block": [{"password": True}], "tags": {}}
        before = {"value": "hunter1", "block": [{"password": "hunter2", "user": "me"}], "tags": {"a": "b"}}
        sensitive = {"before_sensitive": marks, "after_sensitive": marks}
        output = {"before": value, "after": "hunter4", "after_sensitive": True, "before_sensitive": True}
        return shown(
            plan(
                changed(
                    "aws_x.a", "update", before=before, after={**before, "value": value}, after_unknown={}, **sensitive
                ),
                output_changes={"x": {"actions": ["update"], **output}},
                prior_state={"values": before},
                planned_values=before,
                resource_drift=[before],
                variables={"x": {"value": value}},
                configuration={"root_module": {"resources": [{"expressions": {"value": {"constant_value": value}}}]}},
            ),
            {},
            key,
        )

    one = secret("hunter3")
    assert "hunter" not in json.dumps(one)
    before, after = (one["resource_changes"][0]["change"][when] for when in ("before", "after"))
    assert (after["block"][0]["user"], after["tags"]) == ("me", {"a": "b"})
    assert digest(one) == digest(secret("hunter3"))
    assert differences(one, secret("hunter4")) == [
        "aws_x.a: update with other values of value",
        "output.x: update with other values of before",
    ]
    assert digest(one) != digest(secret("hunter3", "another key")), "without the key, no guess can be tried"
    # What is not changed is told as not changed, and what is alike elsewhere is not.
    kept = secret("hunter1")["resource_changes"][0]["change"]
    assert kept["before"]["value"] == kept["after"]["value"]
    assert len({before["value"], after["value"], before["block"][0]["password"]}) == 3


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=4)
CHANGES = st.builds(
    lambda name, actions, after: changed(f"aws_x.{name}", *actions, before=None, after=after),
    st.sampled_from("abc"),
    st.sampled_from([("create",), ("update",), ("delete",), ("no-op",)]),
    st.dictionaries(st.sampled_from("xyz"), VALUES),
)
PLANS = st.lists(CHANGES, unique_by=lambda each: each["address"], max_size=3).map(lambda changes: plan(*changes))


@given(PLANS, PLANS)
def test_plans_share_a_digest_only_without_differences(one: Json, other: Json) -> None:
    assert (digest(one) == digest(other)) is (differences(one, other) == [])


SECRET = 'pa"ss-of-the-database'


def parameter(kind: str, value: str) -> Json:
    body = {"type": kind, "value": value, "name": "p"}
    marks = {"before_sensitive": {"value": True}, "after_sensitive": {"value": True}}
    return changed("aws_ssm_parameter.p", "no-op", before=body, after=body, **marks)


SHOWN = {"mode": "managed", **changed("aws_x.y", "create", before=None, after={"tags": {"t": f"a {SECRET}"}})}
KNOWN = {"mode": "managed", **parameter("SecureString", SECRET)}
OF_DATA = {"root_module": {"resources": [{"values": {"v": SECRET}, "sensitive_values": {"v": True}}]}}


@pytest.mark.parametrize(
    "made",
    [
        plan(KNOWN, SHOWN),
        plan(KNOWN, output_changes={"p": {"actions": ["create"], "before": None, "after": {"deep": [SECRET]}}}),
        plan(SHOWN, prior_state={"values": OF_DATA}),
    ],
    ids=["resource", "output", "data source"],
)
def test_copies_of_a_secret_are_not_shown(made: Json) -> None:
    assert "database" not in json.dumps(shown(made, {}, "k"))
    text = f'+ p = "{SECRET}"  # or {json.dumps(SECRET)}'
    assert redacted(text, secrets(made)) == '+ p = "(sensitive value)"  # or "(sensitive value)"'


def test_lines_of_a_secret_are_not_shown() -> None:
    made = plan(parameter("SecureString", "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n"))
    assert "MIIE" not in redacted("<<-EOT\n    MIIEvQIBADANBgkqhkiG9w0\nEOT", secrets(made))


def test_values_of_plain_parameters_are_shown() -> None:
    assert secrets(plan(parameter("String", "arn:aws:kinesis:eu-west-1:1:stream/x"))) == []
