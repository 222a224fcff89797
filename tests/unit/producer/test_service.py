"""What a request of PutRecords says, byte by byte."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.producer.queue import Result
from kinesis_efo.producer.record import SizeLimit, make_record
from kinesis_efo.producer.service import KinesisService
from kinesis_efo.raw_bodies import RAW_BODY


class Client:
    """Keeps what it is asked to send."""

    def __init__(self) -> None:
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))
        self.sent: list[Any] = []
        self.answer: list[dict[str, str]] = [{"ShardId": "shardId-0"}] * 2

    async def put_records(self, Records: bytes, **_: Any) -> dict[str, Any]:
        self.sent.append(json.loads(Records))
        return {RAW_BODY: json.dumps({"Records": self.answer}).encode()}


@pytest.mark.parametrize("keyed", [False, True])
def test_explicit_hash_keys_are_sent_only_where_keys_decide(keyed: bool) -> None:
    client = Client()
    service = KinesisService(client, client, "orders")
    records = [make_record(b"x", key, hash_key, SizeLimit(1 << 20), 0) for key, hash_key in (("a", 7), ("b", None))]
    assert len(asyncio.run(service.put_records(records, keyed=keyed))) == 2
    (body,) = client.sent
    assert [entry["PartitionKey"] for entry in body["Records"]] == ["a", "b"]
    assert [entry.get("ExplicitHashKey") for entry in body["Records"]] == ["7" if keyed else None, None]


def test_each_result_is_a_shard_or_an_error() -> None:
    client = Client()
    client.answer = [
        {"ShardId": "shardId-7", "SequenceNumber": "1"},
        {"ErrorCode": "Throttled", "ErrorMessage": "later"},
    ]
    records = [make_record(b"x", "a", None, SizeLimit(1 << 20), 0)] * 2
    results = asyncio.run(KinesisService(client, client, "orders").put_records(records, keyed=True))
    assert results == [Result("shardId-7", sequence_number="1"), Result(None, "Throttled", "later")]
