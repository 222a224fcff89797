"""What AWS would refuse half way through a plan, or what it loses or stops: read from the plan, before anything is applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_APPLICATION, _STREAM = "aws_emrserverless_application", "aws_kinesis_stream"
_TAGS = {"tags", "tags_all"}

Plan = Mapping[str, Any]
"""A plan, as `terraform show -json` writes it."""


def refusals(plan: Plan) -> list[str]:
    """What AWS would refuse, with the way that it allows."""
    refused = []
    for stream, before, after in _updates(plan, _STREAM):
        present, wanted = before.get("shard_count"), after.get("shard_count")
        # Of a stream that was on-demand, only AWS knows the present number.
        if _mode(before) != _mode(after) or not present or not wanted:
            continue
        if len(steps := _steps(present, wanted)) > 1:
            way = ", then ".join(map(str, steps))
            refused.append(
                f"{stream}: from {present} to {wanted} shards: UpdateShardCount at most doubles or halves their number; "
                f"deploy {way} (at most ten changes in 24 hours)"
            )
    return refused


def notes(plan: Plan) -> list[str]:
    """What reviewers must know, because it loses records or stops jobs."""
    told = []
    for stream, before, after in _updates(plan, _STREAM):
        present, wanted = before.get("retention_period") or 0, after.get("retention_period") or 0
        if wanted < present:
            told.append(f"{stream}: retention falls from {present} to {wanted} hours: records that are older are lost")
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
    """Ids of the applications of EMR Serverless that must not be started when the plan is applied."""
    return [before["id"] for _, before, after in _updates(plan, _APPLICATION) if _changed(before, after)]


def _updates(plan: Plan, kind: str) -> Iterator[tuple[str, Plan, Plan]]:
    """Address, values before, and values after, of each resource of a type that is changed in place."""
    for each in plan.get("resource_changes", []):
        if each["type"] == kind and each["change"]["actions"] == ["update"]:
            unknown = {name: None for name, is_unknown in each["change"].get("after_unknown", {}).items() if is_unknown}
            yield each["address"], each["change"]["before"], {**each["change"]["after"], **unknown}


def _changed(before: Plan, after: Plan) -> set[str]:
    # The provider sends all of them with any change, so that AWS refuses even those that a started application may have.
    return {name for name in {*before, *after} if before.get(name) != after.get(name)} - _TAGS


def _mode(stream: Plan) -> str:
    details = stream.get("stream_mode_details") or [{}]
    return str(details[0].get("stream_mode"))


def _steps(present: int, wanted: int) -> list[int]:
    """The numbers of shards to go through, the wanted one last."""
    steps = []
    while present != wanted:
        present = min(2 * present, wanted) if wanted > present else max(-(-present // 2), wanted)
        steps.append(present)
    return steps
