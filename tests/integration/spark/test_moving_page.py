"""A query begins exactly where one of EMR's built-in connector stopped, by the program of examples/emr_connector."""

import json
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark.sql import SparkSession

import kinesis_efo
from kinesis_efo_local import LocalAws
from tests.support.pages import ROOT
from tests.support.world import make_world, stored, wait_for_rows, wait_until

pytestmark = pytest.mark.spark43
PROGRAM = ROOT / "examples" / "emr_connector" / "positions.py"
BATCH = 7
STARTED_MS = int(time.time() * 1000)
"""When the last micro-batch of the old query began: before everything that the test puts."""
NOTHING = {"iteratorPosition": "", "subSequenceNumber": -1, "isLast": True}


def behind(record: dict[str, Any], sub: int = -1, *, last: bool = True) -> dict[str, Any]:
    """The connector's position behind a record, or behind one of an aggregate."""
    number = record["SequenceNumber"]
    return {
        "iteratorType": "AFTER_SEQUENCE_NUMBER",
        "iteratorPosition": number,
        "subSequenceNumber": sub,
        "isLast": last,
    }


def write_checkpoint(checkpoint: Path, began: dict[str, dict[str, Any]], read: dict[str, dict[str, Any]]) -> None:
    """A checkpoint as spark-sql-kinesis-connector leaves it (KinesisV2SourceOffset, HDFSMetadataCommitter)."""
    head = {"metadata": {"streamName": "shop-orders", "batchId": str(BATCH)}}
    texts = {shard: {name: json.loads(json.dumps(value)) for name, value in at.items()} for shard, at in began.items()}
    # In the offset log, every value is text.
    offset = head | {
        shard: {name: value if isinstance(value, str) else json.dumps(value) for name, value in at.items()}
        for shard, at in texts.items()
    }
    for number in (BATCH - 1, BATCH, BATCH + 1):
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": STARTED_MS, "conf": {}}
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{json.dumps(settings)}\n{json.dumps(offset)}")
    for number in (BATCH - 1, BATCH):
        (checkpoint / "commits").mkdir(exist_ok=True)
        (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (checkpoint / "commits" / f".{number}.crc").write_bytes(b"crc")
    # The micro-batch that was not committed has written positions, too: they do not count.
    for number in (BATCH, BATCH + 1):
        shards = checkpoint / "sources" / "0" / "shard-source" / str(number)
        shards.mkdir(parents=True)
        for shard, at in read.items():
            far = at if number == BATCH else {**NOTHING, "iteratorType": "SHARD_END"}
            (shards / shard).write_text(json.dumps({"shardId": shard, **far}))


@pytest.fixture
def program() -> dict[str, Any]:
    """The names that the program defines."""
    return runpy.run_path(str(PROGRAM), run_name="positions")


@pytest.mark.long
def test_a_query_begins_where_the_connector_stopped(
    spark: SparkSession, local_aws: LocalAws, tmp_path: Path, program: dict[str, Any]
) -> None:
    """One shard was split and read to its end, one stands within an aggregate, one was read in part before a split, one is idle."""
    world = make_world(local_aws, tmp_path, {"orders": 4})
    stream = world.streams["orders"]
    over, within, early, idle = (
        sorted(world.shards(), key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))[number]
        for number in range(4)
    )
    keys = {shard["ShardId"]: shard["HashKeyRange"]["StartingHashKey"] for shard in (over, within, early, idle)}

    def put(shard: dict[str, Any], data: bytes) -> None:
        key = shard["HashKeyRange"]["StartingHashKey"]
        world.kinesis.put_record(StreamName=stream, Data=data, PartitionKey="k", ExplicitHashKey=key)

    for number in range(4):
        put(over, b"read %d" % number)
        put(early, b"read %d" % number if number < 2 else b"new e%d" % number)
    aggregator = RecordAggregator()
    for number in range(5):
        hash_key = keys[within["ShardId"]]
        aggregator.add_user_record("k", b"read %d" % number if number < 2 else b"new w%d" % number, hash_key)
    put(within, aggregator.clear_and_get().get_contents()[2])
    put(within, b"new behind the aggregate")
    for shard in (over, early):
        middle = (int(shard["HashKeyRange"]["StartingHashKey"]) + int(shard["HashKeyRange"]["EndingHashKey"])) // 2
        world.kinesis.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        world.wait_active()
    children = [each for each in world.shards() if each.get("ParentShardId")]
    assert len(children) == 4
    for number, child in enumerate(children):
        put(child, b"new c%d" % number)
    put(idle, b"new i")

    read = stored(world.kinesis, stream)
    at = {
        over["ShardId"]: {**NOTHING, "iteratorType": "SHARD_END"},
        within["ShardId"]: behind(read[within["ShardId"]][0], 1, last=False),
        early["ShardId"]: behind(read[early["ShardId"]][1]),
        idle["ShardId"]: {**NOTHING, "iteratorType": "LATEST"},
    }
    began = {shard: {**NOTHING, "iteratorType": "TRIM_HORIZON"} for shard in at}
    checkpoint = tmp_path / "old"
    write_checkpoint(checkpoint, began, at)
    position = program["starting_position"](checkpoint, "orders", world.shards())
    expected = [b"new e2", b"new e3", b"new w2", b"new w3", b"new w4", b"new behind the aggregate", b"new i"]
    expected += [b"new c%d" % number for number in range(4)]

    frame = kinesis_efo.read_stream(spark, **world.options, startingPosition=position)
    writer = frame.writeStream.format("memory").queryName("moved")
    query = writer.option("checkpointLocation", str(tmp_path / "new")).start()
    try:
        wait_for_rows(query, len(expected))
        wait_until(lambda: not query.status["isDataAvailable"], what="nothing more comes")
    finally:
        query.stop()
    assert sorted(row.data for row in spark.table("moved").collect()) == sorted(expected)
