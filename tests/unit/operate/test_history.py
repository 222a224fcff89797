"""The last hour of a run: in bounded memory, with the longest lag of each stretch, whatever the clock does."""

from __future__ import annotations

from kinesis_efo.fetcher.status import RunStatus, ShardStatus, Subscription
from kinesis_efo_tools.operate.history import ALL, History
from kinesis_efo_tools.operate.pulse import Pulse, View

NOW = 1_700_000_000.0


def view(behind: int, *streams: str) -> View:
    shards = [
        ShardStatus(name, "shardId-0", "AFTER:7", 0, 0, None, behind, None, Subscription("streaming", 1, 0, 0, 0.1, 0))
        for name in streams or ("orders",)
    ]
    return Pulse().add(RunStatus(NOW, shards, 1))


def filled(stretch: float, *points: tuple[float, int]) -> History:
    """A history with the lag, in milliseconds, at some seconds."""
    history = History(stretch) if stretch else History()
    for second, behind in points:
        history.add(NOW + second, view(behind))
    return history


def test_history_has_an_hour() -> None:
    points = filled(0, *((second, 1000) for second in range(0, 3 * 3600, 2))).since()
    assert (len(points), points[-1].at - points[0].at) == (360, 3590.0)
    assert [each.at - NOW for each in filled(0, (0, 1000), (7200, 1000)).since()] == [7200]
    paused = filled(60, *((60 * minute, 1000) for minute in range(100)))
    assert (paused.stretch, len(paused.since())) == (60, 60)


def test_longest_lag_of_a_stretch_counts() -> None:
    history = filled(0, (0, 1000), (2, 9000), (4, 2000), (10, 3000))
    assert [each.sums[ALL].seconds for each in history.since()] == [9.0, 3.0]


def test_stream_that_left_stays_in_its_past() -> None:
    history = History()
    for second, streams in ((0, ("orders", "clicks")), (2, ("orders",)), (10, ("orders",))):
        history.add(NOW + second, view(1000, *streams))
    assert [sorted(each.sums) for each in history.since()] == [["", "clicks", "orders"], ["", "orders"]]


def test_page_gets_new_points_whatever_the_clock_does() -> None:
    history = filled(0, *((second, 1000) for second in range(0, 60, 10)))
    assert [each.at - NOW for each in history.since(NOW + 40)] == [40.0, 50.0]
    history.add(NOW + 20, view(5000))
    assert [each.at - NOW for each in history.since()] == [0.0, 10.0, 20.0]
    # A page that has seen the time before gets all, or it would get nothing until then.
    assert len(history.since(NOW + 50)) == 3
