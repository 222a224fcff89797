"""One lag, whoever shows it: Kinesis' time minus the arrival of the oldest unprocessed record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.status import RunStatus, ShardStatus
from kinesis_efo.leases.attributes import of_lag, read_lag
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.sharing.standing import Reads, lag_of, stands
from kinesis_efo_tools.operate.live import RunReplies
from kinesis_efo_tools.operate.pulse import Pulse

KEY = ShardKey("orders", "shardId-000000000000")
KINESIS = 1_700_000_000.0
"""Kinesis' time at the monotonic time 0."""


class Shared:
    """The shared buffers, whose last event was at the tip."""

    def millis_behind(self, key: ShardKey) -> int:
        return 0


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 600_000)), min_size=1, max_size=20),
    st.integers(0, 19),
    st.integers(0, 100_000),
)
def test_all_readers_show_the_same_lag(events: list[tuple[int, int]], done: int, later: int) -> None:
    """`events` are the milliseconds since the event before, and the age of the event's last record; `later` milliseconds pass."""
    index, now, arrived = EventIndex(TRIM_HORIZON), 0.0, []
    for number, (pause, age) in enumerate(events):
        now += pause / 1000
        arrived.append(now - age / 1000)
        index.append(number + 1, 100, 1, now, behind=age)
    done %= len(events)
    position = Position.after(done) if done else TRIM_HORIZON
    if done:
        index.drop(done)
    oldest = index.lag(index.start, now)
    status = ShardStatus(*KEY, str(index.end), index.held, index.records, 0.0, 0, done=str(position), oldest=oldest)
    expected = round(1000 * (now - arrived[done]))
    written = lag_of([status], at=round(1000 * (KINESIS + now)))
    shown = read_lag({"leaseKey": {"S": "#run:orders"}, **of_lag(written)})
    assert shown is not None
    view = Pulse().add(RunStatus(KINESIS + now, [status]))
    query = stands(KEY, position, Reads(Shared(), index, index, None, apart=False), now)
    for millis in (status.millis, written.millis_behind, query.millis, round(1000 * (view.total().seconds or 0.0))):
        assert millis is not None
        assert abs(millis - expected) <= 1
    # Each reader adds the time that has passed since.
    at = KINESIS + now + later / 1000
    run = replace(Lease.new("#run:orders", LeaseInfo(TRIM_HORIZON)), owner="host")
    replies = RunReplies({"host": RunStatus(KINESIS + now, [status])}, {})
    found = replies.lags(run, "orders", at)[KEY.shard]
    aged = view.aged(later / 1000).total().seconds
    for seconds in (shown.seconds_behind(at), found, aged):
        assert seconds is not None
        assert abs(1000 * seconds - expected - later) <= 2
