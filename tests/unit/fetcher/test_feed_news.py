"""Whom a feed wakes for which event."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import DataLossError, KinesisEfoError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed
from kinesis_efo.fetcher.work import Order
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from tests.support.fetched import settle

KEY = ShardKey("orders", "shardId-0")


def raised(error: KinesisEfoError) -> None:
    raise error


async def unexpected(cause: str) -> None:
    raise AssertionError(cause)


def feed_by(subscribe: Any, lost: Callable[[str], Awaitable[None]] | None = None) -> ShardFeed:
    return ShardFeed(
        KEY,
        subscribe,
        Budget(1 << 20),
        Mock(),
        lambda _children: None,
        raised,
        FetchCounts(),
        SystemClock(),
        fail_on_data_loss=lost is None,
        lost=lost or unexpected,
    )


async def test_accepted_loss_is_logged_before_the_shard_ends() -> None:
    class Gone:
        accepts_loss = False

        async def run(self) -> None:
            raise DataLossError("it is gone. To go on, ...", causes=["it is gone"])

    told: list[tuple[str, bool]] = []

    async def lost(cause: str) -> None:
        told.append((cause, buffer.ended))

    feed = feed_by(lambda *_: Gone(), lost)
    feed.begin(TRIM_HORIZON)
    buffer = feed.buffer
    assert buffer is not None
    await settle()
    assert buffer.ended
    assert told == [("it is gone", False)]


async def test_order_outside_the_buffer_commits_nothing() -> None:
    class Waiting:
        async def run(self) -> None:
            await asyncio.Event().wait()

    feed = feed_by(lambda *_: Waiting())
    feed.apply_order(Order(1, TRIM_HORIZON, Position.after(5), []))
    assert feed.buffer is not None
    assert feed.buffer.committed is None
    closing = feed.close()
    assert closing is not None
    await asyncio.wait({closing})
