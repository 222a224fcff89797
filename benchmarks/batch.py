"""A batch read of one shard, on one core, with GetRecords and with a subscription, compared with a loop over GetRecords with boto3,
which gives the records as dictionaries.

The local Kinesis, without its limits, runs in a process of its own. MB a second of the reading process's CPU time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess
from kinesis_efo.batch.planning import plan
from kinesis_efo.batch.reading import Reading
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import AwsSettings, BatchOptions
from kinesis_efo.positions import Position
from kinesis_efo_local import Settings
from tests.support.world import wait_until

RUNS: Final = 3
RECORDS: Final = 100_000
RECORD_BYTES: Final = 1024
SHARD: Final = "shardId-000000000000"


def run() -> list[Figure]:
    """Measure. MB count the records' data."""
    loop, ours, subscribed = [], [], []
    with AwsProcess(settings=Settings(read_limit=False)) as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="orders", ShardCount=1)
        arn = kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
        source = random.Random(2013)
        for _ in range(RECORDS // 500):
            data = source.randbytes(RECORD_BYTES)
            kinesis.put_records(StreamARN=arn, Records=[{"Data": data, "PartitionKey": f"k{n}"} for n in range(500)])
        # A tip that lies behind us, so that nothing waits for it.
        tip = Position.at_timestamp(round(time.time() * 1000) + 1)
        wait_until(lambda: time.time() > tip.value / 1000 + 2)
        ref = StreamRef("orders", "orders", arn, None)
        manifest = Manifest("lake", "local", "us-east-1", "", {"orders": ref}, "here", {"orders": "orders"})
        # The name that the versions before have, too.
        options = BatchOptions.parse({"manifest": "here", "batch.maxRate": "1g"})
        options = replace(options, source=replace(options.source, aws=AwsSettings(endpoint_url=aws.endpoint_url)))
        planned = asyncio.run(plan(manifest, options, tip))
        consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="lake")["Consumer"]["ConsumerARN"]
        with_consumer = replace(manifest, streams={"orders": replace(ref, consumer_arn=consumer)})
        efo = replace(options.source, read_mode="efo")
        for _ in range(RUNS + 1):
            loop.append(_rate(lambda: _loop(kinesis, arn)))
            ours.append(
                _rate(lambda: sum(rows.num_rows for rows in Reading(planned, manifest, options.source).batches()))
            )
            subscribed.append(
                _rate(lambda: sum(rows.num_rows for rows in Reading(planned, with_consumer, efo).batches()))
            )
    case = f"{RECORD_BYTES} B records, one shard"
    baseline = Figure(case, "boto3, a loop over GetRecords", "MB/s and core", tuple(loop[1:]))
    goal = Goal(4, of_ratio=True)
    return [
        baseline,
        Figure.against(baseline, case, "kinesis-efo, batch read", ours[1:], goal),
        Figure.against(baseline, case, "kinesis-efo, batch read with readMode=efo", subscribed[1:], goal),
    ]


def _loop(kinesis: Any, arn: str) -> int:
    answer = kinesis.get_shard_iterator(StreamARN=arn, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    iterator, records = answer["ShardIterator"], 0
    while True:
        answer = kinesis.get_records(StreamARN=arn, ShardIterator=iterator)
        records += len(answer["Records"])
        if not answer["MillisBehindLatest"]:
            return records
        iterator = answer["NextShardIterator"]


def _rate(read: Callable[[], int]) -> float:
    begin = time.process_time()
    assert read() == RECORDS
    return RECORDS * RECORD_BYTES / 1e6 / (time.process_time() - begin)
