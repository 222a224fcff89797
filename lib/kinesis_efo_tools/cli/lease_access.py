"""Access to an application's lease table, limited to the streams and shards that the command line selects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import floor

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.kinesis.topology import Topology, explained
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import Manifest, manifest_of_arns
from kinesis_efo.options import AwsSettings, SourceOptions
from kinesis_efo.options.readers import refusal, time_position
from kinesis_efo.positions import Position, PositionKind, ShardKey
from kinesis_efo.processes import notes_directory
from kinesis_efo_tools.cli import arguments
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.lease_checkup import open_table


@dataclass(frozen=True)
class Leases:
    """An application's lease table, and the selected streams and shards. The table was checked when it was opened.

    `manifest` has only the selected streams. `shards` has the ids of the selected shards; empty for all shards.
    """

    table: LeaseStore
    keys: LeaseKeys
    manifest: Manifest
    shards: frozenset[str]
    access: Access
    clock: Clock = field(default_factory=SystemClock)

    async def now(self) -> Position:
        """Return the current time by Kinesis' clock, as a position."""
        ref = next(iter(self.manifest.streams.values()))
        return Position.at_timestamp(floor(await self.access.kinesis_time(ref.stream_arn) * 1000))

    async def listed(self) -> dict[ShardKey, Shard]:
        """Return the shards of the selected streams, as Kinesis lists them now."""
        topology = Topology(await self.access.client("kinesis"))
        found: dict[ShardKey, Shard] = {}
        for name, ref in self.manifest.streams.items():
            shards = await explained(topology.shards(ref.stream_arn), ref, self.manifest.source)
            found |= {ShardKey(name, shard.shard_id): shard for shard in shards}
        return found

    async def other_table(self, name: str, option: str) -> LeaseStore:
        """Open the lease table of a KCL application. `option` is the command-line option that names the table, for error messages."""
        if name == self.manifest.lease_table:
            raise UsageError(
                f"{name} is the application's own lease table: {option} must name that of the KCL application"
            )
        dynamodb = await self.access.client("dynamodb")
        table = LeaseTable(dynamodb, name, declared_by="the KCL application of that name")
        await table.check()
        return table

    def selects(self, lease: Lease) -> bool:
        """Whether a shard's row is selected."""
        shard = self.keys.decode(lease.key)
        named = shard is not None and shard.stream in self.manifest.streams
        return named and (not self.shards or (shard is not None and shard.shard in self.shards))

    def guards(self, lease: Lease) -> bool:
        """Whether the owner of a row may be reading selected shards. True for selected rows and for a run's lease on a selected stream."""
        return self.selects(lease) or self.is_run(lease)

    def is_run(self, lease: Lease) -> bool:
        """Whether a row is a run's lease on a selected stream."""
        return lease.is_run and self.keys.stream(lease.key) in self.manifest.streams

    def runs(self, scan: Scan) -> dict[str, Lease]:
        """Return the runs' leases on the selected streams, by stream."""
        found = {self.keys.stream(key) or "": lease for key, lease in scan.leases.items() if self.is_run(lease)}
        return dict(sorted(found.items()))

    def selected(self, scan: Scan) -> dict[str, Lease]:
        """Return the rows of the selected shards, by lease key. If a shard has several rows, returns the row with this library's key format.

        Raises ConfigurationError if a selected shard has no row.
        """
        found = {lease.key: lease for lease in self.keys.by_shard(scan.leases).values() if self.selects(lease)}
        missing = self.shards - {shard.shard for key in found if (shard := self.keys.decode(key))}
        if missing:
            streams = ", ".join(sorted(self.manifest.streams))
            raise ConfigurationError(
                f"{self.table.label} has no lease for {', '.join(sorted(missing))} of {streams}; "
                "`kinesis-efo leases list` shows those it has"
            )
        return found


def start_position(option: str, text: str, *, shards: bool = False) -> Position | None:
    """Parse a start position; returns None for LATEST. With `shards`, accepts positions that are only valid in a single shard."""
    name = text.strip().partition(":")[0].upper()
    try:
        if text.strip().upper() == "LATEST":
            return None
        if name not in {"TRIM_HORIZON", "AFTER", "INSIDE", "SHARD_END"}:
            return time_position(text)
        position = Position.parse(text.strip())
    except ValueError as error:
        rule = "TRIM_HORIZON, LATEST, AT_TIMESTAMP:<ISO 8601 or epoch ms>"
        if option == "--to":
            rule += ", AFTER:<sequence number> or SHARD_END"
        raise UsageError(f"{option} {refusal(error, rule, text)}") from None
    if not shards and position.kind is not PositionKind.TRIM_HORIZON:
        remedy = ": select it with --shard" if option == "--to" else ", not an application's initial one"
        raise UsageError(f"{option} {name} is a position inside one shard{remedy}")
    return position


@asynccontextmanager
async def opened(
    aws: AwsSettings, location: str, streams: list[str] | None = None, shards: Sequence[str] | None = None
) -> AsyncIterator[Leases]:
    """Open an application's lease table.

    `streams` has logical names, `shards` has shard ids; None selects all. Raises ManifestError if the manifest cannot be loaded, UsageError
    if it lacks one of the streams, LeaseError if the table is missing, is not a lease table, or cannot be reached.
    """
    manifest = arguments.load(location, aws, streams)
    async with Access(aws, manifest.region) as access:
        table = await open_table(access, manifest)
        await table.check()
        yield Leases(table, LeaseKeys(manifest.stream_names), manifest, frozenset(shards or ()), access)


@asynccontextmanager
async def watched(aws: AwsSettings, location: str, streams: list[str] | None = None) -> AsyncIterator[Leases]:
    """Open an application's lease table like `opened`, or this host's lease file for a query without a lease table.

    `location` is the manifest's location. For a query without a lease table, it is a list of consumer ARNs, or of stream ARNs if the query
    polls, separated by commas. Raises ConfigurationError if no run on this host reads with these ARNs.
    """
    if not location.startswith("arn:"):
        async with opened(aws, location, streams) as leases:
            yield leases
        return
    from kinesis_efo.leases.host_table import HostTable

    given = {"streamArn": ",".join(each.partition("/consumer/")[0] for each in location.split(","))}
    given |= {"consumerArn": location} if "/consumer/" in location else {"readMode": "polling"}
    manifest = manifest_of_arns(SourceOptions.parse(given)).in_region(aws.region).select(streams)
    async with Access(aws, manifest.region) as access:
        table = HostTable({name: ref.reader for name, ref in manifest.streams.items()}, notes_directory())
        leases = Leases(table, LeaseKeys(manifest.stream_names), manifest, frozenset(), access)
        if not any(row.owner for row in leases.runs(await table.scan()).values()):
            raise ConfigurationError(
                f"no run of this user on this host reads with {location} and without a lease table; run this on the driver's host, or give "
                "the query kinesis-efo option 'leaseTable' or a manifest"
            )
        yield leases
