"""Events and buffers for tests without Kinesis."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any

from kinesis_efo.fetcher.budget import EVENT_OVERHEAD, Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import ChildShard, Event, EventHead, read_head

KEY = ShardKey("orders", "shardId-000000000000")


def key(number: int) -> ShardKey:
    """A shard of the stream `orders`."""
    return ShardKey("orders", f"shardId-{number:012d}")


def event(end: int | None, records: int = 1, size: int = 100, children: Sequence[str] = ()) -> Event:
    """An event whose buffered size is `EVENT_OVERHEAD + size`."""
    payload = json.dumps({"end": end}).encode().ljust(size)[:size]
    return Event(payload, EventHead(end, 0, records, tuple(ChildShard(child, ("p",), 0, 1) for child in children)))


def event_with(end: int, *numbers: int) -> Event:
    """An event whose records have these numbers."""
    records = [{"SequenceNumber": str(number), "Data": ""} for number in numbers]
    body = {"ContinuationSequenceNumber": str(end), "MillisBehindLatest": 0, "Records": records, "ChildShards": []}
    payload = json.dumps(body).encode()
    return Event(payload, read_head(payload))


def idle(end: int) -> Event:
    """An event without records."""
    return event(end, records=0)


def after(number: int) -> Position:
    """Short for `Position.after`."""
    return Position.after(number)


def buffer(
    start: Position = TRIM_HORIZON, *, limit: int = 1 << 20, budget: Budget | None = None, number: int = 0
) -> ShardBuffer:
    """A buffer, with its own budget unless one is given."""
    return ShardBuffer(key(number), start, budget or Budget(limit), lambda: None)


def fill(into: ShardBuffer, *events: Event, at: float = 0.0) -> None:
    """Admit events, which must fit."""

    async def main() -> None:
        for each in events:
            await asyncio.wait_for(into.admit(each, at), 5)

    asyncio.run(main())


async def admits_now(into: ShardBuffer, one: Event) -> bool:
    """Whether an event is admitted without waiting. If not, it is withdrawn."""
    task = asyncio.ensure_future(into.admit(one, 0.0))
    await settle()
    done = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return done


async def settle() -> None:
    """Let all tasks run until each waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test of the buffer's waiting."""
    asyncio.run(asyncio.wait_for(main, 10))


__all__ = [
    "EVENT_OVERHEAD",
    "KEY",
    "SHARD_END",
    "TRIM_HORIZON",
    "admits_now",
    "after",
    "buffer",
    "event",
    "fill",
    "idle",
    "key",
    "run",
    "settle",
]
