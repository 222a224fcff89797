"""A run that readers of one program share: who begins it, who joins, and who goes on with it when its host is gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import (
    ConfigurationError,
    FetcherError,
    FetcherUnreachableError,
    LeaseLostError,
    LeaseTableError,
    OptionsError,
)
from kinesis_efo.fetcher.work import PlannerClient
from kinesis_efo.marks import Mark
from kinesis_efo.planner import joining, shared_run
from kinesis_efo.planner.access import Begin, Commit, Next, Plan
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardRange
from tests.support.shared_runs import ENDING, KEY, FakeOwn, Programs
from tests.support.world import wait_until

MARK = Mark("cd")
OFFSET = Offset({KEY: Position.after(42)}, mark=Mark("ab", 3))
LATER = Offset({KEY: Position.after(43)}, mark=Mark("ab", 4))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    monkeypatch.setattr(shared_run, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(joining, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(joining, "_AGAIN_SECONDS", 0.02)
    programs = Programs(tmp_path)
    yield programs
    programs.close()


def poll(run: SharedRun, offset: Offset = OFFSET) -> None:
    run.ask(Next(offset, 0.01))


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def host_of(run: SharedRun) -> FakeOwn:
    assert isinstance(run._run, FakeOwn)
    return run._run


def files(programs: Programs) -> list[str]:
    return [path.name for path in (programs.directory / "notes").glob("*.json")]


def where(run: SharedRun, wait: float = 0.05) -> Any:
    assert run.planner_address is not None
    with PlannerClient(run.planner_address, run.secret) as client:
        return client.where([ShardRange(KEY, TRIM_HORIZON, SHARD_END)], wait, run.query_name)


def test_a_query_alone_has_a_run_of_its_own_and_asks_nobody(programs: Programs) -> None:
    run = programs.reader()
    run.start()
    assert run.planner_address is None, "tasks need not ask"
    assert run.secret == host_of(run).secret
    assert run.ask(Begin(new=True)) == {("orders", "a"): Position.at_timestamp(7)}
    poll(run)
    assert host_of(run).mine.done(Next)
    assert len(files(programs)) == 1
    own = host_of(run)
    run.stop()
    assert own.stopped
    assert not own.left, "a query that is alone ends with its run, as it always did"
    assert programs.stayed == 0
    assert files(programs) == []
    run.stop()


def test_the_next_one_joins_and_its_tasks_read_from_the_host(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    (own,) = programs.begun
    assert second.secret == first.secret
    assert second.ask(Plan(OFFSET, OFFSET, 0.0)).shards == []
    poll(second)
    assert own.queries[0].done(Next)
    assert not own.mine.done(Next)
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([own.address], 1)
    second.stop()
    assert own.queries[0].left
    with pytest.raises(FetcherUnreachableError, match="its query has ended"):
        poll(second)
    poll(first)


def test_streams_that_nobody_reads_yet_have_a_run_of_their_own(programs: Programs) -> None:
    for stream in ("orders", "clicks"):
        programs.reader(stream).start()
    assert len(programs.begun) == 2
    assert len(files(programs)) == 2
    both = programs.reader("orders", "clicks")
    with pytest.raises(ConfigurationError, match="this query reads clicks, orders, but other queries of this Spark"):
        both.start()


def test_who_reads_more_extends_the_run_and_the_next_one_finds_it_there(programs: Programs) -> None:
    first, more, last = programs.reader("orders"), programs.reader("orders", "clicks"), programs.reader("clicks")
    for run in (first, more, last):
        run.start()
    (own,) = programs.begun
    assert sorted(own.refs) == ["clicks", "orders"]
    assert [sorted(query.streams) for query in own.queries] == [["clicks", "orders"], ["clicks"]]


def test_other_options_are_refused_with_their_names(programs: Programs) -> None:
    programs.reader().start()
    other = programs.reader(bufferBytes="64m", leaseTimeout="20s", pollTimeout="1s")
    with pytest.raises(OptionsError) as raised:
        other.start()
    assert [fault.split("'")[1] for fault in raised.value.faults] == ["bufferBytes", "leaseTimeout"]
    (own,) = programs.begun
    assert own.queries == []
    other.stop()


def test_a_run_that_has_failed_is_joined_by_nobody_and_fails_its_guests_by_itself(programs: Programs) -> None:
    first, second, third = (programs.reader() for _ in range(3))
    first.start()
    second.start()
    own = host_of(first)
    own.streams_changed({})
    own.queries[0].error = LeaseLostError("another run took the lease")
    third.start()
    poll(third)
    assert host_of(third) is programs.begun[1]
    with pytest.raises(LeaseLostError):
        poll(second)
    assert len(programs.begun) == 2


def test_a_run_that_cannot_begin_is_of_nobody(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = programs.reader()

    def fail(_: FakeOwn) -> None:
        raise LeaseTableError("no such table")

    with monkeypatch.context() as broken:
        broken.setattr(FakeOwn, "start", fail)
        with pytest.raises(LeaseTableError):
            run.start()
    assert files(programs) == []
    other = programs.reader()
    other.start()
    poll(other)


@pytest.mark.parametrize("why", ["its query has ended", "its program is gone"])
def test_a_start_that_takes_long_is_given_up(programs: Programs, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begin = programs.reader(), programs.reader()._joining._begin

    def waiting(secret: str | None, name: str) -> Any:
        own: Any = begin(secret, name)
        own.starts.clear()
        return own

    run._joining._begin = waiting
    failed: list[BaseException] = []

    def start() -> None:
        try:
            run.start()
        except FetcherUnreachableError as error:
            failed.append(error)

    starting = in_thread(start)
    wait_until(lambda: programs.begun)
    if why == "its query has ended":
        run.stop()
    else:
        monkeypatch.setattr(os, "getppid", lambda: 0)
    starting.join(20)
    assert len(failed) == 1
    assert programs.begun[0].stopped
    monkeypatch.undo()
    other = programs.reader()
    other.start()
    poll(other)


def test_who_cannot_write_its_file_goes_on_alone(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Program, "begin", fail)
    run = programs.reader()
    run.start()
    poll(run)
    run.stop()
    assert "cannot find this run: no space left" in caplog.text


# -- the end of a host


def test_a_host_stays_for_its_guests(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (programs.reader() for _ in range(3))
    first.start()
    second.start()
    own = host_of(first)
    ending = in_thread(first.stop)
    wait_until(lambda: own.left)
    with pytest.raises(FetcherUnreachableError):
        poll(first)
    wait_until(lambda: programs.stayed)
    poll(second)
    assert capsys.readouterr().err == "a line of the host\n", "Spark has closed its output"
    third.start()
    second.stop()
    poll(third)
    assert ending.is_alive()
    assert not own.stopped
    assert programs.stayed == 1
    third.stop()
    ending.join(20)
    assert own.stopped
    assert len(programs.begun) == 1


def test_a_host_for_which_spark_waits_hands_its_run_over(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    programs.spark_waits = True
    first.stop()
    assert programs.begun[0].stopped
    assert programs.stayed == 0
    poll(second)
    assert host_of(second) is programs.begun[1]
    assert host_of(second).mine.done(Next)


def test_a_host_that_stays_ends_when_spark_waits_after_all(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    own = host_of(first)
    ending = in_thread(first.stop)
    wait_until(lambda: programs.stayed)
    programs.spark_waits = True
    first.stop()
    assert own.stopped
    ending.join(20)


def test_a_host_that_stays_ends_with_its_program(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    own = host_of(first)
    ending = in_thread(first.stop)
    wait_until(lambda: programs.stayed)
    monkeypatch.setattr(os, "getppid", lambda: 0)
    ending.join(20)
    assert own.stopped
    # And nobody begins a run for a program that is gone.
    with pytest.raises(FetcherUnreachableError):
        poll(second)
    assert len(programs.begun) == 1


def test_a_host_keeps_its_file_young(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = programs.reader()
    run.start()
    touched: list[bool] = []
    monkeypatch.setattr(run._joining._file, "touch", lambda: touched.append(True))
    poll(run)
    poll(run)
    assert len(touched) == 1
    monkeypatch.setattr(run._joining, "_touch_at", 0.0)
    second = programs.reader()
    second.start()
    ending = in_thread(run.stop)
    wait_until(lambda: len(touched) == 2)
    second.stop()
    ending.join(20)


# -- another host


def test_a_guest_goes_on_with_the_run_of_a_host_that_was_killed(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    asked = second.planner_address
    poll(second)
    second.ask(Plan(OFFSET, LATER, 0.0))
    programs.kill(first)
    poll(second)
    own = host_of(second)
    assert own.secret == first.secret, "tasks that were planned before read on"
    assert own.query_name == second.query_name == programs.begun[0].names[0]
    assert own.mine.done(Next) == [Next(OFFSET, 0.01)]
    (begin,) = own.mine.done(Begin)
    assert begin == Begin(planned=LATER.mark, kept=OFFSET, end=LATER, ending=ENDING), "what its tasks read is kept"
    assert second.planner_address == asked, "and they ask where they have asked"
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([own.address], 1)
    assert len(files(programs)) == 1
    third = programs.reader()
    third.start()
    poll(third)
    assert own.queries[0].done(Next)


@pytest.mark.parametrize("ends", ["killed", "handed over"])
def test_who_starts_before_the_guests_have_seen_it_has_the_secret_that_their_tasks_know(
    programs: Programs, ends: str
) -> None:
    first, second, third = (programs.reader() for _ in range(3))
    first.start()
    second.start()
    with second._attaching:
        if ends == "killed":
            programs.kill(first)
        else:
            programs.spark_waits = True
            first.stop()
        third.start()
    assert third.secret == first.secret
    poll(second)
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([host_of(third).address], 1)
    assert len(files(programs)) == 1


def test_the_next_host_learns_where_a_query_goes_on_that_has_not_polled_yet(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    second.ask(Begin(mark=MARK, resumed=OFFSET))
    programs.kill(first)
    poll(second)
    assert host_of(second).mine.done(Begin) == [Begin(mark=MARK, resumed=OFFSET, kept=OFFSET)]


def test_a_run_learns_which_micro_batch_sparks_log_has_and_so_does_the_next_one(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    first.planned(MARK)
    assert host_of(first).marks == [MARK]
    second.planned(LATER.mark)  # type: ignore[arg-type]
    (query,) = programs.begun[0].queries
    wait_until(lambda: query.done(Commit) == [Commit(LATER.mark)], what="word, although Spark asks for nothing")
    programs.kill(first)
    poll(second)
    assert host_of(second).mine.done(Begin)[0].planned == LATER.mark


def test_who_has_polled_has_no_checkpoint_to_compare_any_more(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    second.ask(Begin(mark=MARK, resumed=OFFSET))
    poll(second)
    programs.kill(first)
    poll(second)
    assert host_of(second).mine.done(Begin)[0].resumed is None, "by now, its own commits have moved the rows"


def test_a_guest_goes_on_although_spark_asks_for_nothing(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    programs.kill(first)
    wait_until(lambda: len(programs.begun) == 2 and isinstance(second._run, FakeOwn))
    assert where(second).fetchers == [host_of(second).address]


def test_one_of_many_guests_is_the_next_host(programs: Programs) -> None:
    runs = [programs.reader() for _ in range(5)]
    for run in runs:
        run.start()
    for number in range(3):
        host = next(run for run in runs if isinstance(run._run, FakeOwn))
        runs.remove(host)
        programs.kill(host)
        callers = [in_thread(lambda run=run: poll(run)) for run in runs]
        for caller in callers:
            caller.join(30)
        assert len(programs.begun) == number + 2
        assert len(files(programs)) == 1
        (hosting,) = [run for run in runs if isinstance(run._run, FakeOwn)]
        assert len(host_of(hosting).guests) == len(runs) - 1


def test_two_that_start_at_once_do_not_race(programs: Programs) -> None:
    runs = [programs.reader() for _ in range(6)]
    starting = [in_thread(run.start) for run in runs]
    for each in starting:
        each.join(30)
    (own,) = programs.begun
    assert len(own.guests) == 5
    for run in runs:
        poll(run)


def test_who_comes_while_the_host_ends_begins_a_run_of_its_own(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    own = host_of(first)
    assert own.close()  # the moment before it lets go of its lock
    starting = in_thread(second.start)
    time.sleep(0.1)  # either way: it may come later
    assert len(programs.begun) == 1
    first.stop()
    starting.join(20)
    poll(second)
    assert host_of(second) is programs.begun[1]


def test_guests_of_parts_of_a_run_stay_together(programs: Programs) -> None:
    first = programs.reader("orders", "clicks")
    orders, clicks = programs.reader("orders"), programs.reader("clicks")
    for run in (first, orders, clicks):
        run.start()
    programs.kill(first)
    for run in (orders, clicks):
        poll(run)
    assert len(programs.begun) == 2
    both = programs.reader("orders", "clicks")
    both.start()
    poll(both)


def test_a_host_that_is_paused_is_waited_for(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    own, asked = host_of(first), []
    from kinesis_efo.planner.guest import HostClient

    ask = HostClient.ask

    def paused(self: HostClient, request: Any) -> Any:
        asked.append(request)
        if len(asked) < 4:
            raise FetcherUnreachableError("no answer in time")
        return ask(self, request)

    monkeypatch.setattr(HostClient, "ask", paused)
    poll(second)
    assert len({request.number for request in asked}) == 1
    assert own.queries[0].done(Next)
    assert len(programs.begun) == 1
    assert len(own.queries) == 1


def test_a_host_that_never_answers_is_given_up_at_last(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    first = programs.reader()
    first.start()
    host_of(first).close()
    second = programs.reader()
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr(joining.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(FetcherError, match="has had the run of orders for 660 s, and does not answer"):
        second.start()


def test_a_task_is_told_to_ask_again_while_there_is_no_host(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    begin, going = second._joining._begin, threading.Event()

    def slowly(secret: str | None, name: str) -> Any:
        going.wait(20)
        return begin(secret, name)

    second._joining._begin = slowly
    programs.kill(first)
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([None], 1), "somebody is about to be there"
    found: list[Any] = []
    asking = in_thread(lambda: found.append(where(second, 20)))
    going.set()
    asking.join(20)
    assert found[0].fetchers == [host_of(second).address]


def test_a_run_that_cannot_be_taken_over_fails_the_query_and_its_tasks(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()

    tried: list[bool] = []

    def fail(*_: object) -> Any:
        tried.append(True)
        raise LeaseTableError("the table is gone")

    second._joining._begin = fail
    programs.kill(first)
    wait_until(lambda: second._error is not None)
    with pytest.raises(LeaseTableError, match="the table is gone"):
        poll(second)
    with pytest.raises(LeaseTableError, match="the table is gone"):
        where(second)
    assert len(tried) == 1


def test_an_end_in_the_middle_of_a_takeover_leaves_no_run_behind(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    begin, going, begun = second._joining._begin, threading.Event(), threading.Event()

    def slowly(secret: str | None, name: str) -> Any:
        begun.set()
        going.wait(20)
        return begin(secret, name)

    second._joining._begin = slowly
    programs.kill(first)
    begun.wait(20)
    ending = in_thread(second.stop)
    going.set()
    ending.join(20)
    assert programs.begun[1].stopped
    assert files(programs) == []


def test_a_guest_that_ends_while_its_host_is_gone_ends_at_once(programs: Programs) -> None:
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    host_of(first).close()
    waiting: list[BaseException] = []

    def call() -> None:
        try:
            poll(second)
        except FetcherUnreachableError as error:
            waiting.append(error)

    caller = in_thread(call)
    time.sleep(0.1)  # either way
    second.stop()
    caller.join(20)
    assert "its query has ended" in str(waiting[0])
    assert len(programs.begun) == 1
