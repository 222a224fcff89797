"""What crosses the wire is what was meant."""

from __future__ import annotations

import msgspec

from kinesis_efo.fetcher.work import GetTicket
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange


def test_a_ticket_names_its_ranges() -> None:
    ranges = [
        ShardRange(ShardKey("orders", "shardId-0"), TRIM_HORIZON, Position.after(10**120)),
        ShardRange(ShardKey("clicks", "shardId-1"), Position.at_timestamp(7), SHARD_END),
    ]
    assert msgspec.json.decode(msgspec.json.encode(GetTicket(ranges)), type=GetTicket).ranges == ranges
