"""The producer against the local Kinesis: real HTTP, real limits, real faults."""

import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinesis_efo.errors import AccessRefusedError, RecordRefusedError, StreamNotFoundError
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import Producer, ProducerSettings
from kinesis_efo.records.aggregation import deaggregate
from kinesis_efo_local import AwsError, NoFaults, Request
from tests.support.aggregates import read_by_aws
from tests.support.cutting_proxy import CuttingProxy
from tests.support.messages import raises

Start = Callable[..., Any]
HALF = 1 << 127


class Scripted(NoFaults):
    """Refuses PutRecords as a script says, one entry per call; then nothing more."""

    def __init__(
        self, *script: AwsError | None, operation: str = "PutRecords", for_ever: AwsError | None = None
    ) -> None:
        self.script = list(script)
        self.operation = operation
        self.for_ever = for_ever

    async def before(self, request: Request) -> None:
        if request.operation != self.operation:
            return
        error = self.script.pop(0) if self.script else self.for_ever
        if error is not None:
            raise error


def test_records_are_stored_as_they_were_put(target: Start) -> None:
    kinesis = target(shards=3, create={"MaxRecordSizeInKiB": 10_240})
    with Producer("orders") as producer:
        producer.put(b"x" * ((10 << 20) - 1), "k")
        with pytest.raises(RecordRefusedError, match=r"10485761 bytes\) is larger than the 10485760 bytes"):
            producer.put(b"x" * (10 << 20), "k")
        producer.put(b"", '"empty\\é\n')
        producer.put("text: é\n", "tëxt")
        producer.put(bytes(range(256)), "bytes", HALF)
        for number in range(1_000):
            producer.put(str(number), f"key-{number}")
        producer.put_many((str(number), f"key-{number}") for number in range(1_000, 2_000))
        written = [producer.send("sent", f"sent-{number}") for number in range(10)]
        producer.flush()
        assert producer.metrics.records_written == 2_014
        assert producer.metrics.retries == {}
    found = {record["PartitionKey"]: record["Data"] for record in kinesis.records()}
    assert len(found) == 2_014
    places = {(shard, record["SequenceNumber"]) for shard, records in kinesis.read().items() for record in records}
    assert len({each.result() for each in written} & places) == 10
    assert (found['"empty\\é\n'], found["tëxt"]) == (b"", "text: é\n".encode())
    assert all(found[f"key-{number}"] == str(number).encode() for number in range(2_000))
    assert b"bytes" not in found
    middle = next(shard for shard in kinesis.shards() if int(shard["HashKeyRange"]["EndingHashKey"]) >= HALF)
    assert [record["Data"] for record in kinesis.read()[middle["ShardId"]] if record["PartitionKey"] == "bytes"] == [
        bytes(range(256))
    ]


# Shows 85.
def test_stream_is_given_by_arn_with_explicit_settings(target: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis = target()
    arn = kinesis.client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with Producer(arn, aws=AwsSettings(endpoint_url=kinesis.aws.endpoint_url)) as producer:
        producer.put(b"x", "k")
    assert len(kinesis.records()) == 1


def users(kinesis: Any) -> Iterator[tuple[str, bytes]]:
    """The records as this library's reader decodes them, shard by shard."""
    read = kinesis.read()
    for shard in kinesis.shards():
        keys = shard["HashKeyRange"]
        for record in read[shard["ShardId"]]:
            inside = deaggregate(record["Data"], (int(keys["StartingHashKey"]), int(keys["EndingHashKey"])))
            if inside is None:
                yield record["PartitionKey"], record["Data"]
            else:
                yield from ((each.partition_key, each.data) for each in inside)


def test_aggregates_reach_readers_and_exceed_the_record_limit(target: Start) -> None:
    kinesis = target(shards=2, write_limit=True)
    began = time.monotonic()
    with Producer("orders", settings=ProducerSettings(aggregate=True)) as producer:
        for number in range(20_000):
            producer.put(str(number), f"key-{number}")
    assert time.monotonic() - began < 8, "20,000 records at 2,000 a second would take 9 s"
    records = kinesis.records()
    assert len(records) < 1_000
    by_aws = {key for record in records for key, *_ in read_by_aws(record["PartitionKey"], record["Data"])}
    assert by_aws == {f"key-{number}" for number in range(20_000)}
    assert Counter(key for key, _ in users(kinesis)) == Counter(by_aws)


@pytest.mark.parametrize("answer", [False, True])
def test_resets_in_the_middle_lose_nothing(target: Start, answer: bool) -> None:
    kinesis = target(shards=2)
    settings = ProducerSettings(backoff_base=0.01, backoff_max=0.05, max_in_flight=2)
    limit = 200 if answer else 30_000
    with CuttingProxy(kinesis.aws.port, lambda number: limit if 2 <= number < 8 else None, answer=answer) as proxy:
        aws = AwsSettings(endpoint_url=f"http://127.0.0.1:{proxy.port}")
        with Producer("orders", settings=settings, aws=aws) as producer:
            for number in range(5_000):
                producer.put(b"%09d" % number + b"x" * 91, str(number))
            producer.flush()
            metrics = producer.metrics
        assert proxy.cuts >= 3
    assert sum(metrics.retries.values()) > 0
    assert metrics.records_written == 5_000
    seen = Counter(int(record["Data"][:9]) for record in kinesis.records())
    assert seen.keys() == set(range(5_000))
    if answer:
        assert max(seen.values()) > 1, "no answer was lost: the test tests nothing"


# Shows 89.
def test_refused_or_missing_stream_fails_at_open(target: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = AwsError("AccessDeniedException", "User is not authorized to perform: kinesis:ListShards")
    faults = Scripted(denied, operation="ListShards")
    target(faults=faults)
    with pytest.raises(AccessRefusedError, match="the role needs kinesis:ListShards on the stream"):
        Producer("orders").open()
    with pytest.raises(StreamNotFoundError, match="stream nowhere cannot be opened for writing"):
        Producer("nowhere").open()


def test_without_describe_permission_defaults_apply(target: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kinesis_efo")
    denied = AwsError("AccessDeniedException", "no")
    kinesis = target(
        faults=Scripted(for_ever=denied, operation="DescribeStreamSummary"), create={"MaxRecordSizeInKiB": 10_240}
    )
    with Producer("orders", settings=ProducerSettings(aggregate=True)) as producer:
        producer.put(b"x" * ((1 << 20) - 1), "k")
        producer.put_many((b"%d" % n, f"key-{n}") for n in range(300))
        with raises(
            RecordRefusedError,
            "record 301 (partition key 'k', 1048577 bytes) is larger than the 1048576 bytes that the stream accepts (partition "
            "key included). Make it smaller, or raise the stream's maximum record size (at most 10 MiB)",
        ):
            producer.put(b"x" * (1 << 20), "k")
    assert any("kinesis:DescribeStreamSummary" in message for message in caplog.messages)
    assert any("records are not aggregated" in message for message in caplog.messages)
    assert sorted(len(record["Data"]) for record in kinesis.records())[-2:] == [3, (1 << 20) - 1]
    assert len(kinesis.records()) == 301


CLAIMS = """
    import sys
    from kinesis_efo.producer import Producer, ProducerSettings
    producer = Producer("orders", settings=ProducerSettings(linger=0.005)).open()
    number = 0
    while True:
        for _ in range(137):
            producer.put(str(number), str(number))
            number += 1
        producer.flush()
        print(number, flush=True)
"""


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_acknowledged_records_survive_a_kill(target: Start) -> None:
    kinesis = target(shards=2)
    with python(CLAIMS) as child:
        assert child.stdout is not None
        claimed = 0
        for line in child.stdout:
            claimed = int(line)
            if claimed > 2_000:
                child.send_signal(signal.SIGKILL)
                break
        claimed = max([claimed, *(int(line) for line in child.stdout if line.endswith("\n"))])
        child.communicate()
    assert set(range(claimed)) <= {int(record["Data"]) for record in kinesis.records()}


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), *(pytest.param(*each, marks=pytest.mark.long) for each in (("raise SystemExit(3)", 3), ("1 / 0", 1)))],
)
def test_producer_left_open_is_closed_at_exit(target: Start, end: str, status: int) -> None:
    kinesis = target()
    code = f"""
        from kinesis_efo.producer import Producer
        producer = Producer("orders").open()
        for number in range(1_000):
            producer.put(str(number), str(number))
        {end}
    """
    with python(code) as child:
        _, said = child.communicate(timeout=60)
    assert child.returncode == status, said
    assert "the producer for orders was not closed" in said
    assert len(kinesis.records()) == 1_000


@pytest.mark.parametrize("aggregate", [False, True])
def test_resharding_while_writing_loses_and_duplicates_nothing(target: Start, aggregate: bool) -> None:
    kinesis = target(shards=2)
    stop = threading.Event()
    put = 0

    def reshard() -> None:
        kinesis.client.update_shard_count(StreamName="orders", TargetShardCount=4, ScalingType="UNIFORM_SCALING")
        time.sleep(0.1)
        kinesis.client.update_shard_count(StreamName="orders", TargetShardCount=3, ScalingType="UNIFORM_SCALING")
        stop.set()

    with Producer("orders", settings=ProducerSettings(aggregate=aggregate, linger=0.01)) as producer:
        thread = threading.Thread(target=reshard)
        thread.start()
        while not stop.is_set() or put % 1_000:
            producer.put(str(put), f"key-{put}")
            put += 1
        thread.join()
        for _ in range(1_000):
            producer.put(str(put), f"key-{put}")
            put += 1
    assert Counter(int(data) for _, data in users(kinesis)) == Counter(range(put))
