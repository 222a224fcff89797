"""Computes the monthly cost of an idle environment, line by line, from its Terraform resources.

Costs that depend on traffic are in `cost`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.prices import Elsewhere, Prices

HOURS = 730
"""Hours in a month, as AWS's calculator counts them."""
_EXTENDED_HOURS, _LONG_HOURS = 24, 168
"""Retention, in hours, beyond which Kinesis charges for extended retention (per shard hour) and for long-term retention (per GB)."""
_ON_DEMAND_SHARDS = 4
"""Number of shards of a new on-demand stream. Shard metrics are billed for each of them."""
_STREAM, _CONSUMER = "aws_kinesis_stream", "aws_kinesis_stream_consumer"
_ALARM, _KEY = "aws_cloudwatch_metric_alarm", "aws_kms_key"
_DASHBOARD, _PARAMETER = "aws_cloudwatch_dashboard", "aws_ssm_parameter"
COMMITMENT_MIB = 25
"""Minimum MiB per second, for both writing and reading, that an account with On-demand Advantage pays for."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of a stack or of a plan.

    Attributes:
        address: Terraform address of the resource.
        values: Arguments of the resource.
    """

    address: str
    values: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Terraform type of the resource."""
        return self.address.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a bill.

    Attributes:
        what: What is paid for. Lines of two bills are compared if this text is equal.
        usd: Dollars per month; None if it cannot be computed.
        told: The quantity, or what the cost depends on.
    """

    what: str
    usd: float | None
    told: str


@dataclass(frozen=True, slots=True)
class Bill:
    """A monthly bill."""

    lines: Sequence[Line] = field(default=())

    @property
    def total(self) -> float:
        """The sum of all lines whose cost is known, in dollars."""
        return round(sum(each.usd or 0 for each in self.lines), 2)

    @property
    def is_complete(self) -> bool:
        """Whether the cost of every line is known."""
        return all(each.usd is not None for each in self.lines)


def of_stack(document: Mapping[str, Any]) -> list[Resource]:
    """Return the resources of a synthesized stack."""
    return [
        Resource(f"{kind}.{name}", values)
        for kind, entries in document.get("resource", {}).items()
        for name, values in entries.items()
    ]


def of_plan(plan: Plan, when: str) -> list[Resource]:
    """Return the resources that exist before or after a plan is applied. `when` is "before" or "after"."""
    return [
        Resource(each["address"], values)
        for each in plan.get("resource_changes", [])
        if each.get("mode", "managed") == "managed" and (values := each["change"].get(when)) is not None
    ]


def bill(
    resources: Iterable[Resource],
    prices: Prices,
    others: Elsewhere,
    *,
    advantage: bool,
    scaled: Collection[str] = (),
    referenced: Mapping[str, str] | None = None,
) -> Bill:
    """Return the monthly cost of idle resources.

    Args:
        resources: The resources.
        prices: Prices of Kinesis.
        others: Prices of other services.
        advantage: Whether the account uses On-demand Advantage.
        scaled: Addresses of streams whose number of shards is changed by something else, such as a scaler.
        referenced: Maps the address of a consumer to the address of its stream, for consumers whose values lack the stream's ARN.
    """
    by_kind: dict[str, list[Resource]] = defaultdict(list)
    for each in resources:
        by_kind[each.kind].append(each)
    consumers = _consumers(by_kind, referenced or {})
    lines: list[Line] = []
    for stream in by_kind[_STREAM]:
        lines += _stream(stream, consumers.pop(stream.address, 0), prices, others, advantage, stream.address in scaled)
    lines += [
        Line(
            f"`{stream}`: consumers", None, f"{count}, on each shard {count * HOURS * prices.consumer_shard_hour:,.2f}"
        )
        for stream, count in sorted(consumers.items())
    ]
    lines += _others(by_kind, others)
    return Bill([each for each in lines if each.usd != 0 or each.told])


def _stream(
    stream: Resource, consumers: int, prices: Prices, others: Elsewhere, advantage: bool, scaled: bool
) -> Iterator[Line]:
    name, values = f"`{stream.address}`", stream.values
    hours = values.get("retention_period") or _EXTENDED_HOURS
    metrics = len(values.get("shard_level_metrics") or [])
    if _mode(values) == "ON_DEMAND":
        yield Line(f"{name}: on-demand", 0 if advantage else HOURS * prices.stream_hour, f"{HOURS} hours")
        if metrics:
            usd = _ON_DEMAND_SHARDS * metrics * others.metric_month
            yield Line(f"{name}: shard metrics", usd, f"{metrics} for each of {_ON_DEMAND_SHARDS} shards, or more")
        return
    shards = int(values.get("shard_count") or 0)
    some = f"{shards} shards" + (", or what they are scaled to" if scaled else "")
    yield Line(f"{name}: shards", shards * HOURS * prices.shard_hour, some)
    if hours > _EXTENDED_HOURS:
        more = ", and each GB older than 7 days" if hours > _LONG_HOURS else ""
        usd = shards * HOURS * prices.extended_shard_hour
        yield Line(f"{name}: retention", usd, f"{hours} hours of {some}{more}")
    if metrics:
        yield Line(f"{name}: shard metrics", shards * metrics * others.metric_month, f"{metrics} for each of {some}")
    if consumers:
        usd = consumers * shards * HOURS * prices.consumer_shard_hour
        yield Line(f"{name}: consumers", usd, f"{consumers} on {some}")


def _others(by_kind: Mapping[str, Sequence[Resource]], others: Elsewhere) -> Iterator[Line]:
    if keys := len(by_kind.get(_KEY, ())):
        yield Line("customer keys", keys * others.key_month, str(keys))
    if metrics := sum(map(_watched, by_kind.get(_ALARM, ()))):
        alarms = len(by_kind[_ALARM])
        yield Line("alarms", metrics * others.alarm_metric_month, f"{alarms} on {metrics} metrics")
    if boards := len(by_kind.get(_DASHBOARD, ())):
        yield Line("dashboards", boards * others.dashboard_month, f"{boards}; the first three of an account are free")
    advanced = [each for each in by_kind.get(_PARAMETER, ()) if each.values.get("tier") == "Advanced"]
    if advanced:
        yield Line("advanced parameters", len(advanced) * others.advanced_parameter_month, str(len(advanced)))


def _watched(alarm: Resource) -> int:
    queries = alarm.values.get("metric_query") or []
    return sum(bool(each.get("metric")) for each in queries) or 1


def _consumers(by_kind: Mapping[str, Sequence[Resource]], referenced: Mapping[str, str]) -> Counter[str]:
    """Count the consumers of each stream, by the stream's address, or by its ARN if the stream is declared elsewhere."""
    arns = {each.values["arn"]: each.address for each in by_kind[_STREAM] if each.values.get("arn")}
    counted = Counter[str]()
    for consumer in by_kind[_CONSUMER]:
        arn = consumer.values.get("stream_arn")
        if arn and (reference := re.fullmatch(rf"\$\{{({_STREAM}\.[\w-]+)\.arn\}}", arn)):
            counted[reference[1]] += 1
        else:
            counted[arns.get(arn, arn) if arn else read_by(consumer.address, referenced)] += 1
    return counted


def read_by(consumer: str, referenced: Mapping[str, str]) -> str:
    """Return the address of the stream to which a consumer's declaration refers; without such a reference, the consumer's address."""
    return referenced.get(consumer.partition("[")[0], consumer)


def _mode(values: Mapping[str, Any]) -> str:
    details = values.get("stream_mode_details") or {}
    # CDKTF writes a single block as a mapping; a plan always contains a list.
    first = details[0] if isinstance(details, list) else details
    return str(first.get("stream_mode") or "PROVISIONED") if first else "PROVISIONED"


def table(before: Bill | None, after: Bill) -> list[str]:
    """Format bills as a Markdown table, with a column for each bill; empty if there is nothing to pay.

    Args:
        before: The current bill, if known.
        after: The new bill.
    """
    if not after.lines and not (before and before.lines):
        return []
    if before is None:
        rows = [f"| {each.what} | {each.told} | {_usd(each.usd)} |" for each in after.lines]
        total = f"| **together** | | **{_sum(after)}** |"
        return ["| | how much | USD a month |", "|---|---|--:|", *rows, total]
    old, new = ({each.what: each for each in bill_.lines} for bill_ in (before, after))
    rows = []
    for what in dict.fromkeys([*old, *new]):
        was, is_now = old.get(what), new.get(what)
        shown = is_now or was
        assert shown is not None
        cells = (_usd(was.usd) if was else "-", _usd(is_now.usd) if is_now else "-")
        rows.append(f"| {what} | {shown.told} | {cells[0]} | {cells[1]} |")
    total = f"| **together** | | **{_sum(before)}** | **{_sum(after)}** |"
    return ["| | how much | USD a month before | after |", "|---|---|--:|--:|", *rows, total]


def _usd(usd: float | None) -> str:
    return "depends" if usd is None else f"{usd:,.2f}"


def _sum(of: Bill) -> str:
    return f"{of.total:,.2f}" + ("" if of.is_complete else ", and more")


def commitment(prices: Prices) -> str | None:
    """Return the minimum cost of On-demand Advantage for an account and region, as a sentence; None if unknown."""
    if prices.gb_in_on_demand_advantage is None or prices.gb_out_on_demand_advantage is None:
        return None
    gb = COMMITMENT_MIB / 1024 * 3600 * HOURS
    usd = gb * (prices.gb_in_on_demand_advantage + prices.gb_out_on_demand_advantage)
    return (
        f"On-demand Advantage is billed to the account and region, whatever this environment does: for {COMMITMENT_MIB} MiB a second in "
        f"and out at least, which is {usd:,.0f} USD a month."
    )
