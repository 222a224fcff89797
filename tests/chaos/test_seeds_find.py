"""That the random search finds what it is for: each rule here was missing once, and without it some seed fails."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import floor, inf
from typing import Any

import pytest

from kinesis_efo.batch import planning, reading
from kinesis_efo.batch.ranges import unlisted
from kinesis_efo.clock import Clock
from kinesis_efo.decisions import quiet
from kinesis_efo.decisions.lineage import Lineage
from kinesis_efo.fetcher import buffer
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.leases import run
from kinesis_efo.positions import Offset, Position, ShardRange
from kinesis_efo.run import start
from kinesis_efo.run.query_ends import Ends
from kinesis_efo_tools.cli import lease_transfer, leases
from tests.emulator.batches import play_batches
from tests.emulator.ends import play_ends
from tests.emulator.scenario import play
from tests.emulator.tools import play as play_tools

pytestmark = [pytest.mark.slow, pytest.mark.long]

SEEDS = 200
"""Every night there are five times as many."""


def believe_one_answer(patch: pytest.MonkeyPatch) -> None:
    """A batch read takes one empty answer for the tip."""
    patch.setattr(quiet, "QUIET_ANSWERS", 1)
    patch.setattr(quiet, "QUIET_EVENTS", 1)
    patch.setattr(quiet, "QUIET_SECONDS", 0.0)


def wait_until_nothing_is_behind(patch: pytest.MonkeyPatch) -> None:
    """Answers without records count only where the server says that nothing is left."""
    observe = quiet.Quiet.observe
    patch.setattr(quiet.Quiet, "observe", lambda self, head, now: observe(self, head._replace(stuck=True), now))


def forget_the_last_record(patch: pytest.MonkeyPatch) -> None:
    """A repeated micro-batch does not know which record it was planned up to."""
    ranges_to = Offset.ranges_to

    def without(self: Offset, end: Offset) -> list[ShardRange]:
        return [wanted._replace(last=None) for wanted in ranges_to(self, end)]

    patch.setattr(Offset, "ranges_to", without)


def begin_by_this_machines_clock(patch: pytest.MonkeyPatch) -> None:
    """`LATEST` is the time of the host, which may be fast."""

    def now(clock: Clock) -> Position:
        assert isinstance(clock, KinesisClock)
        return Position.at_timestamp(floor(clock.here * 1000))

    patch.setattr(start, "_now", now)


def let_hung_attempts_keep_the_budget(patch: pytest.MonkeyPatch) -> None:
    """An attempt that hangs in a full budget holds up the one that takes its place."""
    patch.setattr(buffer, "STARVING_SECONDS", inf)
    patch.setattr(buffer, "CLAIM_SECONDS", inf)


def give_up_a_throttled_table(patch: pytest.MonkeyPatch) -> None:
    """A start fails at once if the lease table is throttled."""

    class Impatient:
        def __init__(self, *_: object) -> None: ...

        async def call(self, _: str, ask: Callable[[], Any]) -> Any:
            return await ask()

    patch.setattr(run, "Patience", Impatient)


def give_up_a_refused_list(patch: pytest.MonkeyPatch) -> None:
    """A start fails soon if Kinesis refuses ListShards."""

    async def impatient(self: Streams, names: Iterable[str]) -> None:
        await asyncio.gather(*(self.stream(name).refresh() for name in names))

    patch.setattr(Streams, "refresh", impatient)


def keep_rows_that_expired(patch: pytest.MonkeyPatch) -> None:
    """A batch read does not compare the trim horizon at planning with that at reading."""
    patch.setattr(reading, "trimmed", lambda *_, **__: None)


def list_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """A batch read lists the shards before its end has passed."""
    patch.setattr(planning, "_LONGEST_WAIT_SECONDS", 0.0)
    patch.setattr(reading, "unlisted", lambda *_: [])


def trust_an_old_list(patch: pytest.MonkeyPatch) -> None:
    """A batch read does not look for children that ListShards did not show yet."""
    patch.setattr(reading, "unlisted", lambda *_: [])


def trust_an_old_filtered_list(patch: pytest.MonkeyPatch) -> None:
    """A batch read believes a list of the shards of a time that lacks some."""
    patch.setattr(Lineage, "is_whole", lambda *_: True)


def end_before_the_start(patch: pytest.MonkeyPatch) -> None:
    """A query ends at the record that `endingPosition` names, although it starts at a later time."""
    patch.setattr(Ends, "_not_before", lambda *given: given[2])


def miss_what_unlisted_children_lose(patch: pytest.MonkeyPatch) -> None:
    """A batch read believes that a child that was not listed when it was planned has all its records."""

    def without(*given: Any) -> list[Any]:
        return [replace(each, horizon=None) for each in unlisted(*given)]

    patch.setattr(reading, "unlisted", without)


def forget_children_of_a_shard_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A batch read that may lose a shard does not look for the children that the shard's last event would have announced."""
    patch.setattr(reading, "announced", lambda _: ())


def forget_that_answers_have_whole_seconds(patch: pytest.MonkeyPatch) -> None:
    """The time of an answer is that in its header, even if it was nearly a second later, and the answer slow."""
    patch.setattr(KinesisClock, "latest", property(KinesisClock.time))


def forget_that_the_clock_is_set(patch: pytest.MonkeyPatch) -> None:
    """A batch read takes the error of this machine's clock at the action for that at `load()`."""
    patch.setattr(planning, "_READ_APART_SECONDS", inf)


def believe_that_times_are_exact(patch: pytest.MonkeyPatch) -> None:
    """A batch read begins exactly at its start time."""
    patch.setattr(reading, "first_position", lambda part: part.start)


def export_beside_rows_of_another_form(patch: pytest.MonkeyPatch) -> None:
    """`leases export-kcl` writes into a table whose rows name the shards of the stream in another way."""
    patch.setattr(lease_transfer, "require_one_form", lambda *_: None)


def reset_without_a_look_at_other_rows(patch: pytest.MonkeyPatch) -> None:
    """`leases reset --shard` does not check what a query makes of the rows."""
    patch.setattr(leases, "read_to_end", lambda *_: {})


def end_before_unlisted_children(patch: pytest.MonkeyPatch) -> None:
    """A query that ends does not look for children that ListShards did not show yet."""

    async def none(*_: Any) -> set[Any]:
        return set()

    patch.setattr(Streams, "list_children", none)


@pytest.mark.parametrize(
    ("without", "play", "found_by"),
    [
        (believe_one_answer, play, 82),
        (wait_until_nothing_is_behind, play, 181),
        (forget_the_last_record, play, 13),
        (begin_by_this_machines_clock, play, 18),
        (let_hung_attempts_keep_the_budget, play, 36),
        (give_up_a_throttled_table, play, 14),
        (give_up_a_refused_list, play, 0),
        (believe_one_answer, play_ends, 2),
        (keep_rows_that_expired, play_batches, 0),
        (list_before_the_end, play_batches, 0),
        (trust_an_old_list, play_batches, 28),
        (trust_an_old_filtered_list, play_batches, 226),
        (miss_what_unlisted_children_lose, play_batches, 36),
        (forget_children_of_a_shard_that_is_gone, play_batches, 2),
        (forget_that_answers_have_whole_seconds, play_batches, 0),
        (forget_that_the_clock_is_set, play_batches, 28),
        (believe_that_times_are_exact, play_batches, 21),
        (export_beside_rows_of_another_form, play_tools, 74),
        (reset_without_a_look_at_other_rows, play_tools, 54),
        (end_before_unlisted_children, play_ends, 8),
        (end_before_the_start, play_ends, 10),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_a_rule_that_is_taken_away_is_missed(
    without: Callable[[pytest.MonkeyPatch], None],
    play: Callable[[int], Any],
    found_by: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first of them found it when this was written. Another one does once the scenarios have changed.
    without(monkeypatch)
    for seed in (found_by, *range(SEEDS)):
        try:
            play(seed)
        except AssertionError:
            return
    pytest.fail(f"{SEEDS} seeds find nothing")
