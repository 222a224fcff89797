"""What the run concludes from the reports of fetchers in other processes, which may come late."""

from math import inf

import pytest

from kinesis_efo.cluster.members import Member
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.work import RowKey, ShardNews
from kinesis_efo.kinesis.stats import State
from kinesis_efo.positions import TRIM_HORIZON, ShardKey
from kinesis_efo.run.table import Row

KEY = ShardKey("orders", "shardId-000000000000")


@pytest.mark.parametrize(("made_at", "since"), [(100.0, 98.0), (40.0, 38.0), (-inf, -inf)])
def test_late_report_shows_nothing_that_came_after_it(made_at: float, since: float) -> None:
    row = Row(RowKey(None, KEY), TRIM_HORIZON, 1, 0.0)
    row.apply_report(ShardNews(KEY, 1, unseen=2.0), 100.0, made_at)
    assert row.has_all_since(since) and not row.has_all_since(since + 0.1 if made_at > 0 else 0.0)


@pytest.mark.parametrize(
    ("state", "now", "millis"),
    [
        (State.STREAMING, 103.0, 500),
        # It has failed, so the silence counts from the start.
        (State.WAITING, 103.0, 4_500),
        (State.STREAMING, 112.0, 12_500),
        (State.WAITING, 112.0, 13_500),
    ],
)
def test_silence_of_a_failed_subscription_counts_as_lag_at_once(state: State, now: float, millis: int) -> None:
    row = Row(RowKey(None, KEY), TRIM_HORIZON, 1, 0.0)
    row.apply_report(ShardNews(KEY, 1, behind=500), 100.0, 100.0)
    # The last event came a second before the last report.
    subscription = Subscription(state.value, opened=1, failures=1, arrived=0, age=now - 99.0)
    assert row.status(None, subscription, now).behind == millis


def test_first_report_of_a_fetcher_has_no_time() -> None:
    member = Member()
    assert member.accept_report(1) and member.replied_at == -inf
    member.replied_at = 50.0
    assert member.accept_report(2) and member.replied_at == 50.0
    # It gave up waiting for the reply, so it may have made this report before that.
    assert member.accept_report(1) and member.replied_at == -inf
