"""Checks of an application's lease table. Test writes require a row that never exists, so they always fail and do not change the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import Cause, cause_of, code_of, describe
from kinesis_efo.clock import Clock
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import Manifest
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.findings import CheckFailed, Finding, finding
from kinesis_efo_tools.operate.watch import watch

PROBE_KEY: Final = "kinesis-efo-doctor"
"""Lease key of the test writes. They require a row with this key, which never exists, so they always fail."""


async def open_table(clients: Clients, manifest: Manifest) -> LeaseTable:
    """Open the lease table of an application."""
    return LeaseTable(
        await clients.client("dynamodb"),
        manifest.lease_table,
        declared_by=manifest.declared_by,
    )


async def owners(clients: Clients, manifest: Manifest) -> dict[str, set[str]]:
    """Return the workers that own leases of each stream, by the stream's logical name.

    Raises LeaseError if the table cannot be read.
    """
    keys = LeaseKeys(manifest.stream_names)
    found: dict[str, set[str]] = {name: set() for name in manifest.streams}
    for key, lease in (await (await open_table(clients, manifest)).scan()).leases.items():
        stream = keys.stream(key)
        if stream in found and lease.owner is not None:
            found[stream].add(lease.owner)
    return found


async def live_readers(
    clients: Clients,
    manifest: Manifest,
    stream: str,
    lease_timeout: float,
    clock: Clock,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, list[str]]:
    """Return the live workers that own leases of a stream, each with the keys of these leases.

    An owner counts as dead after `lease_timeout` seconds without a renewal. `waiting` is called before the second scan of the
    lease table, if one is necessary.
    """
    keys = LeaseKeys(manifest.stream_names)

    def of_stream(lease: Lease) -> bool:
        return keys.stream(lease.key) == stream

    table = await open_table(clients, manifest)
    await table.check()
    seen = await watch(table, clock, lease_timeout, of_stream, waiting)
    held = {owner: [key for key in rows if keys.stream(key) == stream] for owner, rows in seen.live_owners.items()}
    return {owner: rows for owner, rows in held.items() if rows}


async def lease_table(clients: Clients, manifest: Manifest) -> Finding:
    """Check that the lease table exists, has the right key and can be read."""

    async def look() -> str:
        table = await open_table(clients, manifest)
        await table.check()
        scan = await table.scan()
        if scan.unreadable:
            raise CheckFailed("; ".join(list(scan.unreadable.values())[:3]), "correct or delete the rows")
        owned = sum(lease.owner is not None for lease in scan.leases.values())
        return f"{manifest.lease_table}: ACTIVE, key leaseKey (S), {len(scan.leases)} rows, {owned} owned"

    return await finding("lease table", look(), action="dynamodb:Scan")


async def lease_writes(clients: Clients, manifest: Manifest) -> Finding:
    """Check that leases may be written. Uses test writes that always fail because of their condition."""

    async def look() -> str:
        dynamodb = await clients.client("dynamodb")
        row = {"leaseKey": {"S": PROBE_KEY}}
        conditional = {"TableName": manifest.lease_table, "ConditionExpression": "attribute_exists(leaseKey)"}
        update = {"UpdateExpression": "SET leaseCounter = :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
        for action, write, request in (
            ("PutItem", dynamodb.put_item, {"Item": row}),
            ("UpdateItem", dynamodb.update_item, {"Key": row, **update}),
            ("DeleteItem", dynamodb.delete_item, {"Key": row}),
        ):
            try:
                await write(**conditional, **request)
            except ClientError as error:
                cause = cause_of(error)
                if cause is Cause.MISSING:
                    raise CheckFailed(
                        f"lease table {manifest.lease_table} does not exist", "deploy the application's stack"
                    ) from error
                if cause is Cause.DENIED:
                    fix = f"attach the application's policy to the role: it allows dynamodb:{action} and the use of the key"
                    raise CheckFailed(describe(error), fix) from error
                if code_of(error) != "ConditionalCheckFailedException":
                    raise
        return "rows may be created, changed and deleted"

    return await finding("lease writes", look(), action="dynamodb:UpdateItem")
