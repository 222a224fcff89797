"""One lease in virtual time: when its row is renewed, for how long it is held, and how it ends."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from kinesis_efo.errors import TableUnavailableError
from kinesis_efo.leases.renewal import Renewal, RenewalEnd, Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict, Outcome
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock

OURS = Lease("#run:orders", 5, "me")
THEIRS = replace(OURS, owner="other", counter=6)
THROTTLED = TableUnavailableError("throttled")
Answer = Outcome | Exception | float | None


class Whole(Random):
    """Nothing is spread out: renewals come when they are due."""

    def uniform(self, a: float, b: float) -> float:
        return b


class ScriptedStore(MemoryLeaseStore):
    """Answers each write in turn: None for success, a number of seconds for a slow success. Then all succeed."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = list(answers)
        self.sent: list[tuple[float, str, Lease, Lease]] = []
        self.clock = LoopClock()
        self.began = self.clock.monotonic()

    async def create(self, lease: Lease) -> Outcome:
        return await self._answer("create", lease, lease)

    async def update(self, before: Lease, after: Lease) -> Outcome:
        return await self._answer("update", before, after)

    async def _answer(self, operation: str, before: Lease, after: Lease) -> Outcome:
        self.sent.append((round(self.clock.monotonic() - self.began, 6), operation, before, after))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        if isinstance(answer, Exception):
            raise answer
        return after if answer is None or isinstance(answer, float) else answer

    @property
    def times(self) -> list[float]:
        return [at for at, *_ in self.sent]


def renewal(store: ScriptedStore, timeout: float = 30.0) -> Renewal:
    return Renewal(store, OURS, store.began, Timing(timeout), store.clock, Whole(), lag=lambda: None)


@pytest.mark.parametrize(
    ("answers", "frozen_at", "seconds", "reason"),
    [
        ([], 5, 40, "this process did not run for 35.0 s"),
        ([1000.0], 11, 40, "this process did not run for 21.0 s"),
        ([1000.0], 1, 0, "lease table memory did not answer (writes sent: 1)"),
        ([THROTTLED] * 100, 5, 12, "throttled"),
        ([None, *[THROTTLED] * 100], 5, 20, "throttled"),
    ],
)
async def test_cause_of_a_late_renewal_is_reported(
    answers: list[Answer], frozen_at: float, seconds: float, reason: str
) -> None:
    lease = renewal(ScriptedStore(*answers))
    renewing = asyncio.ensure_future(lease.keep())
    await asyncio.sleep(frozen_at)
    asyncio.get_running_loop().now += seconds  # type: ignore[attr-defined]
    assert await renewing is RenewalEnd.UNREACHABLE
    assert lease.why_late.startswith(reason)


async def test_write_that_had_arrived_is_repeated_and_renews_nothing() -> None:
    arrived = OURS.renewed()
    store = ScriptedStore(Conflict(arrived), Conflict(THEIRS))
    lease = renewal(store)
    assert await lease.keep() is RenewalEnd.LOST
    assert (lease.lost_to, lease.held, lease.valid) == ("other", False, True)
    assert store.times == [10, 10]
    assert store.sent[1][2] == arrived
    assert lease.deadline == store.began + 30, "when it was sent is not known"


@pytest.mark.parametrize(
    ("answers", "freed", "times"),
    [
        ([], True, [0]),
        ([THROTTLED] * 2, True, [0, 3, 6]),
        ([THROTTLED] * 100, False, list(range(0, 27, 3))),
        ([1000.0], False, [0]),
        ([Conflict(None)], True, [0]),
        ([Conflict(replace(OURS, owner=None, counter=9))], True, [0]),
        ([Conflict(THEIRS)], False, [0]),
        # Its answer was lost, and the row is free.
        ([Conflict(OURS.released())], True, [0]),
    ],
)
async def test_release_is_repeated_while_the_lease_lasts(
    answers: list[Answer], freed: bool, times: list[float]
) -> None:
    store = ScriptedStore(*answers)
    assert await renewal(store, 27.0).release() is freed
    assert store.times == times
    assert store.clock.monotonic() - store.began <= 30
    assert (store.sent[0][3].owner, store.sent[0][3].counter) == (None, 6)
