"""A small world to read from: streams with consumers on the local AWS, a lease table and a manifest file.

Creates with boto3 what `cdktf deploy` declares on AWS.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psutil
import pytest

from kinesis_efo_local import LocalAws

APPLICATION = "lake"
QUICK: dict[str, Any] = {
    "consumer_creating_seconds": 0.0,
    "consumer_deleting_seconds": 0.0,
    "idle_event_seconds": 0.2,
    "resubscribe_seconds": 0.0,
    "subscribe_interval_seconds": 0.0,
    "read_limit": False,
}
"""Settings of a local AWS that is not waited for."""
_numbers = itertools.count()
_clients: WeakKeyDictionary[LocalAws, dict[tuple[str, str], Any]] = WeakKeyDictionary()


@dataclass
class World:
    """The resources of one application.

    Attributes:
        aws: The local AWS.
        manifest: Path of the manifest file.
        streams: Names of the streams in Kinesis, by logical name.
        consumers: ARNs of the consumers, by logical name.
        lease_table: Name of the lease table.
        kinesis: A boto3 client.
        dynamodb: A boto3 client.
    """

    aws: LocalAws
    manifest: Path
    streams: dict[str, str]
    consumers: dict[str, str]
    lease_table: str
    kinesis: Any = field(repr=False)
    dynamodb: Any = field(repr=False)

    @property
    def options(self) -> dict[str, str]:
        """Source options that read this world."""
        return {"manifest": str(self.manifest), "endpointUrl": self.aws.endpoint_url, "leaseTimeout": "2s"}

    def put(self, records: Iterable[tuple[str, bytes]], stream: str = "orders") -> int:
        """Put (partition key, data) pairs, in order.

        Returns:
            Their number.
        """
        count = 0
        for batch in _batches(records, 500):
            response = self.kinesis.put_records(
                StreamName=self.streams[stream], Records=[{"PartitionKey": key, "Data": data} for key, data in batch]
            )
            assert response["FailedRecordCount"] == 0, response
            count += len(batch)
        return count

    def leases(self) -> dict[str, dict[str, Any]]:
        """The rows of the lease table, by lease key."""
        items = self.dynamodb.scan(TableName=self.lease_table, ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items}

    def reader(self) -> psutil.Process:
        """The process that reads this world, as its leases name it: others, of queries that are just ending, may be around."""
        (owner,) = {row["leaseOwner"]["S"] for row in self.leases().values() if "leaseOwner" in row}
        return psutil.Process(int(owner.split(":")[3]))

    def shards(self, stream: str = "orders") -> list[dict[str, Any]]:
        """List the shards of a stream; it has some, whatever a Kinesis says that answers wrongly."""
        shards: list[dict[str, Any]] = []
        while not shards:
            shards = self.kinesis.list_shards(StreamName=self.streams[stream])["Shards"]
        return shards

    def records(self, stream: str = "orders") -> list[dict[str, Any]]:
        """All records of a stream, shard by shard."""
        return stored_records(self.kinesis, self.streams[stream])

    def wait_active(self, stream: str = "orders") -> None:
        """Wait until a reshard is done."""
        wait_until(lambda: _status(self.kinesis, self.streams[stream]) == "ACTIVE")


def stored(kinesis: Any, name: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each shard of a stream, by its name in Kinesis."""
    found: dict[str, list[dict[str, Any]]] = {}
    for shard in kinesis.list_shards(StreamName=name)["Shards"]:
        asked = {"StreamName": name, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = kinesis.get_shard_iterator(**asked)["ShardIterator"]
        records = found[shard["ShardId"]] = []
        while iterator:
            page = kinesis.get_records(ShardIterator=iterator, Limit=10_000)
            records += page["Records"]
            iterator = page.get("NextShardIterator") if page["Records"] or page["MillisBehindLatest"] else None
    return found


def make_world(
    aws: LocalAws, directory: Path, streams: dict[str, int] | Sequence[str] = ("orders",), **create: Any
) -> World:
    """Create streams (shard counts by name), their consumers, a lease table and a manifest, all with new names."""
    kinesis, dynamodb = _client(aws, "kinesis"), _client(aws, "dynamodb")
    shard_counts = dict(streams) if isinstance(streams, dict) else dict.fromkeys(streams, 1)
    number = next(_numbers)
    names = {name: f"test{number}-{name}" for name in shard_counts}
    entries, consumers = {}, {}
    for name, count in shard_counts.items():
        kinesis.create_stream(StreamName=names[name], ShardCount=count, **create)
    for name in shard_counts:
        wait_until(lambda name=name: _status(kinesis, names[name]) == "ACTIVE")
        arn = kinesis.describe_stream_summary(StreamName=names[name])["StreamDescriptionSummary"]["StreamARN"]
        consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=APPLICATION)["Consumer"]
        consumers[name] = consumer["ConsumerARN"]
        entries[name] = {"streamName": names[name], "streamArn": arn, "consumerArn": consumer["ConsumerARN"]}
    for arn in consumers.values():
        wait_until(lambda arn=arn: _consumer_status(kinesis, arn) == "ACTIVE")
    table = f"kinesis-efo-test{number}-{APPLICATION}"
    create_lease_table(dynamodb, table)
    manifest = directory / f"manifest{number}.json"
    document = {
        "schemaVersion": 1,
        "application": APPLICATION,
        "environment": "test",
        "region": "us-east-1",
        "leaseTable": {"name": table, "arn": f"arn:aws:dynamodb:us-east-1:123456789012:table/{table}"},
        "streams": entries,
    }
    manifest.write_text(json.dumps(document))
    return World(aws, manifest, names, consumers, table, kinesis, dynamodb)


@pytest.fixture
def world(local_aws: LocalAws, tmp_path: Path) -> Callable[..., World]:
    """Makes a world; arguments as `make_world`. For a `conftest.py` with a local AWS."""
    return partial(make_world, local_aws, tmp_path)


def _client(aws: LocalAws, service: str) -> Any:
    """A client for all worlds of a local AWS: to make one takes as long as three calls. It ends with the local AWS."""
    made = _clients.setdefault(aws, {})
    if (key := (service, aws.endpoint_url)) not in made:
        made[key] = aws.client(service)
    return made[key]


def stored_records(kinesis: Any, name: str) -> list[dict[str, Any]]:
    """The records of a stream, by its name in Kinesis, shard by shard."""
    return [record for found in stored(kinesis, name).values() for record in found]


def create_lease_table(dynamodb: Any, name: str) -> None:
    """Create a lease table as infra declares it."""
    dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


@contextmanager
def repeating(work: Callable[[], object], every: float) -> Iterator[None]:
    """Do something every so many seconds, in a thread, for as long as the block runs."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.wait(every):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def renewing(here: World, key: str, table: str | None = None) -> AbstractContextManager[None]:
    """A worker somewhere else, which renews a lease."""
    update = partial(here.dynamodb.update_item, TableName=table or here.lease_table, Key={"leaseKey": {"S": key}})
    one = {":one": {"N": "1"}}
    return repeating(partial(update, UpdateExpression="ADD leaseCounter :one", ExpressionAttributeValues=one), 0.1)


def wait_until(condition: Any, seconds: float = 60.0, what: str = "", *, every: float = 0.02) -> Any:
    """Poll until a condition returns a true value, and return it. Polls a costly condition less often than `every` so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        # Of all threads: the local AWS that is asked may be in this process.
        began = time.process_time()
        if result := condition():
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what or condition}")
        time.sleep(max(every, 20 * (time.process_time() - began)))


def wait_for_rows(query: Any, rows: int, seconds: float = 90.0) -> None:
    """Wait until a streaming query has processed a number of rows in all. Raises if the query fails."""
    processed: dict[int, int] = {}

    def done() -> bool:
        if query.exception() is not None:
            raise AssertionError(f"the query failed: {query.exception()}")
        for progress in query.recentProgress:
            processed[progress["batchId"]] = progress["numInputRows"]
        return sum(processed.values()) >= rows

    # The JVM writes all of it down each time.
    wait_until(done, seconds, f"{rows} rows; so far {processed}", every=0.1)


def _status(kinesis: Any, name: str) -> str:
    return str(kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"])


def _consumer_status(kinesis: Any, arn: str) -> str:
    return str(kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])


def _batches(records: Iterable[tuple[str, bytes]], size: int) -> Iterable[list[tuple[str, bytes]]]:
    iterator = iter(records)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
