"""What counts as lost, from a position, times and the list of shards."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import (
    TOLERATED_SECONDS,
    Facts,
    ReadUntil,
    gap,
    is_whole,
    low_watermark,
    start_horizon,
    written_at,
)
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo_local.sequence import Numbering

NAME = "shardId-000000000003"
CREATED = 1_700_000_000
seconds = st.integers(0, 10**6)


def number(at: int) -> int:
    return int(Numbering(3, CREATED).record(at * 10**9))


def shard(last: int | None = None) -> Shard:
    return Shard(NAME, ("p",), (0, 9), first=number(CREATED), last=last)


def watermark(position: Position, known: Facts, listed: Shard | None = None) -> float | None:
    return low_watermark(NAME, listed, position, known, latest=inf)


@given(st.none() | seconds, st.none() | seconds, seconds)
def test_low_watermark_is_the_latest_time_that_is_known(
    read_until: int | None, horizon: int | None, written: int
) -> None:
    known = Facts(read_until, horizon)
    times = [each for each in (read_until, horizon) if each is not None]
    assert watermark(TRIM_HORIZON, known) == read_until, "a shard that is not listed may be younger than the start"
    assert watermark(TRIM_HORIZON, known, shard()) == max([*times, CREATED])
    after = Position.after(number(CREATED + written))
    assert watermark(after, known) == max(CREATED + written, read_until or 0), "a start at the horizon is over"
    time = Position.at_timestamp(written * 1000)
    assert watermark(time, Facts(read_until)) == max(written, read_until or 0)
    assert watermark(time, known, shard()) == max(written, read_until or 0, CREATED), "older than the shard"


@given(seconds, seconds, st.none() | seconds)
def test_answers_after_a_gap_count_only_for_later_starts(read_until: int, since: int, horizon: int | None) -> None:
    known = Facts(read_until, horizon, read_since=since)
    own = max(CREATED, horizon or 0)
    assert watermark(TRIM_HORIZON, known, shard()) == (max(own, read_until) if own >= since else own)
    assert watermark(Position.after(number(CREATED)), known) == max(CREATED, read_until)


@given(st.integers(1, 2**100), st.none() | seconds)
def test_number_with_another_layout_has_no_time(value: int, read_until: int | None) -> None:
    assert watermark(Position.after(value), Facts(read_until)) == read_until
    assert watermark(TRIM_HORIZON, Facts(read_until), Shard(NAME, (), (0, 9), first=value)) == read_until


@given(seconds, seconds, st.none() | seconds, seconds)
def test_each_gap_is_found_and_only_starts_tolerated(since: int, horizon: int, start: int | None, least: int) -> None:
    found = gap(since, horizon, start, least)
    begins = start is not None and since <= start and horizon - start <= least
    assert (found is None) == (since >= horizon or begins)
    if found is not None:
        assert found[:2] == (since, horizon)
        assert found.tolerated == (start is not None and horizon - start <= TOLERATED_SECONDS)
        assert gap(since, horizon + 1, start, least) is not None, "a gap does not close as time passes"
        assert not (found.tolerated and start is None)


def test_shard_end_and_unknown_time_have_no_gap() -> None:
    assert watermark(SHARD_END, Facts()) == inf
    assert watermark(TRIM_HORIZON, Facts()) is None
    assert gap(None, inf, None) is None


def test_closed_shard_has_nothing_after_its_last_number() -> None:
    last = number(CREATED + 50)
    assert is_whole(shard(last), Position.after(last))
    assert not is_whole(shard(last), Position.after(last - 1))
    assert not is_whole(shard(), Position.after(last))
    assert not is_whole(None, Position.after(last))


@pytest.mark.parametrize("position", [TRIM_HORIZON, Position.at_timestamp(CREATED * 1000)])
def test_closed_shard_has_records_after_its_beginning(position: Position) -> None:
    assert not is_whole(shard(number(CREATED + 50)), position)


@pytest.mark.parametrize(("early", "known"), [(0, True), (1, True), (60, True), (61, False)])
def test_record_may_be_older_than_its_shard_by_a_minute(early: int, known: bool) -> None:
    created = 1_700_000_000
    number = 2 << 184 | created << 148 | 6 << 144 | 1 << 80 | created - early << 36 | 6 << 4 | 2
    assert written_at(number, "shardId-000000000006", 2e9) == (created - early if known else None)


@pytest.mark.parametrize(
    ("horizon", "listed", "start"),
    [
        (None, True, None),
        (CREATED - 1, True, None),
        (CREATED, True, CREATED),
        (CREATED + 9, True, CREATED + 9),
        (CREATED - 1, False, CREATED - 1),
    ],
)
def test_shard_created_after_the_start_has_no_own_start(
    horizon: float | None, listed: bool, start: float | None
) -> None:
    assert start_horizon(shard() if listed else None, Facts(horizon=horizon)) == start


@given(seconds, seconds)
def test_accepted_loss_covers_positions_up_to_it(accepted: int, position: int) -> None:
    known = Facts(accepted=Position.after(number(accepted)))
    assert known.accepts_loss(Position.after(number(position))) == (position <= accepted)
    assert known.accepts_loss(Position.at_timestamp(1000 * position)) == (position <= accepted)
    assert replace(known, horizon=position).accepts_loss(TRIM_HORIZON) == (position <= accepted)
    assert known.accepts_loss(TRIM_HORIZON), "a child begins before its records"
    assert not Facts(accepted=Position.after(accepted)).accepts_loss(Position.at_timestamp(1)), (
        "a number without a time"
    )
    assert not Facts().accepts_loss(Position.after(position))
    assert Facts(accepted=TRIM_HORIZON).accepts_loss(TRIM_HORIZON)
    assert not Facts(accepted=TRIM_HORIZON).accepts_loss(Position.after(position))


@given(st.lists(st.tuples(st.integers(0, 5), seconds), max_size=30), st.none() | seconds)
def test_low_watermark_needs_three_answers_in_two_seconds(answers: list[tuple[int, int]], known: int | None) -> None:
    found, now, claims = ReadUntil(known), 0, []
    for wait, claim in answers:
        now += wait
        found.observe(claim, now)
        claims.append((now, claim))
        assert known is None or (found.proven is not None and found.proven >= known), "it never goes back"
        if found.proven != known:
            at_least = [each for each in claims if each[1] >= found.proven]
            assert len(at_least) >= 3
            assert at_least[-1][0] - at_least[0][0] >= 2


def test_one_wrong_answer_does_not_move_the_low_watermark() -> None:
    found = ReadUntil(None)
    for second, claim in enumerate([100, 9000, 101, 102]):
        found.observe(claim, float(second))
    assert found.proven == 100
