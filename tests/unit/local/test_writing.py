"""What PutRecords takes and refuses."""

import base64

import msgspec
import pytest

from kinesis_efo_local import AwsError
from kinesis_efo_local.writing import Entry, PutRecord, PutRecords, put_record, put_records

from .conftest import Bench


def test_full_shard_refuses_records_and_bytes() -> None:
    bench = Bench(write_limit=True)
    bench.create(2)
    for _ in range(2):
        assert bench.put(*["k"] * 500, hash_key="0")["FailedRecordCount"] == 0
    answer = bench.put(*["k"] * 3, hash_key="0")
    assert answer["FailedRecordCount"] == 3
    assert answer["Records"][0]["ErrorCode"] == "ProvisionedThroughputExceededException"
    assert "shardId-000000000000" in answer["Records"][0]["ErrorMessage"]
    assert bench.put("k", hash_key=str(2**128 - 1))["FailedRecordCount"] == 0
    bench.clock.pass_by(0.0025)
    results = bench.put(*["k"] * 4, hash_key="0")["Records"]
    assert ["SequenceNumber" in result for result in results] == [True, True, False, False]
    with pytest.raises(AwsError, match="ProvisionedThroughputExceededException"):
        put_record(bench.kinesis, PutRecord("eA==", "k", "0", "orders"))
    bench.create(name="large")
    assert bench.put(*"abc", data=b"x" * 500_000, name="large")["FailedRecordCount"] == 1
    bench.clock.pass_by(1)
    assert bench.put("d", data=b"x" * 1_000_000, name="large")["FailedRecordCount"] == 0
    unlimited = Bench()
    unlimited.create()
    assert sum(unlimited.put(*["k"] * 500, data=b"x" * 5000)["FailedRecordCount"] for _ in range(10)) == 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("eA==", "k" * 257), "partitionKey.*got 257"),
        (Entry("not base64!", "k"), "not base64"),
        (Entry("é", "k"), "not base64"),
        (Entry("eA==", "k", str(2**128)), "ExplicitHashKey"),
        (Entry("eA==", "k", "9" * 40), "explicitHashKey"),
        (Entry("QUFB" * 349_526, "k"), "less than or equal to 1048576"),
    ],
)
def test_bad_record_refuses_the_whole_request(bench: Bench, entry: Entry, message: str) -> None:
    stream = bench.create()
    with pytest.raises(AwsError, match=message):
        put_records(bench.kinesis, PutRecords([Entry("eA==", "good"), entry], "orders"))
    assert stream.open_shards[0].tip == 0


def test_10_mebibytes_are_the_most(bench: Bench) -> None:
    bench.create()
    assert bench.put(*["k"] * 10, data=b"x" * (1024 * 1024 - 1))["FailedRecordCount"] == 0
    with pytest.raises(AwsError, match="exceeds 10485760 bytes"):
        bench.put(*["k"] * 11, data=b"x" * (1024 * 1024 - 1))
    bench.create(name="large", MaxRecordSizeInKiB=10240)
    for data in (b"x" * (10 * 1024 * 1024 - 1), b""):
        assert bench.put("k", data=data, name="large")["FailedRecordCount"] == 0


def test_any_key_and_data_come_back(bench: Bench) -> None:
    stream = bench.create()
    keys = ['"', "\\", "\x00\n", "ключ", "🦆", "</script>"]
    bench.put(*keys, data=bytes(range(256)))
    records = [msgspec.json.decode(record) for record in stream.open_shards[0].page(0, 10, 10**6).records]
    assert [record["PartitionKey"] for record in records] == keys
    assert {base64.b64decode(record["Data"]) for record in records} == {bytes(range(256))}
    assert " ".join(records[0]) == "ApproximateArrivalTimestamp Data EncryptionType PartitionKey SequenceNumber"
