"""What a fetcher of another process tells the planner."""

from __future__ import annotations

import pytest

from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.reporter import Reporter
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.options import Bounds
from kinesis_efo.positions import Position
from tests.support.model_stream import ModelStream
from tests.unit.fetcher.test_fetcher import Query, horizon, scenario


def test_the_last_record_in_front_of_an_end_is_looked_for_until_it_is_seen_and_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a search through an event of up to 2 MB, and each event that comes later is told of, too."""
    looks = []
    looked = ShardBuffer.last_up_to

    def look(self: ShardBuffer, *given: Position) -> int | None:
        looks.append(looked(self, *given))
        return looks[-1]

    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1, event_records=(10,))
        stream.put(0, *[30] * 30)
        last = stream[0].records[4][0]
        end = Position.after(last)
        async with Query(stream) as query:
            (key,) = begin = horizon(stream)
            while not (await query.planner.poll(begin, 1 << 30, 1 << 30, 1.0)).shards[0].records:
                pass
            monkeypatch.setattr(ShardBuffer, "last_up_to", look)
            reporter = Reporter(query.fetcher, Streams(query._streams), Bounds(everywhere=end))
            for _ in range(5):
                reporter.touch([key])
                (news,) = reporter.collect()
                assert news.before_end == (str(end), str(last))
            assert looks == [last]
            reporter.forget()
            (news,) = reporter.collect()
            assert news.before_end == (str(end), str(last)), "another planner knows nothing of it"

    test()
