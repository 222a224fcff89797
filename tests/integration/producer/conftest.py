"""A local AWS to write to over real HTTP, and a way to read the records back."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinesis_efo_local import FaultInjection, LocalAws, Settings


class Target:
    """A running local AWS with one stream."""

    def __init__(self, aws: LocalAws, shards: int, **create: Any) -> None:
        self.aws = aws
        self.client = aws.client("kinesis")
        self.client.create_stream(StreamName="orders", ShardCount=shards, **create)

    def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client.list_shards(StreamName="orders")["Shards"]
        return shards

    def read(self, shard: str) -> list[dict[str, Any]]:
        """All records of a shard."""
        iterator = self.client.get_shard_iterator(StreamName="orders", ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        found: list[dict[str, Any]] = []
        while iterator:
            page = self.client.get_records(ShardIterator=iterator, Limit=10_000)
            found += page["Records"]
            if not page["Records"] and not page["MillisBehindLatest"]:
                break
            iterator = page.get("NextShardIterator")
        return found

    def records(self) -> list[dict[str, Any]]:
        """All records, shard by shard."""
        return [record for shard in self.shards() for record in self.read(shard["ShardId"])]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Target]]:
    """Start a local AWS, and point every SDK of this process at it."""
    started: list[LocalAws] = []

    def start(shards: int = 1, faults: FaultInjection | None = None, create: Any = None, **settings: Any) -> Target:
        aws = LocalAws(settings=Settings(read_limit=False, **settings), faults=faults).start()
        started.append(aws)
        for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
            monkeypatch.delenv(name)
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        return Target(aws, shards, **(create or {}))

    yield start
    for aws in started:
        aws.stop()
