"""Plans that do the same have one digest; where they differ, names of attributes are told, and no values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_infra.pipeline.comparison import differences, digest

Json = dict[str, Any]


def changed(address: str, *actions: str, **change: Any) -> Json:
    return {"address": address, "type": address.split(".")[0], "change": {"actions": list(actions), **change}}


CREATED = changed("aws_kms_key.a", "create", before=None, after={"description": "secret"}, after_unknown={"arn": True})
UPDATED = changed("aws_x.b", "update", before={"hours": 24, "name": "b"}, after={"hours": 48, "name": "b"})


def plan(*changes: Json, **besides: Any) -> Json:
    return {"resource_changes": list(changes), **besides}


def test_order_and_what_is_not_changed_do_not_matter() -> None:
    kept = changed("aws_y.c", "no-op", before={"a": 1}, after={"a": 1})
    assert digest(plan(CREATED, UPDATED)) == digest(
        plan(UPDATED, kept, CREATED, timestamp="2026", terraform_version="1")
    )
    assert digest({}) == digest(plan(kept)) != digest(plan(CREATED))
    assert differences(plan(CREATED, kept), plan(CREATED)) == []


def test_what_changes_the_state_alone_counts_as_well() -> None:
    kept = changed("aws_y.c", "no-op", before={}, after={})
    moved = {**kept, "previous_address": "aws_y.b"}
    imported = changed("aws_y.c", "no-op", before={}, after={}, importing={"id": "c"})
    output = plan(output_changes={"arn": {"actions": ["create"], "before": None, "after": "x"}})
    assert len({digest(each) for each in (plan(kept), plan(moved), plan(imported), output)}) == 4
    assert differences(plan(), output) == ["output.arn: create, which was not shown"]


def test_differences_name_what_differs_and_tell_no_value() -> None:
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


def test_what_only_aws_knows_yet_is_known_by_what_it_refers_to() -> None:
    def consumer(stream: str, *, unknown: bool = True) -> Json:
        values: Json = {} if unknown else {"stream_arn": "arn:1"}
        change = changed("aws_kinesis_stream_consumer.a[0]", "create", before=None, after=values)
        change["change"]["after_unknown"] = {
            "arn": True,
            "stream_arn": unknown,
            "tags": {},
            "statement": [{"x": unknown}],
        }
        expressions = {
            "stream_arn": {"references": [f"aws_kinesis_stream.{stream}.arn"]},
            "statement": [{"x": {"references": [stream]}}],
            "name": {"constant_value": stream},
        }
        resources = [{"address": "aws_kinesis_stream_consumer.a", "expressions": expressions}]
        return plan(change, configuration={"root_module": {"resources": resources}})

    assert differences(consumer("one"), consumer("other")) == [
        "aws_kinesis_stream_consumer.a[0]: create with other values of statement, stream_arn"
    ]
    assert digest(consumer("one")) == digest(consumer("one")) != digest(consumer("other"))
    # What is known is compared by its value.
    assert digest(consumer("one", unknown=False)) == digest(consumer("other", unknown=False))


def test_each_object_that_a_failed_replacement_left_behind_counts() -> None:
    left = [{**changed("aws_x.b", "delete", before={"id": each}, after=None), "deposed": each} for each in ("1", "2")]
    assert differences(plan(left[0]), plan(*left)) == ["aws_x.b (deposed 2): delete, which was not shown"]
    assert differences(plan(left[1]), plan(*left)) == ["aws_x.b (deposed 1): delete, which was not shown"]


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=4)
CHANGES = st.builds(
    lambda name, actions, after: changed(f"aws_x.{name}", *actions, before=None, after=after),
    st.sampled_from("abc"),
    st.sampled_from([("create",), ("update",), ("delete",), ("no-op",)]),
    st.dictionaries(st.sampled_from("xyz"), VALUES),
)
PLANS = st.lists(CHANGES, unique_by=lambda each: each["address"], max_size=3).map(lambda changes: plan(*changes))


@given(PLANS, PLANS)
def test_two_plans_have_one_digest_if_and_only_if_nothing_differs(one: Json, other: Json) -> None:
    assert (digest(one) == digest(other)) is (differences(one, other) == [])
