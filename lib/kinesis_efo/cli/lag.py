"""``kinesis-efo lag``: shows how far applications are behind, shard by shard. It opens no subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Group
from rich.live import Live
from rich.text import Text

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.lag_report import Report, data, view, within
from kinesis_efo.cli.lease_access import Leases, TimeoutOption, opened
from kinesis_efo.cli.shapes import written_out
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import ConfigurationError, KinesisEfoError
from kinesis_efo.kinesis.topology import Topology, explained, identified
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.store import Scan
from kinesis_efo.leases.strays import strays
from kinesis_efo.leases.watch import watch
from kinesis_efo.operate import lag as lagging
from kinesis_efo.operate.lag import ShardLag, Sightings
from kinesis_efo.operate.live import ask, brought_up_to_date
from kinesis_efo.options import AwsSettings


@arguments.with_aws
def lag(
    aws: AwsSettings,
    manifest: Annotated[
        list[str],
        typer.Option(
            "--manifest",
            "-m",
            envvar=arguments.MANIFEST_VARIABLE,
            metavar="LOCATION",
            help="An application's manifest: a path, ssm:///name or s3://bucket/key; may be repeated.",
        ),
    ],
    stream: arguments.StreamsOption = None,
    again: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two looks, with --watch.")] = "5s",
    count: Annotated[
        int,
        typer.Option(
            min=0,
            help="Count up to so many unread records per shard, with GetRecords, which shares its limits with polling "
            "readers. 0 makes no calls: the seconds are then an upper bound.",
        ),
    ] = 100,
    lease_timeout: TimeoutOption = "10s",
    above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="DURATION",
            help=f"Exit with code {output.ExitCode.BEHIND.value} if a shard is further behind, or its lag is unknown.",
        ),
    ] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Show how far each shard is behind: position, unread records and seconds, and whether it moves; the furthest behind first.

    Asks the run itself for its positions where it can be reached; else they are the lease table's, which is some seconds old. Watches
    the owners for some seconds to see who is alive. With --json and --watch, each look is one line.
    """
    timeout, pause = arguments.seconds("--lease-timeout", lease_timeout), arguments.seconds("--interval", interval)
    threshold = None if above is None else arguments.seconds("--fail-above", above)

    looks = [_Look(aws, location, stream, timeout, count) for location in manifest]
    if again:
        try:
            asyncio.run(_keep_looking(looks, min(pause, timeout), pause, as_json))
        except KeyboardInterrupt:
            raise output.stop(output.ExitCode.OK) from None
    reports = asyncio.run(_all(looks, timeout, lambda: output.remark(f"watching owners for up to {timeout:g} s")))
    output.answer(as_json, data(reports), lambda: view(reports, output.terminal().width))
    for remark in _remarks(reports):
        output.remark(remark)
    if threshold is not None and not within(reports, threshold):
        output.remark(f"kinesis-efo: more than {above} behind, or not known to be less")
        raise output.stop(output.ExitCode.BEHIND)


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

    async def look(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> Report:
        """Watch the leases, then measure the lag.

        Args:
            seconds: How long to watch for owners that renew a lease.
            waiting: Called if one scan of the table does not settle who is alive.
        """
        async with opened(self._aws, self._location, self._streams) as application:
            seen = await watch(application.table, self._clock, seconds, application.guards, waiting)
            self._sightings.add(seen, self._clock.monotonic())
            return await self._measure(application, seen.scan, list(seen.scan.unreadable.values()))

    async def _measure(self, application: Leases, scan: Scan, remarks: list[str]) -> Report:
        manifest, access = application.manifest, application.access
        topology = Topology(await access.client("kinesis"))
        rows: list[ShardLag] = []
        runs = application.runs(scan)
        asked = await ask(runs)
        remarks += [
            f"the run of {readable(owner)} was not asked, so its positions are from the lease table: {reason}"
            for owner, reason in asked.reasons.items()
        ]
        for name, ref in manifest.streams.items():
            shards = await explained(topology.shards(ref.stream_arn), ref, manifest.source)
            of_stream = lagging.by_shard(scan.leases, application.keys, name)
            present = self._identities[name] = self._identities.get(name) or await identified(topology, ref.stream_arn)
            if what := strays(of_stream.values(), present):
                remarks.append(f"{what}. It does not count here")
                of_stream = {shard: row for shard, row in of_stream.items() if not row.is_of_another(present)}
            if not of_stream:
                remarks.append(f"{name}: no leases: {manifest.application} has never read it")
            of_stream = brought_up_to_date(of_stream, asked.shards(runs.get(name), name), name, self._clock.time())
            rows += lagging.rows(ref, shards, of_stream, runs.get(name), self._sightings, self._clock)
        rows, reasons = await lagging.measured(access, manifest, rows, self._clock, self._count)
        reported, more = await lagging.reported(access, manifest.streams, self._clock.time())
        now = self._clock.monotonic()
        states = {name: self._sightings.state(run, run, now) for name, run in runs.items()}
        remarks += [*reasons, *more]
        answered = frozenset(name for name, run in runs.items() if run.owner in asked.answers)
        return Report(manifest.application, self._clock.time(), runs, states, answered, rows, reported, remarks)


async def _all(looks: Sequence[_Look], seconds: float, waiting: Callable[[], None] = lambda: None) -> list[Report]:
    return list(await asyncio.gather(*(each.look(seconds, waiting) for each in looks)))


async def _keep_looking(looks: Sequence[_Look], seconds: float, pause: float, as_json: bool) -> None:
    clock, terminal = SystemClock(), output.terminal()
    reports: list[Report] = []
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            began = clock.monotonic()
            try:
                reports = await _all(looks, seconds)
            except (KinesisEfoError, ClientError, BotoCoreError, OSError) as error:
                if not reports or isinstance(error, ConfigurationError):
                    raise
                # Who watches wants to see the end of an outage, too.
                trouble = f"{written_out(clock.time())}: {type(error).__name__}: {error}. Trying again"
                if terminal.is_terminal and not as_json:
                    live.update(Group(view(reports, terminal.width), Text(trouble, "bold red")), refresh=True)
                else:
                    output.remark(trouble)
                await clock.sleep(pause)
                continue
            if as_json:
                output.line(data(reports))
            elif terminal.is_terminal:
                live.update(Group(view(reports, terminal.width), *map(Text, _remarks(reports))), refresh=True)
            else:
                terminal.print(view(reports, terminal.width))
            await clock.sleep(max(0.0, began + pause - clock.monotonic()))


def _remarks(reports: Sequence[Report]) -> list[str]:
    return [f"{report.application}: {remark}" for report in reports for remark in report.remarks]
