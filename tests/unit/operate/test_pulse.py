"""Rates, trends and causes, from what a run says of itself again and again."""

from typing import Any

import pytest
from msgspec.structs import replace

from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus, Subscription
from kinesis_efo_tools.operate.history import ALL, History
from kinesis_efo_tools.operate.pulse import WINDOW_SECONDS, LagCause, Pulse, Sum, View

MB = 1_000_000


def shard(number: int = 0, **what: Any) -> ShardStatus:
    told = {"state": "streaming", "opened": 1, "failures": 0, "arrived": 0, "age": 0.1, "came": None, **what}
    subscription = Subscription(*(told.pop(name) for name in ("state", "opened", "failures", "arrived", "age", "came")))
    told = {"fetched": "AFTER:7", "buffered": 0, "records": 0, "waiting": None, "behind": 0, **told}
    return ShardStatus("orders", f"shardId-{number:012d}", subscription=subscription, **told)


def after(*looks: tuple[float, list[ShardStatus]], cpu: float = 0.0) -> View:
    """The view of the last look; of `cpu` seconds of CPU time each second."""
    pulse, view = Pulse(), None
    for at, shards in looks:
        view = pulse.add(RunStatus(at, shards, 256 * MB, cpu * at))
    return view


def test_rates_are_those_of_the_window() -> None:
    assert after((0, [shard(came=100)]), (10, [shard(came=300, records=50)])).total()[-2:] == (20, 15)
    view = after((0, [shard()]), (10, [shard(arrived=20 * MB, buffered=5 * MB)]))
    (one,) = view.shards
    assert (one.incoming, one.processed) == (2 * MB, 1.5 * MB)
    assert view.total() == view.total("orders") == Sum(1, 0.0, 2 * MB, 1.5 * MB, None, None)
    assert (view.buffered, view.room) == (5 * MB, 256 * MB)
    # What was before the window does not count.
    step = WINDOW_SECONDS / 2
    looks = [(step * number, [shard(arrived=100 * MB if number else 0)]) for number in range(5)]
    assert after(*looks).shards[0].incoming == 0


def test_idle_shard_has_no_rates() -> None:
    # Its events have no records, but bytes.
    (one,) = after((0, [shard(came=5, arrived=200)]), (10, [shard(came=5, arrived=700)])).shards
    assert (one.incoming, one.processed, one.records_in, one.records_out) == (0, 0, 0, 0)
    draining = (0, [shard(came=5, buffered=500)]), (10, [shard(came=5, arrived=80)])
    assert after(*draining).shards[0].processed == 50


def test_rates_need_two_looks_at_one_fetcher_and_run() -> None:
    (one,) = after((0, [shard(behind=None)])).shards
    assert (one.incoming, one.processed, one.trend, one.seconds, one.cause) == (None,) * 5
    # The few records of a new fetcher may have more bytes than those before.
    assert after((0, [shard(came=100)]), (10, [shard(arrived=MB, came=30)])).total()[-2:] == (None, None)
    (one,) = after((0, [shard(arrived=50)]), (1, [shard(arrived=10, fetcher="1 on b")])).shards
    assert one.incoming is None
    pulse = Pulse()
    pulse.add(RunStatus(0, [shard(arrived=5 * MB)]))
    pulse.begin(1, "host:2 reads now")
    (one,) = pulse.add(RunStatus(2, [shard(arrived=9 * MB)])).shards
    assert one.incoming is None


def test_when_it_will_have_caught_up() -> None:
    (one,) = after((0, [shard(behind=600_000)]), (10, [shard(behind=500_000, waiting=0.0)])).shards
    assert (one.trend, one.caught_up_in) == (-10, 50)
    (worse,) = after((0, [shard(behind=500_000)]), (10, [shard(behind=600_000)])).shards
    assert worse.caught_up_in is None
    (failed,) = after((0, [shard(behind=600_000)]), (10, [shard(behind=500_000, state="waiting")])).shards
    assert (failed.trend, failed.caught_up_in) == (1, None)


@pytest.mark.parametrize(
    ("told", "cpu", "cause"),
    [
        ({"behind": 29_000}, 0.95, None),
        ({"behind": 60_000}, 0.2, LagCause.NETWORK),
        ({"behind": 60_000, "arrived": 19 * MB}, 0.2, LagCause.LIMIT),
        ({"behind": 60_000, "arrived": 19 * MB}, 0.95, LagCause.FETCHER),
        ({"behind": 60_000, "waiting": 11.0}, 0.95, LagCause.SPARK),
        ({"behind": 0, "waiting": 11.0, "state": "paused"}, 0.0, LagCause.SPARK),
        ({"behind": 0, "waiting": 121.0, "arrived": 5, "buffered": 5}, 0.0, LagCause.STUCK),
        ({"behind": 60_000, "state": "waiting", "failures": 3}, 0.0, LagCause.SUBSCRIPTION),
        ({"behind": 1_000, "age": 31.0}, 0.0, LagCause.SUBSCRIPTION),
        # Records wait because the run pauses without AWS.
        (
            {"waiting": 121.0, "arrived": 5, "buffered": 5, "state": "waiting", "failures": 3},
            0.0,
            LagCause.SUBSCRIPTION,
        ),
        # It is silent on purpose.
        ({"behind": 60_000, "state": "paused", "age": 31.0}, 0.0, LagCause.NETWORK),
        # It failed, and goes on.
        ({"behind": 1_000, "failures": 1}, 0.0, None),
    ],
)
def test_what_is_slow(told: dict[str, Any], cpu: float, cause: LagCause | None) -> None:
    (one,) = after((0, [shard()]), (10, [shard(**told)]), cpu=cpu).shards
    assert one.cause is cause


def test_reshards_and_moves_are_events() -> None:
    pulse = Pulse()
    pulse.begin(0, "host:1 reads now")
    pulse.add(RunStatus(1, [shard(0), shard(1, fetcher="0 on a")]))
    pulse.add(RunStatus(2, [shard(0, fetched="SHARD_END"), shard(1, fetcher="1 on b")]))
    pulse.add(RunStatus(3, [shard(0, fetched="SHARD_END"), shard(1, fetcher="1 on b"), shard(2), shard(3)]))
    pulse.add(RunStatus(4, [shard(1, fetcher="1 on b"), shard(2), shard(3)]))
    assert pulse.events == (
        (0, "host:1 reads now"),
        (2, "orders:shardId-000000000000 ended"),
        (2, "orders:shardId-000000000001 moved to another fetcher"),
        (3, "orders:shardId-000000000002, orders:shardId-000000000003 began"),
        (4, "orders:shardId-000000000000 left"),
    )
    pulse.add(RunStatus(5, [shard(1, fetcher="1 on b"), *(shard(number) for number in range(2, 1004))]))
    assert pulse.events[-1][1].endswith("shardId-000000000007 and 996 more began")


def test_queries_of_several_runs_have_their_rates() -> None:
    pulse = Pulse()
    orders, clicks = QueryStatus(1, ["orders"], millis=5_000), QueryStatus(1, ["clicks"], bytes_done=7 * MB)
    pulse.add(RunStatus(0, [], queries=[orders, clicks]))
    later = replace(orders, millis=4_000, bytes_done=10 * MB, records_done=50, calls=20, arrived=5 * MB)
    view = pulse.add(RunStatus(10, [], queries=[later, clicks, QueryStatus(2, ["orders"], millis=100)]))
    assert [(each.processed, each.records_out, each.calls, each.apart, each.trend) for each in view.queries] == [
        (MB, 5.0, 2.0, 0.5 * MB, -0.1),
        (0.0, 0.0, 0.0, 0.0, None),
        (None, None, None, None, None),
    ]
    assert after((0, [shard()])).queries == ()


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


def test_longest_lag_of_a_stretch_counts() -> None:
    history = filled(0, (0, 1000), (2, 9000), (4, 2000), (10, 3000))
    assert [each.sums[ALL].seconds for each in history.since()] == [9.0, 3.0]


def test_page_gets_new_points_whatever_the_clock_does() -> None:
    history = filled(0, *((second, 1000) for second in range(0, 60, 10)))
    assert [each.at - NOW for each in history.since(NOW + 40)] == [40.0, 50.0]
    history.add(NOW + 20, view(5000))
    assert [each.at - NOW for each in history.since()] == [0.0, 10.0, 20.0]
    # A page that has seen the time before gets all, or it would get nothing until then.
    assert len(history.since(NOW + 50)) == 3
