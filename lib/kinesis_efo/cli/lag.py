"""``kinesis-efo lag``: shows how far applications are behind, shard by shard. It opens no subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.failing import Ended
from kinesis_efo.cli.lease_access import Leases, opened
from kinesis_efo.cli.lease_runs import STATE_STYLES, lag_data, runs_table
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import StreamError
from kinesis_efo.kinesis.topology import Topology, explained, identified
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Scan
from kinesis_efo.leases.strays import strays
from kinesis_efo.leases.watch import watch
from kinesis_efo.operate import lag as lagging
from kinesis_efo.operate.each_stream import of_each
from kinesis_efo.operate.lag import ShardLag, Sightings, State
from kinesis_efo.options import AwsSettings


@dataclass(frozen=True)
class _Report:
    """One application at one moment."""

    application: str
    at: float
    runs: Mapping[str, Lease]
    states: Mapping[str, State]
    shards: Sequence[ShardLag]
    reported: dict[str, int]
    remarks: Sequence[str]
    missing: Mapping[str, StreamError]


def lag(
    *,
    aws: AwsSettings,
    manifest: list[str],
    stream: list[str] | None,
    again: bool,
    interval: str,
    count: int,
    lease_timeout: str,
    above: str | None,
    as_json: bool,
) -> None:
    """Carry out the command, with its options as `commands.lag` declares them."""
    timeout, pause = arguments.seconds("--lease-timeout", lease_timeout), arguments.seconds("--interval", interval)
    threshold = None if above is None else arguments.seconds("--fail-above", above)

    looks = [_Look(aws, location, stream, timeout, count) for location in manifest]
    if again:
        try:
            asyncio.run(_keep_looking(looks, min(pause, timeout), pause, as_json))
        except KeyboardInterrupt:
            raise output.stop(output.ExitCode.OK) from None
    reports = asyncio.run(_all(looks, timeout, lambda: output.remark(f"watching owners for up to {timeout:g} s")))
    output.answer(as_json, _data(reports), lambda: _view(reports))
    for remark in _remarks(reports):
        output.remark(remark)
    if threshold is not None and not _within(reports, threshold):
        raise Ended(output.ExitCode.BEHIND, f"more than {above} behind, or not known to be less")
    if missing := [name for report in reports for name in report.missing]:
        raise Ended(output.ExitCode.INCOMPLETE, f"not all is shown: {', '.join(missing)} could not be asked for")


class _Look:
    """Measures one application repeatedly, and remembers how its leases moved."""

    def __init__(
        self, aws: AwsSettings, location: str, streams: list[str] | None, lease_timeout: float, count: int
    ) -> None:
        self._aws = aws
        self._location = location
        self._streams = streams
        self._clock = SystemClock()
        self._sightings = Sightings(lease_timeout)
        self._count = count
        self._identities: dict[str, StreamIdentity] = {}

    async def look(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> _Report:
        """Watch the leases, then measure the lag.

        Args:
            seconds: How long to watch for owners that renew a lease.
            waiting: Called if one scan of the table does not settle who is alive.
        """
        async with opened(self._aws, self._location, self._streams) as application:
            seen = await watch(application.table, self._clock, seconds, application.guards, waiting)
            self._sightings.add(seen, self._clock.monotonic())
            return await self._measure(application, seen.scan, list(seen.scan.unreadable.values()))

    async def _measure(self, application: Leases, scan: Scan, remarks: list[str]) -> _Report:
        manifest, access = application.manifest, application.access
        topology = Topology(await access.client("kinesis"))
        rows: list[ShardLag] = []
        runs = application.runs(scan)
        listed = await of_each(
            manifest.streams, lambda ref: explained(topology.shards(ref.stream_arn), ref, manifest.source)
        )
        for name, shards in listed.found.items():
            ref = manifest.streams[name]
            of_stream = lagging.by_shard(scan.leases, application.keys, name)
            present = self._identities[name] = self._identities.get(name) or await identified(topology, ref.stream_arn)
            if what := strays(of_stream.values(), present):
                remarks.append(f"{what}. It does not count here")
                of_stream = {shard: row for shard, row in of_stream.items() if not row.is_of_another(present)}
            if not of_stream:
                remarks.append(f"{name}: no leases: {manifest.application} has never read it")
            rows += lagging.rows(ref, shards, of_stream, runs.get(name), self._sightings, self._clock)
        rows, reasons = await lagging.measured(access, manifest, rows, self._clock, self._count)
        reported, more = await lagging.reported(access, manifest.streams, self._clock.time())
        now = self._clock.monotonic()
        states = {name: self._sightings.state(run, run, now) for name, run in runs.items()}
        remarks += [*reasons, *more]
        remarks += [f"not shown: {error}" for error in listed.missing.values()]
        return _Report(manifest.application, self._clock.time(), runs, states, rows, reported, remarks, listed.missing)


async def _all(looks: Sequence[_Look], seconds: float, waiting: Callable[[], None] = lambda: None) -> list[_Report]:
    return list(await asyncio.gather(*(each.look(seconds, waiting) for each in looks)))


async def _keep_looking(looks: Sequence[_Look], seconds: float, pause: float, as_json: bool) -> None:
    clock, terminal = SystemClock(), output.terminal()
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            began = clock.monotonic()
            reports = await _all(looks, seconds)
            if as_json:
                output.line(_data(reports))
            elif terminal.is_terminal:
                live.update(Group(_view(reports), *map(Text, _remarks(reports))), refresh=True)
            else:
                terminal.print(_view(reports))
            await clock.sleep(max(0.0, began + pause - clock.monotonic()))


def _within(reports: Sequence[_Report], threshold: float) -> bool:
    rows = [row for report in reports for row in report.shards if row.state is not State.WAITING]
    return not any(report.missing for report in reports) and all(
        row.seconds is not None and row.seconds <= threshold for row in rows
    )


def _remarks(reports: Sequence[_Report]) -> list[str]:
    return [f"{report.application}: {remark}" for report in reports for remark in report.remarks]


def _view(reports: Sequence[_Report]) -> RenderableType:
    parts: list[RenderableType] = []
    for report in reports:
        behind = [f"{name} {milliseconds / 1000:.1f} s" for name, milliseconds in sorted(report.reported.items())]
        title = f"{report.application} at {_time(report.at)}"
        title += f"; CloudWatch saw at most {', '.join(behind)}" if behind else "; no figures in CloudWatch"
        rows = [
            (
                row.key.stream,
                row.key.shard,
                output.painted(row.state.value, STATE_STYLES.get(row.state, "")),
                _position(row),
                _moved(row),
                None if row.records is None else f"{row.records:,}{'' if row.records_exact else '+'}",
                None if row.seconds is None else f"{'' if row.seconds_exact else '< '}{row.seconds:.1f} s",
                row.owner and readable(row.owner),
            )
            for row in report.shards
        ]
        columns = ("stream", "=shard", "=state", "read until", ">moved", ">unread", ">behind", "owner")
        parts += [output.table(columns, rows, title), Text()]
        if report.runs:
            parts += [runs_table(report.runs, report.states), Text()]
    return Group(*parts[:-1])


def _position(row: ShardLag) -> str | None:
    if row.read_until is not None:
        return _time(row.read_until)
    return None if row.position is None else str(row.position)


def _moved(row: ShardLag) -> str | None:
    still_for, seen = row.movement
    return None if still_for is None else f"{'' if seen else '> '}{still_for:.0f} s ago"


def _time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _data(reports: Sequence[_Report]) -> dict[str, Any]:
    return {
        "applications": [
            {
                "application": report.application,
                "at": _time(report.at),
                "secondsBehind": max((row.seconds for row in report.shards if row.seconds is not None), default=None),
                "cloudWatchMillisBehindLatest": report.reported,
                "runs": [
                    {"stream": name, "owner": run.owner, "state": report.states[name].value, "lag": lag_data(run)}
                    for name, run in report.runs.items()
                ],
                "shards": [_row(row) for row in report.shards],
                "remarks": list(report.remarks),
                "missing": output.missing_data(report.missing),
            }
            for report in reports
        ]
    }


def _row(row: ShardLag) -> dict[str, Any]:
    return {
        "stream": row.key.stream,
        "shardId": row.key.shard,
        "state": row.state.value,
        "position": None if row.position is None else str(row.position),
        "readUntil": None if row.read_until is None else _time(row.read_until),
        "secondsStill": row.movement.still_for,
        "seenMoving": row.movement.seen,
        "recordsBehind": row.records,
        "recordsExact": row.records_exact,
        "secondsBehind": row.seconds,
        "secondsExact": row.seconds_exact,
        "owner": row.owner,
    }
