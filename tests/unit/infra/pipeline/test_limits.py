"""What AWS would refuse half way is refused before, and what loses records or stops jobs is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinesis_efo_infra.pipeline.limits import applications_to_stop, notes, of_another_account, refusals

APPLICATION = {
    "id": "00abc",
    "release_label": "emr-spark-8.0.0",
    "maximum_capacity": [{"cpu": "64 vCPU"}],
    "tags": {"owner": "me"},
    "tags_all": {"owner": "me"},
}


def plan(kind: str, before: dict[str, Any], after: dict[str, Any], *actions: str, **unknown: bool) -> dict[str, Any]:
    change = {"actions": list(actions or ["update"]), "before": before, "after": after, "after_unknown": unknown}
    return {"resource_changes": [{"address": f"{kind}.x", "type": kind, "change": change}]}


def shards(before: int | None, after: int | None, modes: tuple[str, str] = ("PROVISIONED",) * 2) -> dict[str, Any]:  # type: ignore[assignment]
    values = [
        {"shard_count": count, "stream_mode_details": [{"stream_mode": mode}]}
        for count, mode in zip((before, after), modes, strict=True)
    ]
    return plan("aws_kinesis_stream", *values)


def retention(before: int, after: int) -> dict[str, Any]:
    return plan("aws_kinesis_stream", {"retention_period": before}, {"retention_period": after})


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 8), (4, 2), (5, 3), (1, 2), (5, 10)])
def test_up_to_twice_and_down_to_half_as_many_shards_are_allowed(before: int, after: int) -> None:
    assert refusals(shards(before, after)) == []


@pytest.mark.parametrize(
    ("before", "after", "way"),
    [(4, 9, "8, then 9"), (4, 20, "8, then 16, then 20"), (5, 2, "3, then 2"), (16, 3, "8, then 4, then 3")],
)
def test_more_is_refused_with_the_way_there(before: int, after: int, way: str) -> None:
    (refused,) = refusals(shards(before, after))
    assert refused.startswith(f"aws_kinesis_stream.x: from {before} to {after} shards: ")
    assert f"deploy {way} (at most ten" in refused


def test_a_new_stream_and_one_of_another_mode_have_no_number_to_compare_with() -> None:
    assert refusals(shards(None, 20, ("ON_DEMAND", "PROVISIONED"))) == []
    assert refusals(shards(20, None, ("PROVISIONED", "ON_DEMAND"))) == []
    assert refusals(plan("aws_kinesis_stream", {}, {"shard_count": 20}, "create")) == []
    (_, note) = notes(shards(None, 20, ("ON_DEMAND", "PROVISIONED")))
    assert "becomes provisioned: AWS refuses `shards` that are more than double" in note


def test_retention_that_falls_is_told() -> None:
    (note,) = notes(retention(168, 24))
    assert note == "aws_kinesis_stream.x: retention falls from 168 to 24 hours: records that are older are lost"
    assert notes(retention(24, 168)) == []


def importing(
    kind: str, before: dict[str, Any], after: dict[str, Any], *actions: str, **unknown: bool
) -> dict[str, Any]:
    made = plan(kind, before, after, *actions, **unknown)
    made["resource_changes"][0]["change"]["importing"] = {"id": "old"}
    return made


def test_what_an_import_changes_is_told() -> None:
    before = {"name": "old", "retention_period": 24, "kms_key_id": None, "tags": {}, "enforce_consumer_deletion": None}
    after = {**before, "retention_period": 48, "tags": {"owner": "me"}, "enforce_consumer_deletion": False}
    # The key is new: its ARN is not known yet.
    encrypted = importing("aws_kinesis_stream", before, after, kms_key_id=True, tags_all=True)
    assert notes(encrypted) == [
        "aws_kinesis_stream.x: exists and is imported, which changes kms_key_id, retention_period"
    ]
    known = {**after, "kms_key_id": "new"}
    (note,) = notes(importing("aws_kinesis_stream", before, known))
    assert note.endswith("changes kms_key_id, retention_period"), "nothing was encrypted with another key before"
    former = {**before, "encryption_type": "KMS", "kms_key_id": "former"}
    (note, of_key) = notes(importing("aws_kinesis_stream", former, {**known, "encryption_type": "KMS"}))
    assert note.endswith("changes kms_key_id, retention_period")
    assert "its key changes. Readers need kms:Decrypt with the former key, former, for 48 hours after" in of_key
    (note,) = notes(importing("aws_kinesis_stream_consumer", before, before, "no-op"))
    assert note == "aws_kinesis_stream_consumer.x: exists and is imported, which changes nothing but tags, if anything"
    assert refusals(encrypted) == []


@pytest.mark.parametrize("state", ["imported", "in the state already"])
def test_what_is_imported_is_never_replaced(state: str) -> None:
    before, after = {"name": "old", "hash_key": "id", "range_key": "n"}, {"name": "old", "hash_key": "leaseKey"}
    make = importing if state == "imported" else plan
    replaced = make("aws_dynamodb_table", before, after, "delete", "create")
    (refused,) = refusals(replaced, ["aws_dynamodb_table.x"])
    assert refused.startswith(
        "aws_dynamodb_table.x exists, is to be imported and would be replaced (hash_key is 'id' and "
    )
    assert "not 'leaseKey'; range_key is 'n' and not None): what is in it would be lost" in refused
    (note,) = notes(replaced)
    assert "is destroyed" in note, "and nothing of an import"


def test_what_is_declared_may_be_replaced_where_terraform_allows_it() -> None:
    assert refusals(plan("aws_kinesis_stream", {"name": "a"}, {"name": "b"}, "delete", "create")) == []


def test_a_table_of_a_kcl_3_is_not_imported() -> None:
    index = [{"name": "LeaseOwnerToLeaseKeyIndex"}]
    (refused,) = refusals(importing("aws_dynamodb_table", {"global_secondary_index": index}, {}))
    assert refused.startswith(
        "aws_dynamodb_table.x is imported and has a global secondary index, as the lease table of a KCL 3"
    )


@pytest.mark.parametrize(
    ("change", "unknown", "named"),
    [
        ({"release_label": "emr-spark-8.1.0"}, {}, "release_label"),
        ({"maximum_capacity": [{"cpu": "8 vCPU"}], "tags": {}}, {}, "maximum_capacity"),
        ({}, {"network_configuration": True}, ""),
        ({"network_configuration": [{"subnet_ids": ["subnet-1"]}]}, {}, "network_configuration"),
    ],
)
def test_an_application_of_emr_serverless_is_stopped_for_a_change(
    change: dict[str, Any], unknown: dict[str, bool], named: str
) -> None:
    changed = plan("aws_emrserverless_application", APPLICATION, {**APPLICATION, **change}, **unknown)
    assert applications_to_stop(changed) == (["00abc"] if named else [])
    told = notes(changed)
    assert len(told) == bool(named)
    assert all(f"aws_emrserverless_application.x: {named}: EMR changes an application only" in each for each in told)


def test_not_for_tags_nor_where_it_is_created_or_replaced() -> None:
    kind, tagged = "aws_emrserverless_application", {**APPLICATION, "tags": {}, "tags_all": {}}
    other = {**APPLICATION, "release_label": "emr-spark-8.1.0"}
    for harmless in (
        plan(kind, APPLICATION, tagged),
        plan(kind, {}, APPLICATION, "create"),
        plan(kind, APPLICATION, other, "delete", "create"),
        {},
    ):
        assert (applications_to_stop(harmless), notes(harmless), refusals(harmless)) == ([], [], [])


@pytest.mark.parametrize("actions", [("delete",), ("delete", "create"), ("create", "delete")])
def test_what_is_protected_is_not_destroyed(actions: tuple[str, ...]) -> None:
    protected = {"name": "leases", "deletion_protection_enabled": True}
    (refused,) = refusals(plan("aws_dynamodb_table", protected, {}, *actions))
    assert refused.startswith("aws_dynamodb_table.x: table leases is protected from deletion, and would be destroyed")
    assert refusals(plan("aws_dynamodb_table", {**protected, "deletion_protection_enabled": False}, {}, *actions)) == []
    assert refusals(plan("aws_dynamodb_table", protected, protected)) == []


OURS, THEIRS = "111122223333", "444455556666"


def on_state(*accounts: str, mode: str = "managed", drifted: bool = False) -> dict[str, Any]:
    """A plan on a state with a stream of each account, and a role policy, which has no ARN."""
    held = [{"arn": f"arn:aws:kinesis:eu-west-1:{account}:stream/orders"} for account in accounts]
    held += [{"arn": "arn:aws:s3:::lake"}, {"policy": "{}"}]
    if drifted:
        return {"resource_drift": [{"change": {"actions": ["delete"], "before": each}} for each in held]}
    resources = [{"mode": mode, "values": each} for each in held]
    return {"prior_state": {"values": {"root_module": {"resources": resources}}}}


@pytest.mark.parametrize("drifted", [True, False])
def test_the_state_of_another_account_s_environment_is_not_taken_over(drifted: bool) -> None:
    (refused,) = of_another_account(on_state(THEIRS, drifted=drifted), [OURS])
    assert refused.startswith(f"its state is that of an environment in account {THEIRS}: use another state_bucket")
    assert of_another_account(on_state(THEIRS, drifted=drifted), [OURS, THEIRS]) == [], "the settings name it"
    # A consumer has the account of its stream.
    assert of_another_account(on_state(OURS, THEIRS, drifted=drifted), [OURS]) == []


def test_an_empty_state_is_nobody_s() -> None:
    assert of_another_account({}, [OURS]) == []
    assert of_another_account(on_state(), [OURS]) == []
    assert of_another_account(on_state(THEIRS, mode="data"), [OURS]) == []


def allowing(*actions: str, effect: str = "Allow") -> str:
    statement = {
        "Effect": effect,
        "Action": list(actions),
        "Resource": ["arn:aws:kinesis:eu-west-1:111122223333:stream/o"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


LISTING, GETTING = allowing("kinesis:ListShards"), allowing("kinesis:GetRecords", "kinesis:ListShards")


@pytest.mark.parametrize("kind", ["aws_iam_policy", "aws_iam_role_policy", "aws_kinesis_resource_policy"])
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (LISTING, GETTING, True),
        (LISTING, allowing("kinesis:*"), True),
        (GETTING, LISTING, False),
        (GETTING, allowing("kinesis:GetRecords"), False),
        (LISTING, allowing("kinesis:GetRecords", effect="Deny"), False),
        (LISTING, allowing("kinesis:DescribeStreamSummary"), False),
        (LISTING, "no policy", False),
    ],
    ids=["named", "by a pattern", "taken away", "allowed before", "denied", "something else", "unreadable"],
)
def test_who_may_get_records_from_now_on_is_told(kind: str, before: str, after: str, said: bool) -> None:
    told = (
        f"{kind}.x: allows GetRecords from now on: a query that is behind another one of the same program reads alone "
        "by it until it has caught up; `polling: false` takes it away"
    )
    assert notes(plan(kind, {"policy": before}, {"policy": after})) == [told] * said
    assert notes(plan(kind, {}, {"policy": after}, "create")) == [], "what is new says so itself"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"encryption_type": "KMS", "kms_key_id": "new"}, "its key changes"),
        ({"encryption_type": "KMS"}, "its key changes"),
        ({"encryption_type": "NONE"}, "is no longer encrypted: new records are stored in plain text"),
        ({"encryption_type": "KMS", "kms_key_id": "old"}, None),
    ],
    ids=["another key", "a new key of the plan", "none", "same key"],
)
def test_stream_key_change_names_the_former_key(after: dict[str, str], said: str | None) -> None:
    before = {"encryption_type": "KMS", "kms_key_id": "old", "retention_period": 48}
    told = notes(plan("aws_kinesis_stream", before, {"retention_period": 48, **after}))
    assert len(told) == (said is not None)
    for note in told:
        assert note == (
            f"aws_kinesis_stream.x: {said}. Readers need kms:Decrypt with the former key, old, for 48 hours after this is applied, "
            "or a query that is behind fails: list it under `former_keys` of the stream, and keep it, until then"
        )


def test_stream_key_change_counts_the_longer_retention() -> None:
    before = {"encryption_type": "KMS", "kms_key_id": "old", "retention_period": 24}
    after = {**before, "kms_key_id": "new", "retention_period": 168}
    assert "for 168 hours after" in notes(plan("aws_kinesis_stream", before, after))[0]
    # Of a sensitive one, a plan that is shown has an HMAC.
    assert "for 168 hours after" in notes(plan("aws_kinesis_stream", {**before, "retention_period": "hmac"}, after))[0]


@pytest.mark.parametrize(("kind", "former"), [("NONE", ""), ("KMS", "alias/aws/kinesis")])
def test_no_note_where_readers_needed_no_permission(kind: str, former: str) -> None:
    encrypted = {"encryption_type": "KMS", "kms_key_id": "new"}
    assert notes(plan("aws_kinesis_stream", {"encryption_type": kind, "kms_key_id": former}, encrypted)) == []


def deleting(*plans: dict[str, Any]) -> dict[str, Any]:
    return {"resource_changes": [change for each in plans for change in each["resource_changes"]]}


def test_former_key_is_not_destroyed_with_the_change() -> None:
    before = {"encryption_type": "KMS", "kms_key_id": "old", "retention_period": 48}
    changed = plan("aws_kinesis_stream", before, {**before, "kms_key_id": "new"})
    gone = plan("aws_kms_key", {"arn": "old"}, {}, "delete")
    (refused,) = refusals(deleting(changed, gone))
    assert refused.startswith(
        "aws_kinesis_stream.x: its key changes, and aws_kms_key.x, with which its records of 48 hours are encrypted, would be"
    )
    assert "List it (`own`) under `former_keys`" in refused
    assert refusals(changed) == []


def test_destroyed_key_is_noted_once() -> None:
    gone = plan("aws_kms_key", {"arn": "old"}, {}, "delete")
    (note,) = notes(gone)
    assert note.startswith("aws_kms_key.x: key old is scheduled for deletion: from then on, nothing that it encrypts")
    stream = plan("aws_kinesis_stream", {"name": "a", "encryption_type": "KMS", "kms_key_id": "old"}, {}, "delete")
    (note,) = notes(deleting(stream, gone))
    assert note.startswith("aws_kinesis_stream.x: stream a is destroyed, and its records are lost")


def test_a_policy_that_only_aws_knows_yet_says_nothing() -> None:
    assert notes(plan("aws_iam_policy", {"policy": LISTING}, {}, policy=True)) == []


def test_a_mode_that_changes_says_that_aws_allows_that_twice_a_day() -> None:
    for modes in (("PROVISIONED", "ON_DEMAND"), ("ON_DEMAND", "PROVISIONED")):
        assert any(
            "changes its mode, which AWS allows twice in 24 hours" in each for each in notes(shards(4, 4, modes))
        )
    assert notes(shards(4, 8)) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("aws_kinesis_stream", "stream orders is destroyed, and its records are lost: jobs that read or write it fail"),
        ("aws_kinesis_stream_consumer", "consumer orders is deregistered: a job that reads with it fails"),
        ("aws_dynamodb_table", "table orders is destroyed, which says how far its application has read"),
    ],
)
def test_what_a_job_reads_is_not_destroyed_without_a_word(kind: str, said: str) -> None:
    (destroyed,) = notes(plan(kind, {"name": "orders"}, {}, "delete"))
    (replaced,) = notes(plan(kind, {"name": "orders"}, {"name": "orders"}, "delete", "create"))
    assert destroyed.startswith(f"{kind}.x: {said}")
    assert replaced == f"{destroyed}. One of the same name is made, with a new ARN"
    assert notes(plan("aws_iam_policy", {"name": "orders"}, {}, "delete")) == []


def test_a_stream_that_was_deleted_by_hand_is_not_made_anew_without_a_word() -> None:
    made = plan("aws_kinesis_stream", {}, {"name": "orders"}, "create")
    gone = {"address": "aws_kinesis_stream.x", "type": "aws_kinesis_stream",
            "change": {"actions": ["delete"], "before": {"name": "orders"}}}  # fmt: skip
    (note,) = notes({**made, "resource_drift": [gone]})
    assert note.startswith(
        "aws_kinesis_stream.x: stream orders was deleted without Terraform, with its records and consumers"
    )
    changed = {**gone, "change": {"actions": ["update"], "before": {"name": "orders"}, "after": {}}}
    assert notes({**made, "resource_drift": [changed, {**gone, "type": "aws_iam_role"}]}) == []
