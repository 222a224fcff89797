"""When a range that does not come to its end is given up, and with which words."""

import logging

import pytest

from kinesis_efo.decisions.quiet import Quiet
from kinesis_efo.errors import RetriesExhaustedError
from kinesis_efo.fetcher.shortfall import Shortfall
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.records.events import EventHead

KEY = ShardKey("orders", "shardId-000000000001")
AT = Position.after(7)
TIMEOUT = 60.0


def shortfall(last: int | None = 9, *, fail: bool = True) -> Shortfall:
    return Shortfall(ShardRange(KEY, Position.after(3), Position.after(9), last), TIMEOUT, 0.0, lambda: "it", fail=fail)


def quiet(since: float, until: float) -> Quiet:
    answers = Quiet()
    for at in (since, until):
        answers.observe(EventHead(0, millis_behind=0, records=0, still=True), at)
    return answers


def test_unreached_end_without_a_record_is_no_loss() -> None:
    with pytest.raises(RetriesExhaustedError, match=r"read up to AFTER:7 and does not get to AFTER:9, .* for 60 s"):
        shortfall(last=None).check_quiet(AT, quiet(0, TIMEOUT))


def test_accepted_loss_ends_the_range_and_is_described() -> None:
    missing = shortfall(fail=False)
    assert missing.check_quiet(AT, quiet(0, TIMEOUT))
    assert "has not come again for 60 s" in missing.lost
    missing = shortfall(fail=False)
    assert not missing.went_beyond(AT, 0.0)
    assert not missing.lost
    assert missing.went_beyond(AT, TIMEOUT)
    assert "later records arrived without it" in missing.lost


def test_waiting_range_warns_periodically_until_it_moves(caplog: pytest.LogCaptureFixture) -> None:
    waiting = shortfall()
    with caplog.at_level(logging.WARNING):
        for position, seconds in ((3, (29.9, 30.0, 59.9, 60.0)), (7, (61.0, 90.0, 91.0, 120.0))):
            for now in seconds:
                waiting.check_progress(Position.after(position), now)
    assert [message.partition(": a task ")[2].partition(" for the rest")[0] for message in caplog.messages] == [
        "has waited for 30 s at AFTER:3",
        "has waited for 60 s at AFTER:3",
        "has waited for 30 s at AFTER:7",
    ]
    assert caplog.messages[0].endswith(", which ends at AFTER:9: it")
