"""A run that readers of one program share: who starts it, who joins it, and what follows it if its process dies."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import DataLossError, FetcherError, OptionsError
from kinesis_efo.fetcher.work import PlannerClient, WhereRequest
from kinesis_efo.planner import run_process, shared_run
from kinesis_efo.planner.shared_run import SharedRun, WhereService
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardRange
from kinesis_efo.run.access import Begin, Logged, Next
from tests.support.shared_runs import KEY, FakeRun, Programs
from tests.support.world import wait_until

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


def where(run: SharedRun, wait: float = 0.05, *, doubts: bool = False) -> Any:
    with PlannerClient(run.planner_address, run.secret) as client:
        return client.where(
            WhereRequest.of([ShardRange(KEY, TRIM_HORIZON, SHARD_END)], wait, run.query_name, doubts=doubts)
        )


def test_query_without_a_reachable_run_does_not_begin(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_other_options_are_refused_with_their_names(programs: Programs) -> None:
    programs.reader().start()
    other = programs.reader(bufferBytes="64m", leaseTimeout="20s", pollTimeout="1s")
    with pytest.raises(OptionsError) as raised:
        other.start()
    assert [fault.split("'")[1] for fault in raised.value.faults] == ["bufferBytes", "leaseTimeout"]
    (run,) = programs.begun
    assert len(run.queries) == 1
    other.stop()


def test_run_process_that_always_ends_early_is_an_error(programs: Programs) -> None:
    started = []

    def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        started.append(secret)
        return lambda: "exit code 1"

    programs.starter = start_process
    run = programs.reader()
    with pytest.raises(FetcherError, match=r"ended during its start, 4 times \(exit code 1\)"):
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


# -- the next run


def alone(programs: Programs) -> tuple[SharedRun, FakeRun]:
    """A query, and its run."""
    reader = programs.reader()
    reader.start()
    return reader, programs.begun[0]


def test_each_run_learns_the_micro_batch_of_sparks_log(programs: Programs) -> None:
    reader, run = alone(programs)
    reader.record_logged(LATER.mark)  # type: ignore[arg-type]
    (query,) = run.queries
    wait_until(lambda: query.done(Logged) == [Logged(LATER.mark)], what="word, although Spark asks for nothing")
    run.kill()
    poll(reader)
    assert programs.begun[1].queries[0].done(Begin)[0].planned == LATER.mark


def test_mark_logged_just_before_a_query_ends_is_reported(programs: Programs) -> None:
    reader, run = alone(programs)
    reader.record_logged(LATER.mark)  # type: ignore[arg-type]
    reader.stop()
    assert run.queries[0].logged == [LATER.mark]


@pytest.mark.slow
def test_one_query_starts_the_next_run_for_all(programs: Programs) -> None:
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


def test_task_retries_while_there_is_no_run(programs: Programs) -> None:
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


def test_task_without_an_answer_learns_the_runs_error(programs: Programs) -> None:
    reader, run = alone(programs)
    run.queries[0].error = DataLossError("records are gone")
    assert where(reader).fetchers == [run.address], "nobody asked the run itself"
    where(reader, doubts=True)
    with pytest.raises(DataLossError, match="records are gone"):
        wait_until(lambda: not where(reader))
