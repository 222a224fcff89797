"""The clients with which streams are read: which are opened when, with what, and in which order they are closed."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.fetcher.assembly import new_event_loop, stream_opener
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import TRIM_HORIZON
from kinesis_efo.raw_bodies import RAW_BODY
from tests.support.fake_clients import FakeClients
from tests.support.shared_runs import manifest
from tests.support.virtual_time import LoopClock

SHARD = "shardId-000000000000"
MANIFEST = manifest("orders", "clicks")
RECORD = {"Data": "A" * 40_000, "PartitionKey": "", "SequenceNumber": "1"}


def answer(operation: str, _: dict[str, Any]) -> dict[str, Any]:
    match operation:
        case "get_shard_iterator":
            return {"ShardIterator": "first"}
        case "get_records":
            body = {"Records": [RECORD] * 10, "NextShardIterator": "next", "MillisBehindLatest": 60_000}
            return {RAW_BODY: json.dumps(body).encode()}
    raise AssertionError(operation)


async def opened(stack: AsyncExitStack, clients: FakeClients, clock: KinesisClock, **options: str) -> dict[str, Stream]:
    parsed = SourceOptions.parse({"manifest": "m.json", **options})
    budget = Budget(1 << 20, now=clock.monotonic)
    made: Any = clients
    open_stream = await stream_opener(stack, made, MANIFEST.source, parsed, budget, clock, KINESIS_LIMITS)
    return {name: open_stream(ref) for name, ref in MANIFEST.streams.items()}


@pytest.mark.parametrize(
    ("rate", "seconds", "limits"),
    [
        # Ten records of 30,000 bytes come with each answer, 65,536 a second are wanted.
        ("64k", 300_000 / 65_536, [1000, 2, 2, 2]),
        ("1g", 0.5, [1000, 34, 34, 34]),
    ],
)
async def test_polling_has_the_rate_of_the_option(rate: str, seconds: float, limits: list[int]) -> None:
    clock = KinesisClock(LoopClock())
    clients = FakeClients(clock, answer)
    async with AsyncExitStack() as stack:
        streams = await opened(stack, clients, clock, maxShardRate=rate)
        apart = streams["orders"].separate
        assert apart is not None
        events = await apart.transport.subscribe(MANIFEST.streams["orders"], SHARD, TRIM_HORIZON, Unlimited())
        times = []
        for _ in range(4):
            assert (await anext(aiter(events))).head.records == 10
            times.append(clock.monotonic())
        events.close()
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([seconds] * 3, rel=1e-3)
    assert [call["Limit"] for call in clients.calls("get_records")] == limits
    assert clock.is_set, "the time of an older response would hide what was trimmed while this machine was suspended"


@pytest.mark.parametrize(
    ("installed", "switch", "theirs"), [(True, "", True), (True, "off", False), (False, "", False)]
)
def test_uvloop_is_used_unless_missing_or_disabled(
    installed: bool, switch: str, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = object()
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=lambda: loop) if installed else None)
    monkeypatch.setenv("KINESIS_EFO_UVLOOP", switch)
    made = new_event_loop()
    assert (made is loop) is theirs
    if not theirs:
        assert isinstance(made, asyncio.AbstractEventLoop)
        made.close()
