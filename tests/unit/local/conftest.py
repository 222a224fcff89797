"""A Kinesis that runs on a clock that tests move by hand."""

import base64
from typing import Any

import pytest

from kinesis_efo_local import AwsError, Kinesis, Settings, api
from kinesis_efo_local.sequence import Ticks
from kinesis_efo_local.writing import Entry, PutRecords, put_records
from tests.support.answers import FixedClock


class Bench:
    """A Kinesis, and shortcuts for frequent calls."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FixedClock(1_790_000_000.0)
        made = Settings(**settings)
        self.kinesis = Kinesis(made, made.region, self.clock, Ticks())

    def call(self, operation: str, **params: Any) -> Any:
        self.kinesis.settle()
        return api.OPERATIONS[operation](self.kinesis, params)

    def create(self, shards: int = 1, name: str = "orders", **more: Any) -> Any:
        self.call("CreateStream", StreamName=name, ShardCount=shards, **more)
        return self.kinesis.streams[name]

    def put(self, *keys: str, data: bytes = b"x", hash_key: str | None = None, name: str = "orders") -> dict[str, Any]:
        text = base64.b64encode(data).decode()
        return put_records(self.kinesis, PutRecords([Entry(text, key, hash_key) for key in keys], name))

    def register(self, name: str = "lake", stream: str = "orders") -> Any:
        self.call("RegisterStreamConsumer", StreamARN=self.kinesis.streams[stream].arn, ConsumerName=name)
        return self.kinesis.streams[stream].consumers[name]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refused(code: str, message: str) -> Any:
    """Expect an error of AWS."""
    return pytest.raises(AwsError, match=f"{code}Exception: .*{message}")
