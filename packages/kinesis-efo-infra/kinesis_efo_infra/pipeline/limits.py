"""Finds, before a plan is applied, which changes AWS would reject midway, and which data would be lost or jobs stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kinesis_efo_infra.gate import granted
from kinesis_efo_infra.pipeline.comparison import unknown_names

_APPLICATION, _STREAM, _TABLE = "aws_emrserverless_application", "aws_kinesis_stream", "aws_dynamodb_table"
_CONSUMER, _KEY = "aws_kinesis_stream_consumer", "aws_kms_key"
_LOST = {
    _STREAM: "stream {name} is destroyed, and its records are lost: jobs that read or write it fail; stop them first (`kinesis-efo emr stop`)",
    _CONSUMER: "consumer {name} is deregistered: a job that reads with it fails; stop it first (`kinesis-efo emr stop`)",
    _KEY: "key {arn} is scheduled for deletion: from then on, nothing that it encrypts can be read, such as records that a stream retains",
    _TABLE: "table {name} is destroyed, which says how far its application has read: only checkpoints of its queries still do",
}
"""Notes for reviewers about resources that are destroyed, by resource type."""
_FIXED = ("name", "stream_arn", "hash_key", "range_key")
"""Attributes of streams, consumers and tables that cannot be changed after creation."""
_TAGS = {"tags", "tags_all"}
_ONLY_IN_STATE = {"enforce_consumer_deletion", "timeouts", "region"}
"""Attributes that exist only in Terraform's state, not in AWS."""

_AWS_KEY = "alias/aws/kinesis"
"""Alias of the AWS managed key, with which all readers of the account may decrypt."""
_POLICIES = ("aws_iam_policy", "aws_iam_role_policy", "aws_kinesis_resource_policy")
"""Types of the resources whose policies may allow reading."""

Plan = Mapping[str, Any]
"""A plan, as `terraform show -json` writes it."""


def refusals(plan: Plan, imports: Collection[str] = ()) -> list[str]:
    """Return a message for each change that AWS would reject, with an alternative, and for each imported resource that would be lost.

    Args:
        plan: The plan.
        imports: Terraform addresses of resources that the settings import.
    """
    refused = [*_lost(plan, imports), *_protected(plan)]
    keys = {before.get("arn"): address for address, before in _deleted(plan, _KEY)}
    refused += [
        f"{stream}: its key changes, and {keys[key]}, with which its records of {hours} hours are encrypted, would be scheduled for "
        "deletion: nothing could read them any more. List it (`own`) under `former_keys` of the stream until they have expired"
        for stream, key, _, hours in _rekeyed(plan)
        if key in keys
    ]
    for stream, before, after in _updates(plan, _STREAM):
        present, wanted = before.get("shard_count"), after.get("shard_count")
        # If a stream was on-demand, the plan does not contain its current number of shards.
        if _mode(before) != _mode(after) or not present or not wanted:
            continue
        if len(steps := _steps(present, wanted)) > 1:
            way = ", then ".join(map(str, steps))
            refused.append(
                f"{stream}: from {present} to {wanted} shards: UpdateShardCount at most doubles or halves their number; "
                f"deploy {way} (at most ten changes in 24 hours)"
            )
    return refused


def of_another_account(plan: Plan, accounts: Collection[str]) -> list[str]:
    """Return a message if a plan is based on the state of an environment with the same name and state bucket, but another account.

    Terraform would look for that state's resources in this account, not find them, and remove them from the state.

    Args:
        plan: The plan.
        accounts: The environment's account, and other accounts that its settings name.
    """
    known = plan.get("prior_state", {}).get("values", {}).get("root_module", {}).get("resources", [])
    held = [each["values"] for each in known if each.get("mode") == "managed"]
    # Resources that a refresh did not find are no longer in the state, but appear as drift.
    held += [each["change"].get("before") or {} for each in plan.get("resource_drift", [])]
    found = {account for each in held for account in str(each.get("arn")).split(":")[4:5] if account}
    if not found or found & set(accounts):
        return []
    whose = ", ".join(sorted(found))
    return [f"its state is that of an environment in account {whose}: use another state_bucket, or another name"]


def notes(plan: Plan) -> list[str]:
    """Return notes for reviewers about changes that lose records, stop jobs or extend permissions."""
    told = [*_imported(plan), *_forgotten(plan), *_widened(plan), *_destroyed(plan), *_gone(plan)]
    for stream, key, encrypted, hours in _rekeyed(plan):
        what = "its key changes" if encrypted else "is no longer encrypted: new records are stored in plain text"
        told.append(
            f"{stream}: {what}. Readers need kms:Decrypt with the former key, {key}, for {hours} hours after this is applied, or a "
            "query that is behind fails: list it under `former_keys` of the stream, and keep it, until then"
        )
    for stream, before, after in _updates(plan, _STREAM):
        present, wanted = (each.get("retention_period") or 0 for each in (before, after))
        # In a plan that was shown, a sensitive value is an HMAC instead of a number.
        if isinstance(present, int) and isinstance(wanted, int) and wanted < present:
            told.append(f"{stream}: retention falls from {present} to {wanted} hours: records that are older are lost")
        if _mode(before) != _mode(after):
            told.append(
                f"{stream}: changes its mode, which AWS allows twice in 24 hours: if it was changed already, AWS refuses this half "
                "way or the way back; wait until then"
            )
        if _mode(before) == "ON_DEMAND" and _mode(after) == "PROVISIONED":
            told.append(
                f"{stream}: becomes provisioned: AWS refuses `shards` that are more than double, or less than half, of "
                "what it has then"
            )
    for application, before, after in _updates(plan, _APPLICATION):
        changed = ", ".join(sorted(_changed(before, after)))
        if changed:
            told.append(
                f"{application}: {changed}: EMR changes an application only while it is stopped. `make apply` stops its "
                "jobs gracefully, and then it; `make jobs` starts them, and they read on where they stopped. Without the "
                "pipeline, do that yourself: `kinesis-efo emr stop`, `aws emr-serverless stop-application`. For no "
                "pause, move the jobs to a second application first (`target:`)"
            )
    return told


def applications_to_stop(plan: Plan) -> list[str]:
    """Return the ids of EMR Serverless applications that must be stopped while the plan is applied."""
    return [before["id"] for _, before, after in _updates(plan, _APPLICATION) if _changed(before, after)]


def _lost(plan: Plan, imports: Collection[str]) -> Iterator[str]:
    """Yield a message for each imported resource that the plan would replace, or whose global secondary index it would delete."""
    for each in plan.get("resource_changes", []):
        address, change = each["address"], each["change"]
        if "importing" not in change and address not in imports:
            continue
        before, after = change.get("before") or {}, change.get("after") or {}
        if "delete" in change["actions"]:
            fixed = [name for name in _FIXED if before.get(name) != after.get(name)]
            why = "; ".join(f"{name} is {before.get(name)!r} and not {after.get(name)!r}" for name in fixed)
            yield (
                f"{address} exists, is to be imported and would be replaced ({why or 'the plan says why'}): what is in it would be "
                "lost. Import what fits, or correct the file"
            )
        elif each["type"] == _TABLE and before.get("global_secondary_index"):
            yield (
                f"{address} is imported and has a global secondary index, as the lease table of a KCL 3 has, which would lose "
                "it: take another table (docs/how-to/kcl.md)"
            )


def _protected(plan: Plan) -> Iterator[str]:
    """Yield a message for each protected table that is destroyed: AWS would refuse only after the rest of the application is deleted."""
    for each in plan.get("resource_changes", []):
        change = each["change"]
        before = change.get("before") or {}
        if each["type"] == _TABLE and "delete" in change["actions"] and before.get("deletion_protection_enabled"):
            yield (
                f"{each['address']}: table {before.get('name')} is protected from deletion, and would be destroyed. Removing an "
                "application takes two deployments: keep it, say `retired: true` for it and deploy that, which ends the protection "
                "and nothing else; then remove it"
            )


def _destroyed(plan: Plan) -> Iterator[str]:
    """Yield notes about streams, consumers, tables and keys that are destroyed or replaced."""
    # Skip the keys of destroyed streams: the note on the stream already says that its records are lost.
    of_streams = {before.get("kms_key_id") for _, before in _deleted(plan, _STREAM)}
    for each in plan.get("resource_changes", []):
        if each["type"] in _LOST and "delete" in each["change"]["actions"]:
            before = each["change"].get("before") or {}
            if each["type"] == _KEY and before.get("arn") in of_streams:
                continue
            told = _LOST[each["type"]].format(name=before.get("name"), arn=before.get("arn"))
            anew = ". One of the same name is made, with a new ARN" * ("create" in each["change"]["actions"])
            yield f"{each['address']}: {told}{anew}"


def _deleted(plan: Plan, kind: str) -> Iterator[tuple[str, Plan]]:
    """Yield address and values of each destroyed resource of a type."""
    for each in plan.get("resource_changes", []):
        if each["type"] == kind and "delete" in each["change"]["actions"]:
            yield each["address"], each["change"].get("before") or {}


def _rekeyed(plan: Plan) -> Iterator[tuple[str, str, bool, int]]:
    """Yield streams that change in place and no longer use their former customer key.

    Yields:
        Address, former key, whether the stream is still encrypted, and hours until the last record under the former key expires.
    """
    for stream, before, after in _updates(plan, _STREAM):
        key, encrypted = before.get("kms_key_id"), after.get("encryption_type") != "NONE"
        if (
            before.get("encryption_type") != "KMS"
            or not key
            or key == _AWS_KEY
            or (encrypted and after.get("kms_key_id") == key)
        ):
            continue
        hours = (each.get("retention_period") for each in (before, after))
        yield stream, key, encrypted, max(each for each in (*hours, 24) if isinstance(each, int))


def _gone(plan: Plan) -> Iterator[str]:
    """Yield notes about streams that were deleted outside of Terraform: the plan creates them again, but their records are lost."""
    for each in plan.get("resource_drift", []):
        if each.get("type") == _STREAM and each["change"]["actions"] == ["delete"]:
            name = (each["change"].get("before") or {}).get("name")
            yield (
                f"{each['address']}: stream {name} was deleted without Terraform, with its records and consumers, and is made anew, "
                "empty: jobs with a checkpoint of the former one fail until they start with a new checkpoint. If it must not be, "
                "remove it from the file"
            )


def _forgotten(plan: Plan) -> Iterator[str]:
    """Yield notes about resources that Terraform removes from its state without destroying them, because something else owns them now."""
    for each in plan.get("resource_changes", []):
        if each["change"]["actions"] == ["forget"]:
            yield f"{each['address']}: is handed over: Terraform forgets it; it stays as it is, and is billed"


def _widened(plan: Plan) -> Iterator[str]:
    """Yield notes about policies that newly allow GetRecords, such as after an upgrade: earlier versions granted it only on request."""
    for kind in _POLICIES:
        for policy, *versions in _updates(plan, kind):
            before, after = (granted.allows(each.get("policy"), "kinesis:GetRecords") for each in versions)
            if after and not before:
                yield (
                    f"{policy}: allows GetRecords from now on: a query that is behind another one of the same program reads alone "
                    "by it until it has caught up; `polling: false` takes it away"
                )


def _imported(plan: Plan) -> Iterator[str]:
    """Yield notes about resources that are imported, and how the plan changes them."""
    for each in plan.get("resource_changes", []):
        address, change = each["address"], each["change"]
        if "importing" not in change or "delete" in change["actions"]:
            continue
        unknown = unknown_names(change) - _TAGS
        names = sorted((_changed(change.get("before") or {}, _after(change)) | unknown) - _ONLY_IN_STATE)
        said = f"changes {', '.join(names)}" if names else "changes nothing but tags, if anything"
        yield f"{address}: exists and is imported, which {said}"


def _updates(plan: Plan, kind: str) -> Iterator[tuple[str, Plan, Plan]]:
    """Yield address, values before, and values after, for each resource of a type that is changed in place."""
    for each in plan.get("resource_changes", []):
        if each["type"] == kind and each["change"]["actions"] == ["update"]:
            yield each["address"], each["change"].get("before") or {}, _after(each["change"])


def _after(change: Mapping[str, Any]) -> Plan:
    """Return the values after a change; None for values that are known only after it is applied."""
    return {**(change.get("after") or {}), **dict.fromkeys(unknown_names(change))}


def _changed(before: Plan, after: Plan) -> set[str]:
    # Ignore changes of tags only. For any other change, the provider sends all attributes, which EMR rejects for a started application.
    return {name for name in {*before, *after} if before.get(name) != after.get(name)} - _TAGS


def _mode(stream: Plan) -> str:
    details = stream.get("stream_mode_details") or [{}]
    return str(details[0].get("stream_mode"))


def _steps(present: int, wanted: int) -> list[int]:
    """Return the shard counts to deploy one after the other until `wanted` is reached. Each step at most doubles or halves the count."""
    steps = []
    while present != wanted:
        present = min(2 * present, wanted) if wanted > present else max(-(-present // 2), wanted)
        steps.append(present)
    return steps
