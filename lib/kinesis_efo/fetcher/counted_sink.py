"""Counts what a single fetcher receives: the counts of a shard include all fetchers that read it."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_efo.kinesis.events import Event
from kinesis_efo.kinesis.progress import EventSink


@dataclass(slots=True)
class FetchCounts:
    """What a fetcher has received.

    Attributes:
        events: Events, or responses of GetRecords.
        bytes: Bytes of their payloads.
    """

    events: int = 0
    bytes: int = 0


class CountedSink:
    """A sink that counts what goes into another one; implements `EventSink`.

    Args:
        sink: Receives the events.
        brought: The counts.

    Attributes:
        room: The other sink's room.
    """

    def __init__(self, sink: EventSink, brought: FetchCounts) -> None:
        self.room = sink.room
        self._sink = sink
        self._brought = brought

    async def admit(self, event: Event) -> None:
        self._brought.events += 1
        self._brought.bytes += len(event.payload)
        await self._sink.admit(event)
