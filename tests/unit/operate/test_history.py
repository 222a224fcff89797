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


def test_history_has_an_hour() -> None:
    history = History()
    for second in range(0, 3 * 3600, 2):
        history.add(NOW + second, view(1000))
    points = history.since()
    assert (len(points), points[-1].at - points[0].at) == (360, 3590.0)


def test_points_older_than_an_hour_are_dropped() -> None:
    history = History()
    history.add(NOW, view(1000))
    history.add(NOW + 7200, view(1000))
    assert [each.at for each in history.since()] == [NOW + 7200]


def test_the_longest_lag_of_a_stretch_counts() -> None:
    history = History()
    for second, behind in ((0, 1000), (2, 9000), (4, 2000)):
        history.add(NOW + second, view(behind))
    history.add(NOW + 10, view(3000))
    assert [each.sums[ALL].seconds for each in history.since()] == [9.0, 3.0]


def test_stream_that_left_stays_in_its_past() -> None:
    history = History()
    history.add(NOW, view(1000, "orders", "clicks"))
    history.add(NOW + 2, view(2000, "orders"))
    history.add(NOW + 10, view(3000, "orders"))
    assert [sorted(each.sums) for each in history.since()] == [["", "clicks", "orders"], ["", "orders"]]


def test_stretch_has_the_length_of_a_pause() -> None:
    history = History(60)
    for minute in range(100):
        history.add(NOW + 60 * minute, view(1000))
    assert (history.stretch, len(history.since())) == (60, 60)


def test_page_gets_new_points_and_the_newest_again() -> None:
    history = History()
    for second in range(0, 60, 10):
        history.add(NOW + second, view(1000))
    assert [each.at - NOW for each in history.since(NOW + 40)] == [40.0, 50.0]


def test_clock_set_back_drops_later_points() -> None:
    history = History()
    for second in range(0, 60, 10):
        history.add(NOW + second, view(1000))
    history.add(NOW + 20, view(5000))
    assert [each.at - NOW for each in history.since()] == [0.0, 10.0, 20.0]
    # A page that has seen the time before gets all, or it would get nothing until then.
    assert len(history.since(NOW + 50)) == 3
