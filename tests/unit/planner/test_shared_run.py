"""A run that readers of one program share: who starts it, who joins it, and what follows it if its process dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import (
    ConfigurationError,
    DataLossError,
    FetcherError,
    FetcherUnreachableError,
    LeaseLostError,
    LeaseTableError,
    OptionsError,
)
from kinesis_efo.fetcher.work import PlannerClient, WhereRequest
from kinesis_efo.marks import Mark
from kinesis_efo.planner import run_process, shared_run
from kinesis_efo.planner.run_link import RunConnection
from kinesis_efo.planner.shared_run import SharedRun, WhereService
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardRange
from kinesis_efo.processes import Process
from kinesis_efo.run.access import Begin, Logged, Next, Plan, Reading
from tests.support.shared_runs import ENDING, KEY, FakeRun, Programs
from tests.support.world import wait_until

MARK = Mark("cd")
OFFSET = Offset({KEY: Position.after(42)}, mark=Mark("ab", 3))
LATER = Offset({KEY: Position.after(43)}, mark=Mark("ab", 4))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    monkeypatch.setattr(shared_run, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(shared_run, "_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(run_process, "_JVM_SECONDS", 0.02)
    programs = Programs(tmp_path)
    yield programs
    programs.close()


def poll(run: SharedRun, offset: Offset = OFFSET) -> None:
    run.ask(Next(offset, 0.01))


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def files(programs: Programs) -> list[str]:
    return [path.name for path in (programs.directory / "notes").glob("*.json")]


def where(run: SharedRun, wait: float = 0.05, tried: FetcherAddress | None = None) -> Any:
    with PlannerClient(run.planner_address, run.secret) as client:
        return client.where(WhereRequest.of([ShardRange(KEY, TRIM_HORIZON, SHARD_END)], wait, run.query_name, tried))


def test_a_query_whose_tasks_could_ask_nobody_does_not_begin(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, run = programs.reader(), programs.reader()
    other.start()

    def full(*_: object) -> WhereService:
        raise FetcherError("no port is free")

    monkeypatch.setattr(shared_run, "WhereService", full)
    with pytest.raises(FetcherError, match="no port is free"):
        run.start()
    (begun,) = programs.begun
    assert [query.left for query in begun.queries] == [False, True]


def two(programs: Programs) -> tuple[SharedRun, SharedRun, FakeRun]:
    """Two queries, and their run."""
    first, second = programs.reader(), programs.reader()
    first.start()
    second.start()
    (run,) = programs.begun
    return first, second, run


def test_the_first_query_starts_a_run_and_its_tasks_read_there(programs: Programs) -> None:
    first = programs.reader()
    first.start()
    (run,) = programs.begun
    assert first.secret == run.secret
    assert first.ask(Begin(new=True)) == {("orders", "a"): Position.at_timestamp(7)}
    poll(first)
    assert run.queries[0].done(Next)
    assert run.names == [first.query_name]
    reply = where(first)
    assert (reply.fetchers, reply.there) == ([run.address], 1)
    assert len(files(programs)) == 1
    first.stop()
    assert run.stopped
    assert files(programs) == [], "who ends the last query finds the run's leases free"
    first.stop()


def test_the_next_one_joins_and_its_tasks_read_there_too(programs: Programs) -> None:
    first, second, run = two(programs)
    assert second.secret == first.secret
    assert second.ask(Plan(OFFSET, OFFSET, 0.0)).shards == []
    poll(second)
    assert run.queries[1].done(Next)
    assert not run.queries[0].done(Next)
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([run.address], 1)
    second.stop()
    assert run.queries[1].left
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
    (run,) = programs.begun
    assert sorted(run.refs) == ["clicks", "orders"]
    assert [sorted(query.streams) for query in run.queries] == [["orders"], ["clicks", "orders"], ["clicks"]]


def test_other_options_are_refused_with_their_names(programs: Programs) -> None:
    programs.reader().start()
    other = programs.reader(bufferBytes="64m", leaseTimeout="20s", pollTimeout="1s")
    with pytest.raises(OptionsError) as raised:
        other.start()
    assert [fault.split("'")[1] for fault in raised.value.faults] == ["bufferBytes", "leaseTimeout"]
    (run,) = programs.begun
    assert len(run.queries) == 1
    other.stop()


def test_a_run_that_has_failed_is_joined_by_nobody_and_fails_its_queries_by_itself(programs: Programs) -> None:
    _, second, run = two(programs)
    run.fail()
    run.queries[1].error = LeaseLostError("another run took the lease")
    third = programs.reader()
    third.start()
    poll(third)
    assert programs.begun[1].queries[0].done(Next)
    with pytest.raises(LeaseLostError):
        poll(second)
    assert len(programs.begun) == 2


def test_a_run_that_cannot_begin_is_of_nobody(programs: Programs) -> None:
    def fail(_: FakeRun) -> None:
        raise LeaseTableError("no such table")

    programs.change = fail
    with pytest.raises(LeaseTableError):
        programs.reader().start()
    assert files(programs) == []
    programs.change = lambda _: None
    other = programs.reader()
    other.start()
    poll(other)


@pytest.mark.parametrize("why", ["its query has ended", "its program is gone"])
def test_a_start_that_takes_long_is_given_up(programs: Programs, why: str) -> None:
    run = programs.reader()
    programs.change = lambda begun: begun.starts.clear()
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
        run._program.jvm = Process(run._program.jvm.pid, "of another start")  # type: ignore[misc]
    starting.join(20)
    assert len(failed) == 1
    assert programs.begun[0].stopped
    programs.change = lambda _: None
    other = programs.reader()
    other.start()
    poll(other)


def test_a_run_whose_process_ends_as_it_is_started_is_an_error_at_last(programs: Programs) -> None:
    run, started = programs.reader(), []

    def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        started.append(secret)
        return lambda: "exit code 1"

    run._start_process = start_process
    with pytest.raises(FetcherError, match=r"ended as it was started, 4 times \(exit code 1\)"):
        run.start()
    assert len(started) == 4


def test_a_run_stays_while_it_has_a_query(programs: Programs) -> None:
    first, second, run = two(programs)
    first.stop()
    poll(second)
    third = programs.reader()
    third.start()
    second.stop()
    poll(third)
    assert not run.stopped
    third.stop()
    wait_until(lambda: run.stopped)
    assert len(programs.begun) == 1


def test_what_a_run_says_is_written_by_its_queries(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    _, second, run = two(programs)
    run.said.append("a line of the run\n")
    poll(second)
    assert capsys.readouterr().err == "a line of the run\n", "Spark may have closed its output"


# -- the next run


def test_a_query_goes_on_with_the_next_run_if_its_was_killed(
    programs: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    _, second, run = two(programs)
    asked = second.planner_address
    poll(second)
    second.ask(Plan(OFFSET, LATER, 0.0))
    before = run.names[1]
    run.kill()
    poll(second)
    (next_run,) = programs.begun[1:]
    assert next_run.secret == run.secret, "tasks that were planned before read on"
    assert before == second.query_name
    query = next_run.queries[next_run.names.index(second.query_name)]
    assert query.done(Next) == [Next(OFFSET, 0.01)]
    (begin,) = query.done(Begin)
    assert begin == Begin(planned=LATER.mark, kept=OFFSET, end=LATER, ending=ENDING), "what its tasks read is kept"
    assert "the process that fetched for this query has ended: another one goes on" in caplog.text
    assert second.planner_address == asked, "and they ask where they have asked"
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([next_run.address], 1)
    assert len(files(programs)) == 1
    third = programs.reader()
    third.start()
    poll(third)
    # The first query may join after it.
    assert next_run.queries[next_run.names.index(third.query_name)].done(Next)


def test_who_starts_before_the_others_have_seen_it_has_the_secret_that_their_tasks_know(programs: Programs) -> None:
    first, second, run = two(programs)
    third = programs.reader()
    with first._attaching, second._attaching:
        run.kill()
        third.start()
    assert third.secret == run.secret
    poll(second)
    reply = where(second)
    assert (reply.fetchers, reply.there) == ([programs.begun[1].address], 1)
    assert len(files(programs)) == 1


def alone(programs: Programs) -> tuple[SharedRun, FakeRun]:
    """A query, and its run."""
    reader = programs.reader()
    reader.start()
    return reader, programs.begun[0]


def test_the_next_run_learns_where_a_query_goes_on_that_has_not_polled_yet(programs: Programs) -> None:
    reader, run = alone(programs)
    reader.ask(Begin(mark=MARK, resumed=OFFSET))
    run.kill()
    poll(reader)
    assert programs.begun[1].queries[0].done(Begin) == [Begin(mark=MARK, resumed=OFFSET, kept=OFFSET)]


def test_a_run_learns_which_micro_batch_sparks_log_has_and_so_does_the_next_one(programs: Programs) -> None:
    reader, run = alone(programs)
    reader.planned(LATER.mark)  # type: ignore[arg-type]
    (query,) = run.queries
    wait_until(lambda: query.done(Logged) == [Logged(LATER.mark)], what="word, although Spark asks for nothing")
    run.kill()
    poll(reader)
    assert programs.begun[1].queries[0].done(Begin)[0].planned == LATER.mark


def test_last_micro_batch_is_unfinished_until_spark_asks_for_more(programs: Programs) -> None:
    reader, _ = alone(programs)
    poll(reader)
    assert reader.unfinished is None
    assert LATER.mark is not None
    reader.planned(LATER.mark)
    assert reader.unfinished == LATER.mark
    poll(reader, LATER)
    assert reader.unfinished is None


def test_who_has_polled_has_no_checkpoint_to_compare_any_more(programs: Programs) -> None:
    reader, run = alone(programs)
    reader.ask(Begin(mark=MARK, resumed=OFFSET))
    poll(reader)
    run.kill()
    poll(reader)
    assert programs.begun[1].queries[0].done(Begin)[0].resumed is None, "by now, its own commits have moved the rows"


def test_a_query_goes_on_although_spark_asks_for_nothing(programs: Programs) -> None:
    reader, run = alone(programs)
    run.kill()
    wait_until(lambda: len(programs.begun) == 2 and programs.begun[1].queries)
    wait_until(lambda: where(reader).fetchers == [programs.begun[1].address])


@pytest.mark.slow
def test_one_of_many_queries_starts_the_next_run_and_the_others_join_it(programs: Programs) -> None:
    readers = [programs.reader() for _ in range(5)]
    for reader in readers:
        reader.start()
    for number in range(3):
        programs.begun[-1].kill()
        callers = [in_thread(lambda reader=reader: poll(reader)) for reader in readers]
        for caller in callers:
            caller.join(30)
        assert len(programs.begun) == number + 2
        assert len(files(programs)) == 1
        assert len(programs.begun[-1].clients) == len(readers)


def test_a_run_that_dies_again_and_again_ends_its_queries(programs: Programs) -> None:
    reader, _ = alone(programs)
    programs.end = "signal SIGKILL, its largest memory 512 MiB"
    for _ in range(3):
        programs.begun[-1].kill()
        reader.ask(Reading())
    poll(reader, LATER)
    for _ in range(3):
        programs.begun[-1].kill()
        reader.ask(Reading())
    programs.begun[-1].kill()
    with pytest.raises(
        FetcherError, match=r"died 4 times within half an hour, .*\(signal SIGKILL, its largest memory 512 MiB\)"
    ):
        reader.ask(Reading())


def test_deaths_of_an_idle_querys_run_days_apart_are_tolerated(programs: Programs) -> None:
    now = [0.0]
    programs.clock = lambda: now[0]
    reader, _ = alone(programs)
    for _ in range(6):
        programs.begun[-1].kill()
        reader.ask(Reading())
        now[0] += 901
    assert len(programs.begun) == 7
    now[0] = 1e6
    for _ in range(3):
        programs.begun[-1].kill()
        reader.ask(Reading())
    programs.begun[-1].kill()
    with pytest.raises(FetcherError, match="died 4 times within half an hour"):
        reader.ask(Reading())


def test_two_that_start_at_once_do_not_race(programs: Programs) -> None:
    readers = [programs.reader() for _ in range(6)]
    starting = [in_thread(reader.start) for reader in readers]
    for each in starting:
        each.join(30)
    (run,) = programs.begun
    assert len(run.clients) == 6
    for reader in readers:
        poll(reader)


def test_who_comes_while_a_run_ends_starts_one_of_its_own(programs: Programs) -> None:
    first, run = alone(programs)
    assert run.close()  # the moment before it lets go of its lock
    second = programs.reader()
    starting = in_thread(second.start)
    time.sleep(0.1)  # either way: it may come later
    assert len(programs.begun) == 1
    first.stop()
    run.stop()
    starting.join(20)
    poll(second)
    assert programs.begun[1].queries[0].done(Next)


def test_queries_of_parts_of_a_run_stay_together(programs: Programs) -> None:
    first, orders, clicks = programs.reader("orders", "clicks"), programs.reader("orders"), programs.reader("clicks")
    for reader in (first, orders, clicks):
        reader.start()
    first.stop()
    programs.begun[0].kill()
    for reader in (orders, clicks):
        poll(reader)
    assert len(programs.begun) == 2
    both = programs.reader("orders", "clicks")
    both.start()
    poll(both)


def test_a_run_that_is_paused_is_waited_for(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, run = alone(programs)
    asked: list[Any] = []
    ask = RunConnection.ask

    def paused(self: RunConnection, request: Any) -> Any:
        asked.append(request)
        if len(asked) < 4:
            raise FetcherUnreachableError("no answer in time")
        return ask(self, request)

    monkeypatch.setattr(RunConnection, "ask", paused)
    poll(reader)
    assert len({request.number for request in asked}) == 1
    assert len(run.queries[0].done(Next)) == 1
    assert len(programs.begun) == 1
    assert len(run.queries) == 1


def test_a_task_is_told_to_ask_again_while_there_is_no_run(programs: Programs) -> None:
    reader, run = alone(programs)
    going = threading.Event()
    programs.change = lambda _: going.wait(20)
    run.kill()
    reply = where(reader)
    assert (reply.fetchers, reply.there) == ([None], 1), "somebody is about to be there"
    found: list[Any] = []
    asking = in_thread(lambda: found.append(where(reader, 20)))
    going.set()
    asking.join(20)
    assert found[0].fetchers == [programs.begun[1].address]


def test_a_run_that_cannot_be_followed_fails_the_query_and_its_tasks(programs: Programs) -> None:
    reader, run = alone(programs)
    tried: list[bool] = []

    def fail(_: FakeRun) -> None:
        tried.append(True)
        raise LeaseTableError("the table is gone")

    programs.change = fail
    run.kill()
    wait_until(lambda: reader._error is not None)
    with pytest.raises(LeaseTableError, match="the table is gone"):
        poll(reader)
    with pytest.raises(LeaseTableError, match="the table is gone"):
        where(reader)
    assert len(tried) == 1


def test_task_that_gets_no_answer_learns_why_its_run_has_failed(programs: Programs) -> None:
    reader, run = alone(programs)
    run.queries[0].error = DataLossError("records are gone")
    assert where(reader).fetchers == [run.address], "nobody asked the run itself"
    where(reader, tried=run.address)
    wait_until(lambda: reader._error is not None)
    with pytest.raises(DataLossError, match="records are gone"):
        where(reader)


def test_an_end_while_the_next_run_starts_leaves_none_behind(programs: Programs) -> None:
    reader, run = alone(programs)
    programs.change = lambda begun: begun.starts.clear()
    run.kill()
    wait_until(lambda: len(programs.begun) == 2)
    reader.stop()
    assert programs.begun[1].stopped
    assert files(programs) == []


def test_a_query_that_ends_while_its_run_is_gone_ends_at_once(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, run = alone(programs)

    def silent(*_: Any) -> Any:
        raise FetcherUnreachableError("no answer in time")

    monkeypatch.setattr(RunConnection, "join", silent)
    run.close()
    waiting: list[BaseException] = []

    def call() -> None:
        try:
            poll(reader)
        except FetcherUnreachableError as error:
            waiting.append(error)

    caller = in_thread(call)
    time.sleep(0.1)  # either way
    reader.stop()
    caller.join(20)
    assert "its query has ended" in str(waiting[0])
    assert len(programs.begun) == 1
    assert "another one goes on" not in caplog.text
