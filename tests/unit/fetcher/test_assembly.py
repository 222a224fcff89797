"""The clients with which streams are read: which are opened when, with what, and in which order they are closed."""

from __future__ import annotations

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
from kinesis_efo.kinesis.polling import CALL_SECONDS, apart_pace
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import TRIM_HORIZON
from kinesis_efo.raw_bodies import RAW_BODY
from tests.support.fake_clients import FakeClients
from tests.support.virtual_time import LoopClock, run

SHARD = "shardId-000000000000"
REFS = {name: StreamRef(name, f"dev-{name}", f"arn:{name}", f"arn:{name}/consumer") for name in ("orders", "clicks")}
MANIFEST = Manifest(
    "lake", "dev", "eu-west-1", "leases", REFS, "m.json", {name: ref.stream_name for name, ref in REFS.items()}
)
RECORD = {"Data": "A" * 40_000, "PartitionKey": "", "SequenceNumber": "1"}


def answer(operation: str, _: dict[str, Any]) -> dict[str, Any]:
    match operation:
        case "get_shard_iterator":
            return {"ShardIterator": "first"}
        case "get_records":
            body = {"Records": [RECORD] * 10, "NextShardIterator": "next", "MillisBehindLatest": 60_000}
            return {RAW_BODY: json.dumps(body).encode()}
    raise AssertionError(operation)


async def opened(stack: AsyncExitStack, clients: FakeClients, clock: LoopClock, **options: str) -> dict[str, Stream]:
    parsed = SourceOptions.parse({"manifest": "m.json", **options})
    budget = Budget(1 << 20, now=clock.monotonic)
    made: Any = clients
    open_stream = await stream_opener(stack, made, MANIFEST.source, parsed, budget, KinesisClock(clock), KINESIS_LIMITS)
    return {name: open_stream(ref) for name, ref in MANIFEST.streams.items()}


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_the_client_with_which_queries_read_apart_is_opened_once_one_does_and_closed_after_the_run(mode: str) -> None:
    async def scenario() -> None:
        clock = LoopClock()
        clients = FakeClients(clock, answer)
        async with AsyncExitStack() as stack:
            streams = await opened(stack, clients, clock, readMode=mode)
            assert len(clients.clients) == 2, "a query alone has one for control and one to read with"

            async def end_of_run() -> None:
                assert all(client.open for client in clients.clients), "the run still reads with them"

            stack.push_async_callback(end_of_run)
            for stream in streams.values():
                assert stream.apart is not None
                context = stream.apart.context
                assert context.limits.between_calls == CALL_SECONDS
                assert context.stream.consumer_arn is None
                events = await context.transport.subscribe(context.stream, SHARD, TRIM_HORIZON, Unlimited())
                events.close()
            assert len(clients.clients) == 3, "one for all streams"
        assert not any(client.open for client in clients.clients)
        assert {call["StreamARN"] for call in clients.calls("get_shard_iterator")} == {"arn:orders", "arn:clicks"}

    run(scenario())


def test_it_reads_at_the_rate_that_the_option_says() -> None:
    async def scenario() -> None:
        clock = LoopClock()
        clients = FakeClients(clock, answer)
        async with AsyncExitStack() as stack:
            streams = await opened(stack, clients, clock, apartRate="64k")
            apart = streams["orders"].apart
            assert apart is not None
            events = await apart.context.transport.subscribe(REFS["orders"], SHARD, TRIM_HORIZON, Unlimited())
            times = []
            for _ in range(4):
                assert (await anext(aiter(events))).head.records == 10
                times.append(clock.monotonic())
            events.close()
        # Ten records of 30,000 bytes come with each answer, 65,536 a second are wanted.
        assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx(
            [300_000 / 65_536] * 3, rel=1e-3
        )
        assert [call["Limit"] for call in clients.calls("get_records")] == [1000, 2, 2, 2]

    run(scenario())


@pytest.mark.parametrize(
    ("rate", "seconds", "size"), [(64 << 10, 1, 64 << 10), (1 << 20, 1, 1 << 20), (2 << 20, 0.5, 1 << 20)]
)
def test_a_shard_is_asked_once_a_second_unless_the_rate_needs_more(rate: int, seconds: float, size: int) -> None:
    pace = apart_pace(rate)
    assert (pace.call_seconds, pace.bytes_per_second, pace.answer_bytes) == (seconds, rate, size)


@pytest.mark.parametrize(
    ("installed", "switch", "theirs"), [(True, "", True), (True, "off", False), (False, "", False)]
)
def test_uvloop_is_used_if_it_is_there_and_not_turned_off(
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
