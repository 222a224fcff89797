"""The watch over the streams of a run."""

from __future__ import annotations

import asyncio
from typing import Any

from kinesis_efo.decisions.lineage import Lineage
from kinesis_efo.fetcher.streams import LIST_SHARDS_SECONDS, Streams
from tests.support.virtual_time import LoopClock, run


class Listed:
    """A stream whose listing lets another one be added."""

    lineage = Lineage(())

    def __init__(self, streams: dict[str, Any]) -> None:
        self._streams = streams

    async def refresh(self) -> None:
        await asyncio.sleep(1)
        self._streams.setdefault("clicks", Listed(self._streams))


def test_a_stream_that_is_added_during_a_listing_is_listed_the_next_time() -> None:
    async def main() -> None:
        streams: dict[str, Any] = {}
        streams["orders"] = Listed(streams)
        listed: list[str] = []
        watching = asyncio.create_task(Streams(streams).watch(LoopClock(), listed.append))
        await asyncio.sleep(LIST_SHARDS_SECONDS + 2)
        assert listed == ["orders"]
        await asyncio.sleep(LIST_SHARDS_SECONDS + 3)
        assert listed == ["orders", "orders", "clicks"]
        watching.cancel()

    run(main())
