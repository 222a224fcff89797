"""One lease in virtual time: when its row is renewed, for how long it is ours, and what ends that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial, wraps
from random import Random
from typing import Any

import pytest

from kinesis_efo.errors import TableUnavailableError
from kinesis_efo.leases.attributes import Lag
from kinesis_efo.leases.renewal import Renewal, RenewalEnd, Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan
from tests.support.virtual_time import LoopClock, run

TIMING = Timing(30.0)
OURS = Lease("#run:orders", 5, "me")
THEIRS = replace(OURS, owner="other", counter=6)
Answer = Outcome | Exception | float | None


class Whole(Random):
    """Nothing is spread out: renewals come when they are due."""

    def uniform(self, a: float, b: float) -> float:
        return b


@dataclass
class Write:
    """A write that was sent."""

    at: float
    operation: str
    before: Lease
    after: Lease


class ScriptedStore(LeaseStore):
    """Answers each write as told: None says that it is written, a number of seconds that it takes so long. Then all are."""

    label = "lease table leases"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.writes: list[Write] = []
        self.clock = LoopClock()
        self.began = self.clock.monotonic()

    async def check(self) -> str:
        return "arn"

    async def scan(self) -> Scan:
        return Scan()

    async def create(self, lease: Lease) -> Outcome:
        return await self._answer("create", lease, lease)

    async def update(self, before: Lease, after: Lease) -> Outcome:
        return await self._answer("update", before, after)

    async def delete(self, seen: Lease) -> Outcome:
        raise NotImplementedError

    async def _answer(self, operation: str, before: Lease, after: Lease) -> Outcome:
        self.writes.append(Write(self.clock.monotonic() - self.began, operation, before, after))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        if isinstance(answer, Exception):
            raise answer
        return after if answer is None or isinstance(answer, float) else answer

    @property
    def times(self) -> list[float]:
        return [round(write.at, 6) for write in self.writes]


def renewal(store: ScriptedStore, **more: Any) -> Renewal:
    return Renewal(store, OURS, store.began, TIMING, store.clock, Whole(), **{"lag": lambda: None, **more})


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def synchronous(**arguments: Any) -> None:
        run(asyncio.wait_for(test(**arguments), 3600))

    return synchronous


async def kept_for(seconds: float, kept: Renewal) -> RenewalEnd:
    """Keep a lease for so long, and then leave it."""
    keeping = asyncio.ensure_future(kept.keep())
    await asyncio.wait({keeping}, timeout=seconds)
    kept.leave()
    return await keeping


@virtual
async def test_it_is_renewed_three_times_in_each_timeout_and_held_until_it_is_left() -> None:
    store = ScriptedStore()
    kept = renewal(store)
    assert kept.held
    assert await kept_for(35, kept) is RenewalEnd.LEAVING
    assert store.times == [10, 20, 30]
    assert [write.after.counter for write in store.writes] == [6, 7, 8]
    assert kept.lease == store.writes[-1].after
    assert kept.deadline == store.began + 60
    assert (kept.valid, kept.held) == (True, False), "ours still, but about to be released"
    assert store.clock.monotonic() == store.began + 35, "who leaves does not wait for the next renewal"


@virtual
async def test_a_renewal_that_takes_long_counts_from_when_it_was_sent() -> None:
    store = ScriptedStore(4.0)
    kept = renewal(store)
    assert await kept_for(22, kept) is RenewalEnd.LEAVING
    assert store.times == [10, 20]
    assert kept.deadline == store.began + 50


@virtual
async def test_a_write_that_fails_is_repeated_soon_until_the_lease_is_over() -> None:
    fault = TableUnavailableError("lease table leases: throttled")
    store = ScriptedStore(*[fault] * 100)
    kept = renewal(store)
    assert await kept.keep() is RenewalEnd.UNREACHABLE
    # A third of the time between two renewals later, each time.
    assert store.times == pytest.approx([10 + number * 10 / 3 for number in range(6)])
    assert store.clock.monotonic() == store.began + 30
    assert (kept.trouble, kept.why_late, kept.valid, kept.held) == (fault, str(fault), False, False)


@virtual
async def test_a_renewal_after_a_failure_is_as_good_as_any() -> None:
    store = ScriptedStore(TableUnavailableError("throttled"))
    kept = renewal(store)
    assert await kept_for(25, kept) is RenewalEnd.LEAVING
    assert store.times == pytest.approx([10, 40 / 3, 70 / 3])
    assert kept.trouble is None


@virtual
async def test_a_table_that_does_not_answer_is_told_with_the_number_of_writes() -> None:
    store = ScriptedStore(1000.0)
    kept = renewal(store)
    assert await kept.keep() is RenewalEnd.UNREACHABLE
    assert store.clock.monotonic() == store.began + 30, "no write outlasts the lease"
    assert kept.why_late == "lease table leases did not answer (writes sent: 1)"


@virtual
async def test_a_process_that_stood_still_is_told_apart_from_a_table_that_does_not_answer() -> None:
    store = ScriptedStore()
    kept = renewal(store)
    keeping = asyncio.ensure_future(kept.keep())
    await asyncio.sleep(5)
    asyncio.get_running_loop().now += 40  # type: ignore[attr-defined]
    assert await keeping is RenewalEnd.UNREACHABLE
    assert store.writes == []
    assert kept.why_late.startswith("this process did not run for 35.0 s (stopped, swapped out, or short of CPU)")
    assert kept.why_late.endswith("lease_timeout is 30 s")


@virtual
async def test_a_process_that_stood_still_while_a_write_was_under_way_is_told_as_well() -> None:
    kept = renewal(ScriptedStore(1000.0))
    keeping = asyncio.ensure_future(kept.keep())
    await asyncio.sleep(11)
    asyncio.get_running_loop().now += 40  # type: ignore[attr-defined]
    assert await keeping is RenewalEnd.UNREACHABLE
    assert kept.why_late.startswith("this process did not run for 21.0 s")


@virtual
async def test_a_short_pause_of_the_process_is_not_what_is_told() -> None:
    store = ScriptedStore(*[TableUnavailableError("throttled")] * 100)
    kept = renewal(store)
    keeping = asyncio.ensure_future(kept.keep())
    await asyncio.sleep(5)
    asyncio.get_running_loop().now += 12  # type: ignore[attr-defined]
    assert await keeping is RenewalEnd.UNREACHABLE
    assert kept.why_late == "throttled"


@virtual
async def test_a_pause_that_was_survived_is_forgotten() -> None:
    store = ScriptedStore(None, *[TableUnavailableError("throttled")] * 100)
    kept = renewal(store)
    keeping = asyncio.ensure_future(kept.keep())
    await asyncio.sleep(5)
    asyncio.get_running_loop().now += 20  # type: ignore[attr-defined]
    assert await keeping is RenewalEnd.UNREACHABLE
    assert kept.why_late == "throttled"


@virtual
async def test_a_lease_that_another_run_has_taken_is_lost_to_it() -> None:
    store = ScriptedStore(Conflict(THEIRS))
    kept = renewal(store)
    assert await kept.keep() is RenewalEnd.LOST
    assert (kept.lost_to, kept.held, kept.valid) == ("other", False, True)


@virtual
async def test_a_write_that_had_arrived_is_made_again_at_once_and_renews_nothing() -> None:
    arrived = OURS.renewed()
    store = ScriptedStore(Conflict(arrived), Conflict(THEIRS))
    kept = renewal(store)
    assert await kept.keep() is RenewalEnd.LOST
    assert store.times == [10, 10]
    assert store.writes[1].before == arrived
    assert kept.deadline == store.began + 30, "when it was sent is not known"


@virtual
async def test_a_row_that_was_deleted_is_written_again(caplog: pytest.LogCaptureFixture) -> None:
    store = ScriptedStore(Conflict(None))
    kept = renewal(store)
    with caplog.at_level(logging.WARNING):
        assert await kept_for(15, kept) is RenewalEnd.LEAVING
    assert [write.operation for write in store.writes] == ["update", "create"]
    assert caplog.messages == ["lease #run:orders: its row was deleted from lease table leases; written again"]
    assert kept.deadline == store.began + 40


@virtual
async def test_a_row_that_was_deleted_and_written_by_another_run_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    store = ScriptedStore(Conflict(None), Conflict(THEIRS))
    kept = renewal(store)
    assert await kept.keep() is RenewalEnd.LOST
    assert kept.lost_to == "other"
    assert caplog.messages == []
    kept = renewal(ScriptedStore(Conflict(None), Conflict(None)))
    assert await kept.keep() is RenewalEnd.LOST
    assert kept.lost_to is None


@virtual
async def test_a_row_that_was_written_again_by_a_call_whose_answer_was_lost_is_not_taken_for_anothers() -> None:
    store = ScriptedStore(Conflict(None), Conflict(OURS.renewed()))
    kept = renewal(store)
    assert await kept_for(15, kept) is RenewalEnd.LEAVING
    assert [write.operation for write in store.writes] == ["update", "create", "update"]
    assert kept.lease == OURS.renewed().renewed()


@virtual
async def test_each_renewal_tells_how_far_reading_is_behind_and_notes_what_is_to_be_remembered() -> None:
    lags = iter([Lag(1000, 10), Lag(2000, 20)])
    store = ScriptedStore(None, Conflict(None))
    noting: Callable[[Lease], Lease] = partial(replace, distributed=True)
    kept = renewal(store, lag=lambda: next(lags, None), noting=noting)
    await kept_for(25, kept)
    assert await kept.release()
    assert [write.after.distributed for write in store.writes] == [True] * 4
    assert [write.after.lag for write in store.writes[:2]] == [Lag(1000, 10), Lag(2000, 20)]


@virtual
async def test_it_is_released() -> None:
    store = ScriptedStore()
    assert await renewal(store).release() is True
    assert [(write.after.owner, write.after.counter) for write in store.writes] == [(None, 6)]


@virtual
async def test_releasing_is_repeated_for_as_long_as_a_lease_lasts() -> None:
    fault = TableUnavailableError("throttled")
    store = ScriptedStore(fault, fault)
    assert await renewal(store).release() is True
    assert store.times == pytest.approx([0, 10 / 3, 20 / 3])
    store = ScriptedStore(*[fault] * 100)
    assert await renewal(store).release() is False
    assert 26 <= store.times[-1] < 30
    store = ScriptedStore(1000.0)
    assert await renewal(store).release() is False
    assert store.clock.monotonic() - store.began <= 34


@pytest.mark.parametrize(
    ("current", "free"), [(None, True), (replace(OURS, owner=None, counter=9), True), (THEIRS, False)]
)
@virtual
async def test_a_row_that_is_not_ours_any_more_needs_no_release(current: Lease | None, free: bool) -> None:
    store = ScriptedStore(Conflict(current))
    assert await renewal(store).release() is free
    assert len(store.writes) == 1


@virtual
async def test_a_release_that_had_arrived_is_found_done() -> None:
    # Its answer got lost, and the row is free: our write, and nobody's lease.
    store = ScriptedStore(Conflict(OURS.released()))
    assert await renewal(store).release() is True
