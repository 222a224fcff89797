"""What ListShards says that cannot be: of servers that are not Kinesis."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kinesis_efo.errors import SequenceNumberError
from kinesis_efo.kinesis.topology import Topology, explained
from kinesis_efo.manifest import StreamRef

REF = StreamRef("orders", "dev-orders", "arn:orders", None)


class Client:
    """A `kinesis` client that lists one shard, open or closed."""

    def __init__(self, first: str, last: str | None) -> None:
        self._numbers = {"StartingSequenceNumber": first} | ({} if last is None else {"EndingSequenceNumber": last})

    async def list_shards(self, **_: Any) -> Any:
        hashes = {"StartingHashKey": "0", "EndingHashKey": "9"}
        return {"Shards": [{"ShardId": "shardId-1", "HashKeyRange": hashes, "SequenceNumberRange": self._numbers}]}


def last_of(topology: Topology) -> int | None:
    (shard,) = asyncio.run(topology.shards("arn:orders"))
    return shard.last


def test_an_end_before_the_beginning_is_ignored_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    topology = Topology(Client("1000", "999"))
    assert [last_of(topology), last_of(topology)] == [None, None]
    (line,) = caplog.messages
    assert line.startswith("stream arn:orders, shard shardId-1: EndingSequenceNumber 999 lies before")


@pytest.mark.parametrize("last", ["1000", "1001"])
def test_an_end_at_or_behind_the_beginning_counts(last: str) -> None:
    assert last_of(Topology(Client("1000", last))) == int(last)


@pytest.mark.parametrize(("first", "last"), [("0049", None), ("49", "0099")])
def test_numbers_with_leading_zeros_are_refused(first: str, last: str | None) -> None:
    listing = explained(Topology(Client(first, last)).shards("arn:orders"), REF, "manifest.json")
    with pytest.raises(SequenceNumberError, match=r"arn:orders, shard shardId-1 cannot be read: .* has leading zeros"):
        asyncio.run(listing)
