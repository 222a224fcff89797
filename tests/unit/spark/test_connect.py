"""When a client of Spark Connect submits the jobs of fetchers."""

from __future__ import annotations

import queue
import threading
from typing import Any

from kinesis_efo.spark.connect import FetcherJobs
from kinesis_efo.spark.pauses import Pauses
from tests.support.world import wait_until

STARTED: Any = None


class Session:
    """Runs jobs until a test ends them."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, int]] = []
        self.endings: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.queries = True
        self.pauses: list[float] = []
        self.jobs = FetcherJobs(self._submit, self._active, self.pauses.append)

    def _submit(self, name: str, fetchers: int) -> None:
        self.submitted.append((name, fetchers))
        if (error := self.endings.get(timeout=30)) is not None:
            raise error

    def _active(self) -> bool:
        if not self.queries:
            raise ConnectionError("the session has ended")
        return True

    def runs(self) -> int:
        return sum(thread.name == "kinesis-efo fetchers" for thread in threading.enumerate())

    def submitted_in_all(self, count: int) -> None:
        wait_until(lambda: len(self.submitted) >= count, 60)
        assert len(self.submitted) == count


def test_a_job_is_submitted_when_a_query_starts_and_again_with_the_next() -> None:
    session = Session()
    name = session.jobs.add(3)
    assert session.submitted == []
    for number in (1, 2):
        session.jobs.onQueryStarted(STARTED)
        session.submitted_in_all(number)
        session.endings.put(None)
        wait_until(lambda: session.runs() == 0, 60)
    assert session.submitted == [(name, 3), (name, 3)]


def test_a_query_that_starts_while_the_job_runs_may_be_its_next() -> None:
    session = Session()
    session.jobs.add(1)
    session.jobs.onQueryStarted(STARTED)
    session.submitted_in_all(1)
    session.jobs.onQueryStarted(STARTED)
    session.jobs.onQueryStarted(STARTED)
    session.endings.put(None)
    session.submitted_in_all(2)
    session.endings.put(None)
    wait_until(lambda: session.runs() == 0, 60)
    session.submitted_in_all(2)


def test_every_dataframe_has_a_job_of_its_own() -> None:
    session = Session()
    names = {session.jobs.add(1), session.jobs.add(2)}
    assert len(names) == 2
    session.jobs.onQueryStarted(STARTED)
    session.submitted_in_all(2)
    for _ in names:
        session.endings.put(None)
    wait_until(lambda: session.runs() == 0, 60)


def test_a_job_that_fails_is_submitted_again_while_queries_run() -> None:
    session = Session()
    session.jobs.add(1)
    session.jobs.onQueryStarted(STARTED)
    for number in range(1, 8):
        session.submitted_in_all(number)
        session.endings.put(RuntimeError("a task failed four times"))
    session.submitted_in_all(8)
    assert session.pauses == [1, 2, 4, 8, 16, 30, 30]
    session.queries = False
    session.endings.put(RuntimeError("the channel is closed"))
    wait_until(lambda: session.runs() == 0, 60)
    session.submitted_in_all(8)


def test_a_job_that_did_run_is_submitted_again_at_once() -> None:
    now = [0.0]
    pauses = Pauses(lambda: now[0])
    for seconds, expected in ((1, 1), (1, 2), (1, 4), (31, 1), (1, 2)):
        pauses.begin()
        now[0] += seconds
        assert pauses.after_failure() == expected
