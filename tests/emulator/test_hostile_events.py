"""Malicious events, sent to a whole fetcher: they end the query with a clear error, and memory stays within its budget."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kinesis_efo.errors import RetriesExhaustedError
from kinesis_efo.records.frames import FrameDecoder
from kinesis_efo_local import NoFaults
from kinesis_efo_local.fault_injection import Step
from kinesis_efo_local.wire import event_frame
from tests.emulator.memory_world import MemoryWorld


class Sent(NoFaults):
    """Replaces the payload of events.

    Args:
        change: Returns the payload to send instead.
        times: Number of events to replace.
    """

    def __init__(self, change: Callable[[bytes], bytes], times: int = 1 << 30) -> None:
        self._change = change
        self._times = times

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        if b"initial-response" in frame[:200] or not self._times:
            return [frame]
        self._times -= 1
        (decoded,) = FrameDecoder().feed(frame)
        return [event_frame(self._change(decoded.payload))]


HOSTILE = {
    "deep": (b'{"ContinuationSequenceNumber":"1","Records":' + b"[" * 300_000, "an event of 300044 bytes cannot be read"),
    "deep, where nobody looks": (b'{"X":' + b"[" * 300_000 + b"]" * 300_000 + b"}", "cannot be read|neither a continuation"),
    "a lag of a megabyte": (
        b'{"ContinuationSequenceNumber":"1","MillisBehindLatest":' + b"9" * (1 << 20) + b"}",
        "cannot be read",
    ),
    "no UTF-8": (b'{"ContinuationSequenceNumber":"\xff\xff"}', "cannot be read"),
    "a number of a megabyte": (
        b'{"ContinuationSequenceNumber":"' + b"9" * (1 << 20) + b'"}',
        "ContinuationSequenceNumber of an event must be a number of at most 200 digits; got '9{80}'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_event_that_stays_ends_the_query(name: str) -> None:
    payload, reason = HOSTILE[name]
    world = MemoryWorld(faults=Sent(lambda _: payload))
    world.put_some(3)
    with pytest.raises(RetriesExhaustedError, match=reason) as caught:
        await world.read()
    assert len(str(caught.value)) < 1000, "a payload must not flow into the log"


async def test_padding_is_held_within_the_budget() -> None:
    """Unknown fields of megabytes: one event per shard is admitted, whatever its size."""
    world = MemoryWorld(
        shards=4,
        faults=Sent(lambda payload: payload[:-1] + b',"Padding":"' + b"x" * (4 << 20) + b'"}'),
        settings={"max_event_records": 10, "read_limit": False},
        buffer_bytes=1 << 20,
    )
    world.put_some(200)
    assert (await world.read()).most_used < 4 * (5 << 20)
