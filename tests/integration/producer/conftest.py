"""A local AWS to write to over real HTTP, and a way to read the records back."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinesis_efo_local import FaultInjection, LocalAws, Settings
from tests.support.world import stored


class Target:
    """A running local AWS with one stream."""

    def __init__(self, aws: LocalAws, shards: int, **create: Any) -> None:
        self.aws = aws
        self.client = aws.client("kinesis")
        self.client.create_stream(StreamName="orders", ShardCount=shards, **create)

    def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client.list_shards(StreamName="orders")["Shards"]
        return shards

    def read(self) -> dict[str, list[dict[str, Any]]]:
        """The records of each shard."""
        return stored(self.client, "orders")

    def records(self) -> list[dict[str, Any]]:
        """All records, shard by shard."""
        return [record for found in self.read().values() for record in found]


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
