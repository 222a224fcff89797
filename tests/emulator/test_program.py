"""Whole programs: queries that begin at LATEST, that end beside others, and runs that stand still."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kinesis_efo.errors import AccessRefusedError, AlreadyRunningError, FetcherError, RetriesExhaustedError
from kinesis_efo.leases.keys import run_key
from tests.emulator.machine import SimulatedProcess
from tests.emulator.world import World, world

SILENT = "the process that fetches orders (pid 102) has not answered for 10 s"


@contextmanager
def frozen(processes: Sequence[SimulatedProcess]) -> Iterator[None]:
    """Let processes stand still."""
    for process in processes:
        process.frozen = True
    yield
    for process in processes:
        process.frozen = False


def host(w: World) -> SimulatedProcess:
    """The process that has the run."""
    assert w.program.host is not None
    return w.program.host


def test_query_at_latest_begins_at_its_own_time() -> None:
    with world(warns=["InternalFailure", "cannot be read", "failed"]) as w:
        began = int(w.kinesis.now * 1000)
        w.put(60, wait=60)
        w.fail("SubscribeToShard", after=0, seconds=20)
        first = w.query(startingPosition=f"AT_TIMESTAMP:{began}")
        w.later(5)
        # No event has arrived yet: the shared buffer stands at the time of the first.
        others = [w.query(startingPosition="LATEST") for _ in range(2)]
        w.later(5)
        w.put(7, wait=60)
        first.follows(8)
        for each in others:
            each.reads(15)


def test_query_at_latest_begins_at_the_tip_despite_an_outage() -> None:
    with world(subscription_seconds=30.0, warns=["InternalFailure", "cannot be read", "failed"]) as w:
        first = w.query(startingPosition="LATEST")
        w.fail("SubscribeToShard", after=20, seconds=180)
        w.later(40)
        w.put(60, wait=100)
        second = w.query(startingPosition="LATEST")
        w.later(10)
        w.put(7)
        first.reads(67, within=400)
        second.reads(7)


def test_query_at_latest_requires_several_events_without_lag() -> None:
    with world(wrong_answers="quiet", wrong_answers_rate=1.0, idle_event_seconds=20.0) as w:
        w.put(60, wait=600)
        first = w.query()
        w.later(10)
        second = w.query(startingPosition="LATEST")
        w.later(5)
        w.put(7)
        first.reads(67, within=200)
        second.reads(7, within=200)


def test_query_restarts_before_another_has_noticed_the_failure() -> None:
    with world(options={"readMode": "polling"}) as w:
        w.put(10)
        first, slow = w.query(), w.query(trigger=1200.0)
        w.all_read(10)
        w.refuse_get_records()
        first.fails(AccessRefusedError)
        assert slow.spark.error is None
        w.kinesis.refused = False
        w.put(10)
        first.start().reads(20)
        slow.fails(AccessRefusedError, within=1300)
        slow.spark.trigger = 1.0
        slow.start().reads(20)


def test_query_that_waits_for_its_end_asks_seldom() -> None:
    with world(options={"readMode": "polling"}, warns=["still searching for its end after"]) as w:
        w.put(5)
        w.answer_stuck()
        query = w.query(available_now=True)
        w.later(10)
        before = w.kinesis.calls
        w.later(60)
        assert w.kinesis.calls - before <= 60 * 6
        query.fails(RetriesExhaustedError, within=1500)


def test_ending_query_gets_room_from_a_slow_one() -> None:
    with world(shards=4, read_limit=False, max_event_records=1, options={"bufferBytes": "1m"}) as w:
        w.warns("the slow query catches up with GetRecords")
        w.put(40, size=20_000)
        slow = w.query(trigger=600.0, maxRecordsPerTrigger="10")
        ends = w.query(available_now=True, maxRecordsPerTrigger="4", trigger=3.0)
        w.later(10)
        assert 0 < slow.rows < 40
        assert 0 < ends.rows < 40
        w.put(400, size=20_000)
        ends.ends(40, within=300)
        slow.kill()


def test_run_that_is_frozen_fails_its_query_after_a_warning() -> None:
    with world(warns=["has not answered for", "not renewed", "no event for 35 s"]) as w:
        query = w.query().follows(10)
        with frozen([host(w)]):
            w.later(13)
            assert [report.text.count(SILENT) for report in w.kinesis.reports] == [1]
            w.later(580)
            assert query.spark.error is None
            assert SILENT.removesuffix("10 s") in query.fails(FetcherError, within=40)
        # The query goes on after that, with this run or the next.
        w.put(10)
        query.start().reads(20)


def test_query_that_would_join_a_frozen_run_fails() -> None:
    with world() as w:
        w.warns(
            "has not answered for", "not renewed", "no event for 35 s", "has been starting or ending the run of orders"
        )
        query = w.query().follows(10)
        with frozen([host(w)]):
            w.later(300)
            queries = [w.query(startingPosition="LATEST") for _ in range(2)]
            w.later(15)
            assert sum("has been starting or ending the run" in report.text for report in w.kinesis.reports) == 1
            for each in (query, *queries):
                each.fails(FetcherError, within=700)


@pytest.mark.parametrize("seconds", [8.0, 3600.0])
def test_machine_that_was_suspended_is_no_silent_run(seconds: float) -> None:
    with world(warns=["LimitExceededException", "no event for 35 s", "not renewed"]) as w:
        query = w.query()
        for _ in range(20):
            query.follows(1)
            with frozen(w.program.processes):
                w.later(seconds)
            w.later(30)


def test_briefly_frozen_run_is_waited_for() -> None:
    with world(warns=["has not answered for", "not renewed", "LimitExceededException", "no event for 35 s"]) as w:
        query = w.query()
        for _ in range(3):
            query.follows(5)
            with frozen([host(w)]):
                w.later(500)


# Shows process stopped.
def test_stopped_process_writes_and_reads_nothing_after_a_takeover() -> None:
    with world(shards=3, options={"leaseTimeout": "10s"}) as w:
        w.warns("has not answered for", "not renewed", "LimitExceededException", "no event for 35 s")
        first = w.query().follows(10)
        mine, stopped = w.program, host(w)
        w.program = w.another_program("there")
        second = w.query(startingPosition="LATEST")
        with frozen([stopped]):
            w.later(60)
            second.follows(10, within=60)
        owners = set[str | None]()
        rows = w.kinesis.table.items
        for _ in range(4):
            second.follows(10)
            owners.add(w.kinesis.table.lease(run_key("orders")).owner)
            assert stopped not in w.subscribers()
            epochs = {w.kinesis.table.lease(key).epoch for key in rows}
            w.later(5)
        w.program = mine
        assert "is already read by run2" in first.fails(AlreadyRunningError)
        assert first.rows == 10
        assert len(owners) == len(epochs) == 1
