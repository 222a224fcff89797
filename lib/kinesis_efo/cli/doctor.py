"""``kinesis-efo doctor``: checks everything that a query of an application needs, from this machine. Changes nothing."""

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
    polling: Annotated[bool, typer.Option("--polling", help="Check for a query with readMode=polling.")] = False,
    subscribe_anyway: Annotated[
        bool, typer.Option("--subscribe-anyway", help="Try a dry-run subscription even while a query holds leases.")
    ] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Check everything a query needs: credentials, manifest, streams, consumers, leases, quotas, clock, Spark and Java.

    Each check passed, failed or is unknown; a failed one names the fix. Registers, writes and subscribes to nothing. Run it
    where the job runs, or with its role. Exit code 1 if a check failed; unknown is not a failure.
    """
    report(as_json, asyncio.run(_examine(manifest, stream, aws, polling=polling, anyway=subscribe_anyway)))


async def _examine(
    location: str, streams: list[str] | None, aws: AwsSettings, *, polling: bool, anyway: bool
) -> list[Finding]:
    clock = SystemClock()
    programs = [machine.spark(), machine.java()]
    try:
        # In a thread: loading credentials and the manifest blocks.
        manifest = await asyncio.to_thread(arguments.load, location, aws, streams)
    except ManifestError as error:
        failed = Finding("manifest", Status.FAILED, str(error), "give the right location, or deploy the environment")
        if aws.region is None:
            return [failed, *programs]
        async with Access(aws, aws.region) as access:
            return [await machine.identity(access), failed, *await machine.path_and_clock(access, clock), *programs]
    count = output.count(len(manifest.streams), "stream")
    summary = f"application {manifest.application}, {count}, region {manifest.region}"
    async with Access(aws, manifest.region) as access:
        findings = [
            await machine.identity(access),
            Finding("manifest", Status.PASSED, f"{manifest.source}: {summary}"),
            *await machine.path_and_clock(access, clock),
        ]
        # Without a path to AWS, every other check would only repeat that.
        if not any(each.status is Status.FAILED and each.subject == machine.PATH for each in findings):
            findings += await (_polled(access, manifest) if polling else _fanned_out(access, manifest, anyway))
            findings += [
                await lease_checkup.lease_table(access, manifest),
                await lease_checkup.lease_writes(access, manifest),
            ]
    return [*findings, *programs]


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
        # The check of the table reports this, and no query reads without a table.
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
