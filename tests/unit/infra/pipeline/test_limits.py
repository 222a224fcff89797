"""What AWS would refuse half way is refused before, and what loses records or stops jobs is told."""

import json
import re
from typing import Any

import pytest
import yaml

from kinesis_efo_infra.pipeline.limits import applications_to_stop, notes, of_another_account, refusals
from tests.unit.infra.conftest import rows

ALLOW = '{"Version": "2012-10-17", "Statement": [{"Effect": "%s", "Resource": ["*"], "Action": %s}]}'
WORDS = {
    "PROV": "stream_mode_details: [{stream_mode: PROVISIONED}]",
    "DEMAND": "stream_mode_details: [{stream_mode: ON_DEMAND}]",
    "KEYED": "retention_period: 48, encryption_type: KMS, kms_key_id: old",
    "APP": "id: 00abc, release_label: emr-spark-8.0.0, maximum_capacity: [{cpu: 64 vCPU}], tags: {owner: me}, tags_all: {owner: me}",
    "LISTING": f"policy: '{ALLOW % ('Allow', json.dumps(['kinesis:ListShards']))}'",
    "GETTING": f"policy: '{ALLOW % ('Allow', json.dumps(['kinesis:GetRecords', 'kinesis:ListShards']))}'",
    "PATTERN": f"policy: '{ALLOW % ('Allow', json.dumps(['kinesis:*']))}'",
    "DENYING": f"policy: '{ALLOW % ('Deny', json.dumps(['kinesis:GetRecords']))}'",
    "STREAM": "aws_kinesis_stream",
    "TABLE": "aws_dynamodb_table",
    "JOBS": "aws_emrserverless_application",
    "GETS": "allows GetRecords from now on: a query that is behind another one of the same program reads alone "
    "by it until it has caught up; `polling: false` takes it away$",
    "FORMER": "Readers need kms:Decrypt with the former key, old, for 48 hours after this is applied, or a query that is behind "
    "fails: list it under `former_keys` of the stream, and keep it, until then$",
}


def worded(text: str) -> str:
    return re.sub(r"\b[A-Z]{3,}\b", lambda found: WORDS.get(found[0], found[0]), text)


def change(kind: str, before: dict[str, Any], after: dict[str, Any], actions: str = "update") -> dict[str, Any]:
    """A changed resource; `importing` and `unknown` may come with the actions, and a star in their names marks what is unknown."""
    done, *unknown = actions.split(" *")
    importing = {"importing": {"id": "old"}} if "import" in done else {}
    known = [each for each in done.split() if each != "import"] or ["update"]
    found = {"actions": known, "before": before, "after": after, "after_unknown": dict.fromkeys(unknown, True)}
    return {"address": f"{kind}.x", "type": kind, "change": {**found, **importing}}


def plan(text: str) -> dict[str, Any]:
    """A plan of changes separated by semicolons: kind, what was, an arrow with the actions and what will be."""
    changes = []
    for each in worded(text).split("; "):
        kind, _, values = each.partition(" ")
        before, actions, after = re.fullmatch(r"(\{.*\}) -(.*)-> (\{.*\})", values).groups()  # type: ignore[union-attr]
        changes.append(change(kind, yaml.safe_load(before), yaml.safe_load(after), actions.strip() or "update"))
    return {"resource_changes": changes}


REFUSED = r"""
# Shards double or halve at once.
STREAM {PROV, shard_count: 4} --> {PROV, shard_count: 20} => from 4 to 20 shards: .*deploy 8, then 16, then 20 \(
STREAM {PROV, shard_count: 5} --> {PROV, shard_count: 2} => from 5 to 2 shards: .*deploy 3, then 2 \(
STREAM {PROV, shard_count: 16} --> {PROV, shard_count: 3} => from 16 to 3 shards: .*deploy 8, then 4, then 3 \(
STREAM {PROV, shard_count: 4} --> {PROV, shard_count: 8} => none
STREAM {PROV, shard_count: 4} --> {PROV, shard_count: 2} => none
# A new stream and one of another mode have no number to compare with.
STREAM {DEMAND, shard_count: null} --> {PROV, shard_count: 20} => none
STREAM {PROV, shard_count: 20} --> {DEMAND, shard_count: null} => none
STREAM {} -create-> {shard_count: 20} => none
# An import never replaces; other things may be replaced where Terraform allows it.
STREAM {name: a} -delete create-> {name: b} => none
TABLE {global_secondary_index: [{name: LeaseOwnerToLeaseKeyIndex}]} -import-> {} => is imported and has a global secondary index, as the lease table of a KCL 3
TABLE {name: leases, deletion_protection_enabled: true} -delete-> {} => : table leases is protected from deletion, and would be destroyed
TABLE {name: leases, deletion_protection_enabled: true} -delete create-> {} => : table leases is protected from deletion
TABLE {name: leases, deletion_protection_enabled: false} -delete-> {} => none
TABLE {name: leases, deletion_protection_enabled: true} --> {name: leases, deletion_protection_enabled: true} => none
# A former key is not destroyed with the change.
STREAM {KEYED} --> {KEYED, kms_key_id: new}; aws_kms_key {arn: old} -delete-> {} => its key changes, and aws_kms_key.x, with which its records of 48 hours are encrypted, would be.*List it \(`own`\) under `former_keys`
STREAM {KEYED} --> {KEYED, kms_key_id: new} => none
"""


@pytest.mark.parametrize(("planned", "message"), rows(REFUSED))
def test_plan_that_aws_would_refuse_is_refused(planned: str, message: str) -> None:
    found = refusals(plan(planned))
    assert len(found) == (message != "none")
    assert all(re.search(rf"_\w+\.x.*{message}", each) for each in found), found


@pytest.mark.parametrize("actions", ["import delete create", "delete create"])
def test_imported_resource_is_never_replaced(actions: str) -> None:
    replaced = plan(f"TABLE {{name: old, hash_key: id, range_key: n}} -{actions}-> {{name: old, hash_key: leaseKey}}")
    (refused,) = refusals(replaced, ["aws_dynamodb_table.x"])
    assert refused.startswith(
        "aws_dynamodb_table.x exists, is to be imported and would be replaced (hash_key is 'id' and "
    )
    assert "not 'leaseKey'; range_key is 'n' and not None): what is in it would be lost" in refused
    (note,) = notes(replaced)
    assert "is destroyed" in note, "and nothing of an import"


NOTED = r"""
# A mode changes twice in 24 hours at most.
STREAM {PROV, shard_count: 4} --> {DEMAND, shard_count: 4} => changes its mode, which AWS allows twice in 24 hours
STREAM {DEMAND, shard_count: null} --> {PROV, shard_count: 20} => changes its mode, which AWS allows twice in 24 hours && becomes provisioned: AWS refuses `shards` that are more than double
STREAM {PROV, shard_count: 4} --> {PROV, shard_count: 8} => none
# Records may be lost.
STREAM {retention_period: 168} --> {retention_period: 24} => : retention falls from 168 to 24 hours: records that are older are lost$
STREAM {name: orders} -delete-> {} => : stream orders is destroyed, and its records are lost: jobs that read or write it fail
STREAM {name: orders} -delete create-> {name: orders} => : stream orders is destroyed, .* One of the same name is made, with a new ARN$
aws_kinesis_stream_consumer {name: orders} -delete-> {} => : consumer orders is deregistered: a job that reads with it fails
TABLE {name: orders} -delete-> {} => : table orders is destroyed, which says how far its application has read
aws_iam_policy {name: orders} -delete-> {} => none
# An import changes what is there; nothing was encrypted with another key before, unless it was with KMS.
STREAM {name: old, retention_period: 24, kms_key_id: null, tags: {}, enforce_consumer_deletion: null} -import *kms_key_id *tags_all-> {name: old, retention_period: 48, kms_key_id: null, tags: {owner: me}, enforce_consumer_deletion: false} => : exists and is imported, which changes kms_key_id, retention_period$
STREAM {retention_period: 24, kms_key_id: null} -import-> {retention_period: 48, kms_key_id: new} => : exists and is imported, which changes kms_key_id, retention_period$
STREAM {retention_period: 24, encryption_type: KMS, kms_key_id: former} -import-> {retention_period: 48, encryption_type: KMS, kms_key_id: new} => which changes kms_key_id, retention_period$ && its key changes. Readers need kms:Decrypt with the former key, former, for 48 hours after
aws_kinesis_stream_consumer {name: old} -import no-op-> {name: old} => : exists and is imported, which changes nothing but tags, if anything$
# EMR changes an application only while it is stopped.
JOBS {APP} --> {APP, release_label: emr-spark-8.1.0} => : release_label: EMR changes an application only
JOBS {APP} --> {APP, maximum_capacity: [{cpu: 8 vCPU}], tags: {}} => : maximum_capacity: EMR changes an application only
JOBS {APP} - *network_configuration-> {APP} => none
JOBS {APP} --> {APP, tags: {}, tags_all: {}} => none
JOBS {APP} -delete create-> {APP, release_label: emr-spark-8.1.0} => none
# Who may get records from now on; what is new says so itself, and only AWS knows some policies yet.
aws_iam_policy {LISTING} --> {GETTING} => : GETS
aws_kinesis_resource_policy {LISTING} --> {GETTING} => : GETS
aws_iam_policy {LISTING} --> {PATTERN} => : GETS
aws_iam_policy {GETTING} --> {LISTING} => none
aws_iam_policy {LISTING} --> {DENYING} => none
aws_iam_policy {} -create-> {GETTING} => none
aws_iam_policy {LISTING} - *policy-> {} => none
# Readers need the former key for the longer retention; the HMAC of a sensitive one is no number.
STREAM {KEYED} --> {KEYED, kms_key_id: new} => : its key changes. FORMER
STREAM {KEYED} --> {retention_period: 48, encryption_type: NONE} => : is no longer encrypted: new records are stored in plain text. FORMER
STREAM {KEYED} --> {KEYED} => none
STREAM {KEYED, retention_period: 24} --> {KEYED, kms_key_id: new, retention_period: 168} => for 168 hours after
STREAM {KEYED, retention_period: hmac} --> {KEYED, kms_key_id: new, retention_period: 168} => for 168 hours after
STREAM {encryption_type: NONE, kms_key_id: ''} --> {encryption_type: KMS, kms_key_id: new} => none
STREAM {encryption_type: KMS, kms_key_id: alias/aws/kinesis} --> {encryption_type: KMS, kms_key_id: new} => none
# A destroyed key is noted once.
aws_kms_key {arn: old} -delete-> {} => : key old is scheduled for deletion: from then on, nothing that it encrypts
STREAM {name: a, encryption_type: KMS, kms_key_id: old} -delete-> {}; aws_kms_key {arn: old} -delete-> {} => : stream a is destroyed, and its records are lost
"""


@pytest.mark.parametrize(("planned", "message"), rows(NOTED))
def test_plan_that_loses_or_stops_is_noted(planned: str, message: str) -> None:
    found = notes(plan(planned))
    expected = [] if message == "none" else worded(message).split(" && ")
    assert len(found) == len(expected), found
    assert all(re.search(rf"_\w+\.x.*{each}", note) for each, note in zip(expected, found, strict=True)), found
    assert applications_to_stop(plan(planned)) == ["00abc"] * ("EMR changes an application only" in message)
    if planned.startswith("JOBS") or " import" in planned:
        assert refusals(plan(planned)) == []


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
def test_state_of_another_account_is_refused(drifted: bool) -> None:
    (refused,) = of_another_account(on_state(THEIRS, drifted=drifted), [OURS])
    assert refused.startswith(f"its state is that of an environment in account {THEIRS}: use another state_bucket")
    assert of_another_account(on_state(THEIRS, drifted=drifted), [OURS, THEIRS]) == [], "the settings name it"
    # A consumer has the account of its stream.
    assert of_another_account(on_state(OURS, THEIRS, drifted=drifted), [OURS]) == []


def test_stream_deleted_by_hand_is_noted() -> None:
    made = plan("STREAM {} -create-> {name: orders}")
    gone = change("aws_kinesis_stream", {"name": "orders"}, {}, "delete")
    (note,) = notes({**made, "resource_drift": [gone]})
    assert note.startswith(
        "aws_kinesis_stream.x: stream orders was deleted without Terraform, with its records and consumers"
    )
    changed = change("aws_kinesis_stream", {"name": "orders"}, {})
    assert notes({**made, "resource_drift": [changed, {**gone, "type": "aws_iam_role"}]}) == []
