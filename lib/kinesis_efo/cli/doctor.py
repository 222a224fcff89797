"""``kinesis-efo doctor``: everything a query of an application needs, checked from where it is called. Changes nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.findings import report
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import LeaseError, ManifestError
from kinesis_efo.manifest import Manifest
from kinesis_efo.operate import checkup, lease_checkup, machine
from kinesis_efo.operate.access import Access
from kinesis_efo.operate.findings import Finding, Status
from kinesis_efo.options import AwsSettings


@arguments.with_aws
def doctor(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    stream: arguments.StreamsOption = None,
    polling: Annotated[bool, typer.Option("--polling", help="For a query with readMode=polling.")] = False,
    subscribe_anyway: Annotated[
        bool, typer.Option("--subscribe-anyway", help="Try a dry-run subscription also while a query holds leases.")
    ] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Check whatever a query needs: credentials, manifest, streams, consumers, leases, quotas, clock, Spark and Java.

    Each line passed, failed or is unknown, with the fix. Nothing is registered, written or subscribed to. Run it where the
    job runs, or with its role. Exit code 1 if something failed; what is unknown is no failure.
    """
    report(as_json, asyncio.run(_examine(manifest, stream, aws, polling=polling, anyway=subscribe_anyway)))


async def _examine(
    location: str, streams: list[str] | None, aws: AwsSettings, *, polling: bool, anyway: bool
) -> list[Finding]:
    clock = SystemClock()
    here = [machine.spark(), machine.java()]
    try:
        # In a thread: credentials and network may take their time here.
        found = await asyncio.to_thread(arguments.load, location, aws, streams)
    except ManifestError as error:
        wrong = Finding("manifest", Status.FAILED, str(error), "give the right location, or deploy the environment")
        if aws.region is None:
            return [wrong, *here]
        async with Access(aws, aws.region) as access:
            return [await machine.identity(access), wrong, *await machine.path_and_clock(access, clock), *here]
    named = f"application {found.application}, {output.count(len(found.streams), 'stream')}, region {found.region}"
    async with Access(aws, found.region) as access:
        findings = [
            await machine.identity(access),
            Finding("manifest", Status.PASSED, f"{found.source}: {named}"),
            *await machine.path_and_clock(access, clock),
        ]
        # Where nothing answers, every other line would say so once more.
        if not any(each.status is Status.FAILED and each.subject == machine.PATH for each in findings):
            findings += await (_polled(access, found) if polling else _fanned_out(access, found, anyway))
            findings += [
                await lease_checkup.lease_table(access, found),
                await lease_checkup.lease_writes(access, found),
            ]
    return [*findings, *here]


async def _polled(access: Access, manifest: Manifest) -> list[Finding]:
    findings: list[Finding] = []
    for ref in manifest.streams.values():
        findings += await asyncio.gather(
            checkup.stream(access, ref), checkup.shards(access, ref), checkup.polling(access, ref)
        )
    return findings


async def _fanned_out(access: Access, manifest: Manifest, anyway: bool) -> list[Finding]:
    try:
        owners = await lease_checkup.owners(access, manifest)
    except LeaseError:
        # Said by the line of the table. Nobody reads without one.
        owners = {}
    now = datetime.now(UTC)
    findings: list[Finding] = []
    for name, ref in manifest.streams.items():
        findings += await asyncio.gather(
            checkup.stream(access, ref),
            checkup.consumer(access, ref),
            checkup.shards(access, ref),
            checkup.subscribing(access, ref, owners.get(name, ()), anyway=anyway),
            checkup.subscribe_rate(access, ref, now),
            checkup.consumer_quota(access, ref),
        )
    return findings
