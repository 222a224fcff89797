"""Ranges read from the local AWS over real HTTP, and what is left when nobody wants the rest."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest

from kinesis_efo.batch.planning import plan, tip_at
from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.batch.reading import Reading
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import AwsSettings, BatchOptions
from tests.support.aggregates import as_the_kpl
from tests.support.raw_kinesis import RawKinesis

from .conftest import Bench

Local = Callable[..., Bench]


class Read:
    """A batch read of a bench's stream."""

    def __init__(self, bench: Bench, shards: int = 1, **options: str) -> None:
        self.bench = bench
        ref = bench.stream(shards)
        ref = replace(ref, consumer_arn=None)
        options = {"maxShardRate": "1g", **options}
        self.manifest = Manifest("lake", "dev", "us-east-1", "", {"orders": ref}, "m.json", {"orders": ref.stream_name})
        parsed = BatchOptions.parse({"manifest": "m.json", **options})
        aws = AwsSettings(endpoint_url=bench.aws.endpoint_url)
        self.options = replace(parsed, source=replace(parsed.source, aws=aws))

    async def plan(self) -> list[BatchRange]:
        return await plan(self.manifest, self.options, tip_at(time.time()))

    def reading(self, parts: list[BatchRange]) -> Reading:
        return Reading(parts, self.manifest, self.options.source)


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "kinesis-efo batch" in thread.name]


def test_shards_of_a_task_are_read_in_parallel(local: Local, caplog: pytest.LogCaptureFixture) -> None:
    bench = local()
    read = Read(bench, 4)
    bench.put(*(f"k{n}" for n in range(200)), data=bytes(100))
    caplog.set_level("DEBUG", "kinesis_efo.batch")
    planned = asyncio.run(read.plan())
    began = time.monotonic()
    reading = read.reading(planned)
    reading.word_seconds = 0.5
    batches = list(reading.batches())
    assert time.monotonic() - began < 8, "each of four waits for the tip, all at a time"
    assert sorted(chain(*(batch["partitionKey"].to_pylist() for batch in batches))) == sorted(
        f"k{n}" for n in range(200)
    )
    for part in planned:
        lines = [line for line in caplog.messages if line.startswith(f"{part.key}: ")]
        assert len(lines) >= 2
        assert "complete after" in lines[-1]
    assert not ours()


@pytest.mark.parametrize("deaggregate", ["true", "strict"])
def test_aggregates_of_automatic_streams_are_read(local: Local, deaggregate: str) -> None:
    bench = local()
    read = Read(bench, 8, deaggregate=deaggregate)
    arn = read.manifest.streams["orders"].stream_arn
    bench.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    for first, strategy in ((0, "USER_PARTITION_KEY"), (10_000, "AUTO")):
        RawKinesis(bench.aws).update_stream_record_distribution_strategy(
            StreamARN=arn, RecordDistributionStrategy=strategy
        )
        parcels = list(as_the_kpl(((f"key-{n}", b"%d" % n) for n in range(first, first + 10_000)), shards=8))
        assert bench.kinesis.put_records(StreamARN=arn, Records=parcels)["FailedRecordCount"] == 0
    batches = list(read.reading(asyncio.run(read.plan())).batches())
    found = sorted(int(data) for batch in batches for data in batch["data"].to_pylist())
    assert found == list(range(20_000))


def test_records_without_a_partition_key_have_null(local: Local) -> None:
    bench = local()
    read = Read(bench, 2)
    arn = read.manifest.streams["orders"].stream_arn
    bench.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    raw = RawKinesis(bench.aws)
    raw.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="AUTO")
    records = [{"Data": b"%d" % n, **({"PartitionKey": f"key-{n}"} if n % 2 else {})} for n in range(100)]
    raw.put_records(StreamARN=arn, Records=records)
    rows = [row for batch in read.reading(asyncio.run(read.plan())).batches() for row in batch.to_pylist()]
    assert {int(row["data"]): row["partitionKey"] for row in rows} == {
        n: f"key-{n}" if n % 2 else None for n in range(100)
    }
