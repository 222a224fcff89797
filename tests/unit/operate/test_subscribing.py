"""Measuring subscriptions, in virtual time: at Kinesis' pace, with a limit for each step, and closed whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import HTTPClientError

from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.kinesis.transport import Quota
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position
from kinesis_efo_tools.operate import subscribing
from kinesis_efo_tools.operate.findings import CheckFailed
from kinesis_efo_tools.operate.measurement import TRANSPORTS, Measurement
from tests.support.transports import (
    Opening,
    Script,
    ScriptedStream,
    ScriptedTransport,
    Silence,
    Wait,
    broken_off,
    payload,
    refused,
)  # fmt: skip
from tests.support.virtual_time import LoopClock, run
from tests.unit.operate.test_measurement import ARN, ORDERS

IDLE: Script = [Wait(4.0), payload(7), Wait(5.0), payload(8), Wait(5.0), payload(9), Wait(5.0)]
SECONDS = 10.0


class Kinesis:
    """A Kinesis with some open shards; gives itself as the client for everything."""

    def __init__(self, *shards: str) -> None:
        self.shards = shards
        self.meta = SimpleNamespace(endpoint_url="https://kinesis.example")

    async def client(self, service: str) -> Any:
        return self

    async def list_shards(self, **request: Any) -> dict[str, Any]:
        assert request == {"StreamARN": ARN, "ShardFilter": {"Type": "AT_LATEST"}, "MaxResults": 1}
        return {"Shards": [{"ShardId": shard} for shard in self.shards[:1]]}


class Transports:
    """Opens subscribers that play one script after the other, whichever transport is asked for.

    Args:
        scripts: As of `ScriptedTransport`.
        versions: HTTP versions that carry what is asked for, by transport.
    """

    def __init__(self, *scripts: Script | Exception | Opening, versions: dict[str, str] = TRANSPORTS) -> None:
        self.played = ScriptedTransport(LoopClock(), *scripts)
        self.opened: list[str] = []
        self._versions = versions
        self._open = ""

    @asynccontextmanager
    async def __call__(self, transport: str) -> AsyncIterator[Any]:
        assert not self._open, "two transports at a time"
        self._open = transport
        self.opened.append(transport)
        try:
            yield self
        finally:
            self._open = ""

    async def subscribe(
        self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota
    ) -> ScriptedStream:
        assert (stream, shard_id, position) == (ORDERS, "shardId-1", None)
        events = await self.played.subscribe(stream, shard_id, position, room)
        events.http = HttpFacts(self._versions[self._open])  # type: ignore[attr-defined]
        return events


def _measure(
    transports: Transports, seconds: float = SECONDS, tell: Callable[[str], None] = lambda _: None
) -> Measurement:
    async def main() -> Measurement:
        return await subscribing.measured(Kinesis("shardId-1", "shardId-2"), ORDERS, transports, seconds, LoopClock(), tell=tell)  # fmt: skip

    found = run(main())
    assert transports.opened == list(TRANSPORTS)
    assert all(stream.closed for stream in transports.played.streams)
    return found


def test_each_transport_is_read_for_some_seconds() -> None:
    transports = Transports(Opening(0.25, IDLE), IDLE)
    found = _measure(transports)
    assert (found.shard, found.endpoint) == ("shardId-1", "https://kinesis.example")
    first, second = found.subscriptions
    assert [each.http.version for each in (first, second) if each.http] == ["HTTP/2", "HTTP/1.1"]
    assert (first.answered_after, first.first_event_after) == (0.25, 4.25)
    assert (second.answered_after, second.first_event_after) == (0.0, 4.0)
    assert (first.error, first.events, first.read_for) == (None, 2, SECONDS)
    # It was read for longer than Kinesis asks to wait.
    assert transports.played.gaps == [0.25 + SECONDS]
    told: list[str] = []
    short = Transports([payload(7), Silence()], [payload(7), Silence()])
    _measure(short, seconds=2.0, tell=told.append)
    assert short.played.gaps == [5.0]
    assert "HTTP/1.1: waiting 3.0 s, until Kinesis allows the next subscription to shardId-1" in told


TAKEN = broken_off("ResourceInUseException", "taken over")


@pytest.mark.parametrize(
    ("scripts", "seconds", "results"),
    [
        ((Opening(1e9), [Silence()]), SECONDS, [("Kinesis did not answer within 20 s", 0, 0.0), ("no event for 12 s", 0, 12.0)]),
        (([payload(7), Silence()], IDLE), 60.0, [("no event for 12 s", 1, 12.0), None]),
        (([], [payload(7)]), SECONDS, [("Kinesis ended the subscription before its first event", 0, 0.0), ("None", 1, 0.0)]),
        (([payload(7), Wait(3.0), TAKEN], IDLE), SECONDS, [(str(TAKEN), 1, 3.0), ("None", 2, SECONDS)]),
        ((IDLE, IDLE), 1.0, [("None", 1, 4.0)] * 2),
    ],
    ids=["no answer, no event", "silent later", "ended early", "cut off", "short look waits for the first event"],
)  # fmt: skip
def test_each_step_has_its_limit(
    scripts: tuple[Any, ...], seconds: float, results: list[tuple[str, int, float] | None]
) -> None:
    for found, expected in zip(_measure(Transports(*scripts), seconds).subscriptions, results, strict=True):
        assert expected in (None, (str(found.error), found.events, found.read_for))


def test_other_version_of_http_is_an_error() -> None:
    first, second = _measure(Transports(IDLE, IDLE, versions=dict.fromkeys(TRANSPORTS, "HTTP/1.1"))).subscriptions
    assert (str(first.error), first.events) == ("the answer came over HTTP/1.1", 0)
    assert second.error is None
    transports = Transports(HTTPClientError(error="the endpoint speaks HTTP/1.1 only"), IDLE)
    first, second = _measure(transports).subscriptions
    assert isinstance(first.error, HTTPClientError)
    assert (first.http, first.answered_after, first.events) == (None, None, 0)
    assert (second.error, second.events) == (None, 2)
    assert transports.played.gaps == [1.0]


def test_recent_subscriber_is_waited_for_once() -> None:
    too_soon = refused("ResourceInUseException", "Another active subscription exists for this consumer: x")
    transports = Transports(too_soon, IDLE, too_soon, too_soon)
    first, second = _measure(transports).subscriptions
    assert (first.error, first.events) == (None, 2)
    assert second.error is too_soon
    assert transports.played.gaps == [5.0, SECONDS, 5.0]
    denied = refused("AccessDeniedException")
    other = Transports(denied, denied)
    assert [each.error for each in _measure(other).subscriptions] == [denied, denied]
    assert other.played.gaps == [1.0], "another refusal is not repeated"


async def test_interrupt_closes_the_subscription() -> None:
    transports = Transports(IDLE)

    measuring = asyncio.create_task(
        subscribing.measured(Kinesis("shardId-1"), ORDERS, transports, SECONDS, LoopClock())
    )
    await asyncio.sleep(6.0)
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    with pytest.raises(CheckFailed, match="has no open shard"):
        await subscribing.measured(Kinesis(), ORDERS, Transports(), SECONDS, LoopClock())
    assert [stream.closed for stream in transports.played.streams] == [True]
