"""Refuses a batch read through a consumer that a query reads with."""

from __future__ import annotations

import logging
from typing import Any

from kinesis_efo.clock import Clock
from kinesis_efo.errors import AlreadyRunningError
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.leases.watch import watch
from kinesis_efo.manifest import Manifest

logger = logging.getLogger(__name__)


async def check_consumers(manifest: Manifest, client: Any, lease_timeout: float, clock: Clock) -> None:
    """Check that no query reads with the consumers of an application.

    A subscription takes the place of another one with the same consumer. So a batch read would cut off a live query, shard by shard,
    and the query the batch read.

    Args:
        manifest: The streams to read.
        client: An aiobotocore `dynamodb` client.
        lease_timeout: Seconds after which a silent run is dead. It is watched for so long, where there is one.
        clock: Time.

    Raises:
        AlreadyRunningError: A query reads with a consumer.
        LeaseTableError: Whether one does cannot be told.
    """
    keys = LeaseKeys(manifest.stream_names)
    table = LeaseTable(
        client,
        manifest.lease_table,
        declared_by=manifest.declared_by,
    )
    seen = await watch(
        table,
        clock,
        lease_timeout,
        lambda lease: keys.stream(lease.key) in manifest.streams,
        lambda: logger.info("%s has an owner: looking for %g s whether it is alive", table.label, lease_timeout),
    )
    for owner, rows in sorted(seen.live_owners.items()):
        if read := sorted({str(stream) for key in rows if (stream := keys.stream(key)) in manifest.streams}):
            raise AlreadyRunningError(
                f"application {manifest.application!r}, stream {', '.join(read)}, is read by {readable(owner)}: a batch read with "
                "readMode=efo would take its consumer from it. Leave the option out, or declare an application of its own for batch reads, "
                f"and give its manifest; this one is {manifest.source}"
            )
