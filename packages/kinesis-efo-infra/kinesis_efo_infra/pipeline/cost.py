"""Computes how a plan changes the bill for Enhanced Fan-Out: consumer-shard hours, and how often each GB is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kinesis_efo_infra.pipeline.bill import HOURS, bill, commitment, of_plan, read_by
from kinesis_efo_infra.pipeline.bill import table as bill_table
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.prices import Prices, elsewhere, told

_CONSUMER, _STREAM = "aws_kinesis_stream_consumer", "aws_kinesis_stream"


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of a stream is read through consumers, before or after a plan is applied.

    Attributes:
        consumers: Number of consumers that the stack declares. Each reads every GB once.
        shards: Number of shards; None if the stream is on-demand, scaled elsewhere, or not declared in the stack.
        on_demand: Whether the stream is on-demand; None if it is not declared in the stack.
    """

    consumers: int = 0
    shards: int | None = None
    on_demand: bool | None = None

    @property
    def hours(self) -> int | None:
        """Consumer-shard hours in a month; None if the plan does not contain the number of shards."""
        if not self.consumers or self.on_demand:
            return 0
        return None if self.shards is None else self.consumers * self.shards * HOURS


@dataclass(frozen=True, slots=True)
class Change:
    """How a plan changes the consumers and read modes of a stream.

    Attributes:
        stream: Terraform address of the stream, or its ARN if the stack does not declare it.
        before: How the stream is read before the plan is applied.
        after: How the stream is read after the plan is applied.
    """

    stream: str
    before: Reading
    after: Reading


def changes(plan: Plan, scaled: Collection[str] = ()) -> list[Change]:
    """Return the streams whose cost of reading changes with a plan.

    Args:
        plan: The plan.
        scaled: Addresses of streams that are scaled elsewhere, so that the plan does not contain their number of shards.
    """
    streams = {each["address"]: each["change"] for each in _resources(plan, _STREAM)}
    addresses = {
        values["arn"]: address
        for address, change in streams.items()
        for values in (change.get("before"), change.get("after"))
        if values and values.get("arn")
    }
    referenced = dict(references(plan))
    consumers = {"before": Counter[str](), "after": Counter[str]()}
    for consumer in _resources(plan, _CONSUMER):
        for when, counted in consumers.items():
            if (values := consumer["change"].get(when)) is not None:
                # The plan lacks the ARN of a stream that does not exist yet.
                arn = values.get("stream_arn")
                counted[addresses.get(arn, arn) if arn else read_by(consumer["address"], referenced)] += 1
    changed = []
    for stream in sorted({*consumers["before"], *consumers["after"]}):
        change = streams.get(stream, {})
        before, after = (
            _reading(consumers[when][stream], change.get(when), known=stream not in scaled)
            for when in ("before", "after")
        )
        if before != after:
            changed.append(Change(stream, before, after))
    return changed


def _resources(plan: Plan, kind: str) -> Iterator[Mapping[str, Any]]:
    return (each for each in plan.get("resource_changes", []) if each["type"] == kind)


def references(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the address of each consumer, and of the stream to which its declaration refers."""
    for each in plan.get("configuration", {}).get("root_module", {}).get("resources", []):
        if each["type"] == _CONSUMER and (names := each.get("expressions", {}).get("stream_arn", {}).get("references")):
            yield each["address"], ".".join(names[0].split(".")[:2])


def idle(plan: Plan, region: str, prices: Prices, *, advantage: bool, scaled: Collection[str] = ()) -> list[str]:
    """Return how a plan changes the monthly cost of the idle environment, line by line, in Markdown.

    Args:
        plan: The plan.
        region: Region of the environment.
        prices: Prices of Kinesis in the region.
        advantage: Whether the account uses On-demand Advantage.
        scaled: Addresses of streams that are scaled elsewhere, so that the plan does not contain their number of shards.
    """
    referenced = dict(references(plan))
    before, after = (
        bill(of_plan(plan, when), prices, elsewhere(), advantage=advantage, scaled=scaled, referenced=referenced)
        for when in ("before", "after")
    )
    if not (lines := bill_table(before, after)):
        return []
    extra = [commitment(prices)] if advantage else []
    return ["While nobody reads or writes, a month:", "", *lines, "", *filter(None, extra), told(prices, region)]


def _reading(consumers: int, stream: Mapping[str, Any] | None, *, known: bool) -> Reading:
    if not consumers or stream is None:
        return Reading(consumers)
    details = stream.get("stream_mode_details") or [{}]
    on_demand = details[0].get("stream_mode") == "ON_DEMAND"
    return Reading(consumers, stream.get("shard_count") if known and not on_demand else None, on_demand)


def table(changed: list[Change], region: str, prices: Prices | None, *, advantage: bool) -> list[str]:
    """Return changes as a Markdown table; empty if there are none.

    Args:
        changed: The changes.
        region: Region of the streams.
        prices: Prices of Kinesis in the region; without them, the table has hours and GB only.
        advantage: Whether the account uses On-demand Advantage.
    """
    if not changed:
        return []
    heads = ["stream", "consumers", "consumer-shard hours in a month", "GB read for each GB written"]
    heads += ["USD a month for hours", "USD for each GB written"] if prices else []
    lines = [f"| {' | '.join(heads)} |", f"|---{'|--:' * (len(heads) - 1)}|"]
    for each in changed:
        pairs = [_pair(each, lambda reading: str(reading.consumers)), _pair(each, _hours)]
        pairs.append(_pair(each, lambda reading: str(reading.consumers)))
        if prices:
            pairs.append(_pair(each, lambda reading: _for_hours(reading, prices)))
            pairs.append(_pair(each, lambda reading: _for_each_gb(reading, prices, advantage=advantage)))
        lines.append(f"| {' | '.join([f'`{each.stream}`', *pairs])} |")
    where = told(prices, region) if prices else f"Prices of {region} are not known here: they are in another currency."
    return [*lines, "", f"A month has {HOURS} hours. {where}"]


def _pair(change: Change, shown: Callable[[Reading], str]) -> str:
    before, after = shown(change.before), shown(change.after)
    return before if before == after else f"{before} → {after}"


def _hours(reading: Reading) -> str:
    return f"{reading.consumers * HOURS:,} for each shard" if reading.hours is None else f"{reading.hours:,}"


def _for_hours(reading: Reading, prices: Prices) -> str:
    if reading.hours is None:
        return f"{reading.consumers * HOURS * prices.consumer_shard_hour:,.2f} for each shard"
    return f"{reading.hours * prices.consumer_shard_hour:,.2f}"


def _for_each_gb(reading: Reading, prices: Prices, *, advantage: bool) -> str:
    if not reading.consumers:
        return f"{0:.3f}"
    if reading.on_demand is None:
        return "depends on its mode"
    on_demand = prices.gb_on_demand_advantage if advantage else prices.gb_on_demand
    if reading.on_demand and on_demand is None:
        return "not known"
    return f"{reading.consumers * (on_demand if reading.on_demand and on_demand else prices.gb_provisioned):.3f}"
