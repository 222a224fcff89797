"""A transport that is opened with its first call: once, again if that failed, and for all who wait."""

import asyncio
from typing import Any

import pytest

from kinesis_efo.kinesis.transport import OpenedLater, Quota, Transport, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position

REF = StreamRef("orders", "dev-orders", "arn:stream", None)


class Inner:
    """Answers with what it was asked."""

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> Any:
        return "events", stream, shard_id, position, room


class Opening:
    """Opens a transport after a while, with the faults that a test gives.

    Attributes:
        times: How often it was asked to.
        faults: The errors of the next times.
    """

    def __init__(self, *faults: Exception) -> None:
        self.times = 0
        self.faults = list(faults)

    async def __call__(self) -> Transport:
        self.times += 1
        await asyncio.sleep(1)
        if self.faults:
            raise self.faults.pop(0)
        return Inner()


async def test_transport_is_opened_once_when_needed() -> None:
    opening, room = Opening(), Unlimited()
    transport = OpenedLater(opening)
    await asyncio.sleep(10)
    assert opening.times == 0
    first, second = await asyncio.gather(
        transport.subscribe(REF, "1", TRIM_HORIZON, room), transport.subscribe(REF, "2", Position.after(7), room)
    )
    assert first == ("events", REF, "1", TRIM_HORIZON, room)  # type: ignore[comparison-overlap]
    assert second == ("events", REF, "2", Position.after(7), room)  # type: ignore[comparison-overlap]
    assert opening.times == 1


async def test_failed_or_cancelled_opening_is_repeated() -> None:
    opening = Opening(ConnectionResetError("no way"))
    transport = OpenedLater(opening)
    with pytest.raises(ConnectionResetError, match="no way"):
        await transport.subscribe(REF, "1", TRIM_HORIZON, Unlimited())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(transport.subscribe(REF, "1", TRIM_HORIZON, Unlimited()), 0.5)
    assert (await transport.subscribe(REF, "1", TRIM_HORIZON, Unlimited()))[0] == "events"  # type: ignore[index]
    assert opening.times == 3
