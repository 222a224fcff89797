"""``kinesis-efo lag``: shows the lag of applications, shard by shard, without subscribing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Group
from rich.live import Live

from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import ConfigurationError, KinesisEfoError
from kinesis_efo.kinesis.topology import Topology, explained, identified
from kinesis_efo.leases.notes import strays
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.store import Scan
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.lag import Lag
from kinesis_efo_tools.cli.ending import forced_end
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.lag_report import LagReport, data, view, within
from kinesis_efo_tools.cli.lease_access import Leases, watched
from kinesis_efo_tools.cli.shapes import written_out
from kinesis_efo_tools.operate import lag as lagging
from kinesis_efo_tools.operate.each_stream import of_each
from kinesis_efo_tools.operate.lag import ShardLag, Sightings
from kinesis_efo_tools.operate.live import ask, brought_up_to_date
from kinesis_efo_tools.operate.watch import watch


def show_lag(given: Lag) -> None:
    timeout = arguments.seconds("--lease-timeout", given.lease_timeout)
    pause = arguments.seconds("--interval", given.interval)
    threshold = None if given.above is None else arguments.seconds("--fail-above", given.above)

    looks = [_ApplicationLag(given.aws, location, given.stream, timeout, given.count) for location in given.manifest]
    if given.again:
        forced_end.code = output.ExitCode.OK
        try:
            asyncio.run(_keep_looking(looks, min(pause, timeout), pause, given.as_json))
        except KeyboardInterrupt:
            raise output.stop(output.ExitCode.OK) from None
    reports = asyncio.run(_all(looks, timeout, lambda: output.remark(f"watching owners for up to {timeout:g} s")))
    output.answer(given.as_json, data(reports), lambda: view(reports, output.terminal().width))
    for remark in _remarks(reports):
        output.remark(remark)
    if threshold is not None and not within(reports, threshold):
        raise CommandExit(output.ExitCode.BEHIND, f"more than {given.above} behind, or the lag is unknown")
    if missing := [name for report in reports for name in report.missing]:
        raise CommandExit(output.ExitCode.INCOMPLETE, f"not all is shown: {', '.join(missing)} could not be asked for")


def lag(
    manifest: str,
    *,
    streams: list[str] | None = None,
    count: int = 100,
    lease_timeout: float = 15.0,
    aws: AwsSettings | None = None,
) -> dict[str, Any]:
    """Return the lag of an application, shard by shard, as `kinesis-efo lag --json` prints it. Do not call it in an event loop.

    Args:
        manifest: A path, `ssm:///name` or `s3://bucket/key`; or ARNs, as on the command line.
        streams: Logical names of streams; None for all in the manifest.
        count: Maximum number of unread records to count per shard, with GetRecords. With 0, GetRecords is not called.
        lease_timeout: The query's `leaseTimeout` in seconds. The call watches the leases for at most this long.
        aws: Region, endpoint and role.

    Raises:
        KinesisEfoError: The manifest, the lease table or all streams cannot be read.
    """
    look = _ApplicationLag(aws or AwsSettings(), manifest, streams, lease_timeout, count)
    (found,) = data([asyncio.run(look.look(lease_timeout))])["applications"]
    return dict(found)


class _ApplicationLag:
    """Measures the lag of one application repeatedly. Compares its leases over time, to find out which owners are alive."""

    def __init__(
        self, aws: AwsSettings, location: str, streams: list[str] | None, lease_timeout: float, count: int
    ) -> None:
        self._aws = aws
        self._location = location
        self._streams = streams
        self._clock = SystemClock()
        self._sightings = Sightings(lease_timeout)
        self._count = count

    async def look(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> LagReport:
        """Watch the leases for up to `seconds`, to find out which owners are alive, then measure the lag.

        `waiting` is called before the second scan of the lease table, if one is necessary.
        """
        async with watched(self._aws, self._location, self._streams) as application:
            seen = await watch(application.table, self._clock, seconds, application.guards, waiting)
            self._sightings.add(seen, self._clock.monotonic())
            return await self._measure(application, seen.scan, list(seen.scan.unreadable.values()))

    async def _measure(self, application: Leases, scan: Scan, remarks: list[str]) -> LagReport:
        manifest, access, clock = application.manifest, application.access, application.access.clock
        topology = Topology(await access.client("kinesis"))
        rows: list[ShardLag] = []
        runs = application.runs(scan)
        asked = await ask(runs)
        remarks += [
            f"the run of {readable(owner)} was not asked, so its positions are from the lease table: {reason}"
            for owner, reason in asked.reasons.items()
        ]
        listed = await of_each(
            manifest.streams, lambda ref: explained(topology.shards(ref.stream_arn), ref, manifest.source)
        )
        for name, shards in listed.found.items():
            ref = manifest.streams[name]
            of_stream = lagging.by_shard(scan.leases, application.keys, name)
            # Identify the stream again for every measurement, because it may have been deleted and created again.
            present = await identified(topology, ref.stream_arn)
            if what := strays(of_stream.values(), present):
                remarks.append(f"{what}. It does not count here")
                of_stream = {shard: row for shard, row in of_stream.items() if not row.is_of_another(present)}
            if not of_stream:
                remarks.append(f"{name}: no leases: {manifest.application} has never read it")
            of_stream = brought_up_to_date(of_stream, asked.shards(runs.get(name), name), name, clock.time())
            rows += lagging.rows(ref, shards, of_stream, runs.get(name), self._sightings, clock)
        rows, reasons = await lagging.measured(access, manifest, rows, clock, self._count)
        reported, more = await lagging.reported(access, manifest.streams, clock.time())
        now = self._clock.monotonic()
        states = {name: self._sightings.state(run, run, now) for name, run in runs.items()}
        remarks += [*reasons, *more, *(f"not shown: {error}" for error in listed.missing.values())]
        answered = frozenset(name for name, run in runs.items() if run.owner in asked.answers)
        queries = {name: found for name in manifest.streams if (found := asked.queries(runs.get(name), name))}
        slowest = {
            status.key: status.query
            for name in queries
            for status in asked.shards(runs.get(name), name).values()
            if status.query is not None
        }
        lags = {name: asked.lags(runs.get(name), name, clock.time()) for name in manifest.streams}
        rows = [
            replace(row, query=slowest.get(row.key), seconds=lags[row.key.stream][row.key.shard], seconds_exact=True)
            if row.key.shard in lags[row.key.stream]
            else row
            for row in rows
        ]
        runs = {name: asked.with_lag(run, name) for name, run in runs.items()}
        return LagReport(
            manifest.application, clock.time(), runs, states, answered, rows, reported, remarks, listed.missing, queries
        )


async def _all(
    looks: Sequence[_ApplicationLag], seconds: float, waiting: Callable[[], None] = lambda: None
) -> list[LagReport]:
    return list(await asyncio.gather(*(each.look(seconds, waiting) for each in looks)))


async def _keep_looking(looks: Sequence[_ApplicationLag], seconds: float, pause: float, as_json: bool) -> None:
    clock, terminal = SystemClock(), output.terminal()
    reports: list[LagReport] = []
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            began = clock.monotonic()
            try:
                reports = await _all(looks, seconds)
            except (KinesisEfoError, ClientError, BotoCoreError, OSError) as error:
                if not reports or isinstance(error, ConfigurationError):
                    raise
                # Continue to measure, so that the display recovers after an outage.
                trouble = f"{written_out(clock.time())}: {type(error).__name__}: {error}. Trying again"
                if terminal.is_terminal and not as_json:
                    live.update(Group(view(reports, terminal.width), output.text(trouble, "bold red")), refresh=True)
                else:
                    output.remark(trouble)
                await clock.sleep(pause)
                continue
            if as_json:
                output.line(data(reports))
            elif terminal.is_terminal:
                live.update(Group(view(reports, terminal.width), *map(output.text, _remarks(reports))), refresh=True)
            else:
                terminal.print(view(reports, terminal.width))
            await clock.sleep(max(0.0, began + pause - clock.monotonic()))


def _remarks(reports: Sequence[LagReport]) -> list[str]:
    return [f"{report.application}: {remark}" for report in reports for remark in report.remarks]
