"""A batch read of the local Kinesis in memory, in virtual time: what its tasks do."""

from dataclasses import replace

from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.batch.reading import RangeEvent, RangeProgress, read_range
from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode
from tests.emulator.memory import MemoryClient, MemoryKinesis

TIP = Position.after(10**60)


async def batch_rows(kinesis: MemoryKinesis, ref: StreamRef, clock: Clock) -> list[tuple[str, bytes]]:
    """Partition keys and data of all records, from the horizons of the shards to their ends or tips."""
    client = MemoryClient(kinesis)
    topology = Topology(client, clock, Patience(RetrySettings(), clock))
    ref, limits = replace(ref, consumer_arn=None), polling_limits(KINESIS_LIMITS)
    transport = PollingTransport(client, clock, 0.5)
    rows: list[tuple[str, bytes]] = []

    async def take(portion: RangeEvent) -> None:
        part = portion.part
        for batch in decode([portion.event.payload], part.key, portion.after, SHARD_END, deaggregate=True):
            rows.extend((row["partitionKey"], row["data"]) for row in batch.to_pylist())

    for shard in await topology.shards(ref.stream_arn):
        stream = Stream(ref, transport, topology, RetrySettings(), "manifest.json", clock, limits)
        end = TIP if shard.last is None else SHARD_END
        part = BatchRange(ShardKey(ref.name, shard.shard_id), shard.hash_range, TRIM_HORIZON, end, shard.last)
        await read_range(stream, RangeProgress(part), clock.time, take, clock, patience=600.0, fail_on_data_loss=True)
    return rows
