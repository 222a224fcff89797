"""``kinesis-efo doctor``: checks, from this machine, everything that an application's query needs. Does not change anything.

Only ``--subscribe`` opens a subscription. This would disconnect a live reader of the consumer, so `measuring` rejects it in that case.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from kinesis_efo.aws import SyncClients
from kinesis_efo.aws_errors import CALL_ERRORS
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import ConfigurationError, LeaseError, ManifestError, UsageError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.doctor import Doctor
from kinesis_efo_tools.cli.findings import Details, report
from kinesis_efo_tools.cli.measuring import measure, refuse_live_readers
from kinesis_efo_tools.operate import checkup, dry_runs, lease_checkup, machine
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.findings import Finding, Status, failed_call
from kinesis_efo_tools.operate.obstacles import no_region, obstacles
from kinesis_efo_tools.operate.restart import restart


def doctor(given: Doctor) -> None:
    if given.wanted is not None and given.polling:
        raise UsageError("--subscribe cannot be combined with --polling: a polled stream has no consumer")
    findings, details = asyncio.run(_examine(given))
    report(given.as_json, findings, details)


async def _examine(given: Doctor) -> tuple[list[Finding], Details | None]:
    location, aws = given.manifest, given.aws
    programs = [machine.sdk(), machine.spark(), *machine.pythons(), machine.java(), machine.decoding()]
    manifest, wrong = await _loaded(location, aws, given.stream) if "://" not in location else (None, None)
    try:
        region = aws.region or (manifest.region if manifest is not None else SyncClients(aws).region)
    except CALL_ERRORS as error:  # for example, the profile does not exist
        return [failed_call(machine.CREDENTIALS, error, ""), *programs], None
    if region is None:
        return [wrong or no_region(location), *programs], None
    async with Access(aws, region) as access:
        found = await obstacles(access)
        if manifest is None and wrong is None and not found:
            manifest, wrong = await _loaded(location, aws, given.stream)
        if found:
            read = wrong if manifest is None else _read(manifest)
            return [*found, *([read] if read else []), *programs], None
        if manifest is None:
            assert wrong is not None
            path = await machine.path_and_clock(access, SystemClock())
            return [await machine.identity(access), wrong, *path, *programs], None
    async with Access(aws, manifest.region) as access:
        findings, details = await _checked(access, manifest, given)
    return [*findings, *programs], details


async def _loaded(location: str, aws: AwsSettings, streams: list[str] | None) -> tuple[Manifest | None, Finding | None]:
    """Load the manifest. Returns the manifest and None, or None and a failed check with the error."""
    try:
        # Run in a thread, because loading credentials and the manifest blocks.
        return await asyncio.to_thread(arguments.load, location, aws, streams), None
    except ManifestError as error:
        fix = "give the right location, or deploy the environment"
        return None, Finding("manifest", Status.FAILED, str(error), fix)


def _read(manifest: Manifest) -> Finding:
    count = output.count(len(manifest.streams), "stream")
    summary = f"application {manifest.application}, {count}, region {manifest.region}"
    return Finding("manifest", Status.PASSED, f"{manifest.source}: {summary}")


async def _checked(access: Access, manifest: Manifest, given: Doctor) -> tuple[list[Finding], Details | None]:
    """Run the checks that need a connection to AWS."""
    clock, wanted = SystemClock(), given.wanted
    details: Details | None = None
    findings = [
        await machine.identity(access),
        _read(manifest),
        *await machine.path_and_clock(access, clock),
    ]
    # Stop here if there is no connection to AWS, because all other checks would fail with the same error.
    if any(each.status is Status.FAILED and each.subject == machine.PATH for each in findings):
        return findings, None
    first = next(iter(manifest.streams.values()))
    if wanted is not None:
        await refuse_live_readers(access, manifest, first, wanted, clock)
    measured = None if wanted is None else first
    polled = [name for name, ref in manifest.streams.items() if given.polling or ref.polled]
    findings += await _polled(access, manifest.select(polled))
    if with_consumer := [name for name in manifest.streams if name not in polled]:
        findings += await _fanned_out(access, manifest.select(with_consumer), measured, given.subscribe_anyway)
    findings += [await lease_checkup.lease_table(access, manifest), await lease_checkup.lease_writes(access, manifest)]
    if given.checkpoint is not None:
        findings += await restart(access, manifest, given.checkpoint, clock)
    if wanted is not None:
        subscribed, details = await measure(access, first, wanted, clock)
        findings += subscribed
    return findings, details


async def _polled(access: Access, manifest: Manifest) -> list[Finding]:
    findings: list[Finding] = []
    for ref in manifest.streams.values():
        findings += await asyncio.gather(
            checkup.stream(access, ref), checkup.shards(access, ref), dry_runs.polling(access, ref)
        )
        findings += filter(None, [await dry_runs.key(access, ref)])
    return findings


async def _fanned_out(access: Access, manifest: Manifest, measured: StreamRef | None, anyway: bool) -> list[Finding]:
    try:
        owners = await lease_checkup.owners(access, manifest)
    except (LeaseError, ConfigurationError):
        # Ignore this error, because the lease table check reports it.
        owners = {}
    now = datetime.now(UTC)
    findings: list[Finding] = []
    for name, ref in manifest.streams.items():
        checks = [
            checkup.stream(access, ref),
            checkup.consumer(access, ref),
            checkup.shards(access, ref),
            dry_runs.catching_up(access, ref),
            checkup.subscribe_rate(access, ref, now),
            checkup.consumer_quota(access, ref),
        ]
        if ref is not measured:
            # Skip the dry run for the stream to be measured: it may count towards the limit of one SubscribeToShard call per second.
            checks.insert(3, dry_runs.subscribing(access, ref, owners.get(name, ()), anyway=anyway))
        findings += await asyncio.gather(*checks)
        findings += filter(None, [await dry_runs.key(access, ref)])
    return findings
