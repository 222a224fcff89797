"""Clients of a run: what they ask arrives as it was asked, once and in order, and they are gone when their process is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import DataLossError, FetcherError, FetcherUnreachableError
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds, SourceOptions
from kinesis_efo.planner.program import OwnFile, RunEntry, RunFile
from kinesis_efo.planner.run_link import RunConnection, RunLink, RunLostError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo.processes import Process
from kinesis_efo.run.access import AnyCall, Begin, Call, Logged, Next, Plan, Reading, TaskRange
from kinesis_efo.run.messages import FinishedBatches
from tests.support.shared_runs import BIG, ENDING, KEY, FakeQuery, FakeRun, manifest
from tests.support.world import wait_until

OPTIONS = SourceOptions.parse({"manifest": "m.json"})
OFFSET = Offset({KEY: Position.after(BIG), ShardKey("orders", "b"): SHARD_END}, {KEY: BIG - 5}, Mark("ab", 3))


LINKS: list[RunLink] = []
"""Of all clients of a test."""


class Client:
    """A client of a host: its side of the wire, and the query at the other end."""

    def __init__(
        self, own: FakeRun, path: Path, process: Process | None = None, reader: str = "", **options: str
    ) -> None:
        self.own = own
        self.path = path
        self.waits = 0
        self.give_up = False
        file = RunFile(path)
        self.link = RunLink(file, RunConnection(own.address, own.secret), self.check, lambda _: time.sleep(0.01))
        LINKS.append(self.link)
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        self.joined = self.link.join(
            reader or f"reader {id(self)}", process or Process.of(1), manifest("orders").streams, parsed
        )

    def check(self) -> None:
        self.waits += 1
        if self.give_up:
            raise TimeoutError

    @property
    def query(self) -> FakeQuery:
        return self.own.queries[-1]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRun]:
    # Nothing ends this run.
    monkeypatch.setattr("kinesis_efo.planner.run_link._ENDING_SECONDS", 0.1)
    own = FakeRun(manifest("orders"), OPTIONS)
    own.start()
    file = OwnFile(tmp_path / "run", RunEntry(own.address, own.secret, {}))
    yield own
    file.close()
    while LINKS:
        LINKS.pop().close()
    own.die()


@pytest.fixture
def client(own: FakeRun, tmp_path: Path) -> Client:
    return Client(own, tmp_path / "run", reader="the reader")


def test_what_is_asked_and_answered_is_what_it_was(client: Client, own: FakeRun) -> None:
    asked: list[Call[Any]] = [
        Begin(new=True, mark=Mark("ab", 0), wait=0.2),
        Begin(False, None, 0.5, OFFSET, Mark("ab", 4), OFFSET, OFFSET, ENDING),
        Next(OFFSET, 0.2, True, True, True),
        Plan(Offset(dict.fromkeys(OFFSET, TRIM_HORIZON)), OFFSET, 0.2, True),
        Logged(Mark("ab", 4), 0.5),
        Reading(),
    ]
    begins, nothing, step, plan, done, reading = map(client.link.ask, asked)
    assert client.query.asked == asked
    assert begins == Offset({ShardKey("orders", "a"): Position.at_timestamp(7)}, {}, Mark("ab", 0))
    assert step.end == Offset({**OFFSET, KEY: Position.after(BIG + 1)}, {KEY: BIG}, Mark("ab", 4))
    assert (step.bytes, step.data, step.ending) == (300, 60, ENDING)
    assert step.behind == [(KEY, 5), (ShardKey("orders", "b"), None)]
    assert all(isinstance(key, ShardKey) for key, _ in step.behind)
    wanted = asked[3].begin.ranges_to(OFFSET)  # type: ignore[attr-defined]
    assert plan.served(wanted) == [TaskRange(each, own.address, 300) for each in wanted]
    assert (plan.hash_ranges, nothing, done, reading) == ([(KEY, (5, 2**128 - 1))], None, True, False)
    own.reading = True
    assert client.link.ask(Reading()) is True
    assert own.names == ["the reader"]


def test_an_offset_crosses_once_in_either_direction(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    answered: list[bytes] = []
    ask = RunConnection.ask

    def noting(self: RunConnection, request: Any) -> Any:
        sent.append(bytes(request.call))
        answer = ask(self, request)
        answered.append(bytes(answer.result))
        return answer

    monkeypatch.setattr(RunConnection, "ask", noting)
    many = Offset({ShardKey("orders", f"shard {number}"): Position.after(BIG) for number in range(1000)})
    position = many
    for number in range(4):
        position = client.link.ask(Next(position, 0.1)).end or position
        client.link.ask(Plan(many, position, 0.1))
        assert len(position) == 1001
        assert number == 0 or all(len(message) < 500 for message in (sent[-2], answered[-2]))
    assert len(sent[0]) > 50_000, "the first one is told whole"
    (first, *_), (plan, *_) = client.query.done(Next), client.query.done(Plan)
    assert first.position is plan.begin, "what has not changed is recognized at once"
    same = Offset(dict(many), many.lasts, many.mark)
    client.link.ask(Begin(kept=same))
    assert len(sent[-1]) < 500, "by what has changed, which is nothing"
    assert client.query.asked[-1] == Begin(kept=many)


@pytest.mark.parametrize("side", ["host", "client"])
def test_an_offset_that_one_side_has_lost_is_told_again(client: Client, side: str) -> None:
    end = client.link.ask(Next(OFFSET, 0.1)).end
    (member,) = client.own.clients._clients.values()
    (member if side == "host" else client.link).offsets.clear()
    client.link.ask(Begin(kept=end))
    assert client.query.done(Begin) == [Begin(kept=end)]
    assert client.link.ask(Next(end, 0.1)).end is None, "it has moved there already"


def test_many_offsets_one_after_the_other(client: Client) -> None:
    offsets = [Offset({KEY: Position.after(number), **left_of(number)}) for number in range(12)]
    for before, offset in pairwise(offsets):
        client.link.ask(Next(offset, 0.1))
        client.link.ask(Begin(kept=before))
    assert [asked.position for asked in client.query.done(Next)] == offsets[1:]
    assert [asked.kept for asked in client.query.done(Begin)] == offsets[:-1]
    (member,) = client.own.clients._clients.values()
    assert len(member.offsets) <= 4


def left_of(number: int) -> dict[ShardKey, Position]:
    """Shards that come and go."""
    return {ShardKey("orders", f"x{each}"): SHARD_END for each in range(number % 3)}


def test_a_call_that_takes_long_is_asked_for_again_and_made_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.run.clients.ANSWER_SECONDS", 0.05)
    client.own.loop.call_soon_threadsafe(client.query.going.clear)
    done = threading.Event()
    caller = threading.Thread(target=lambda: (client.link.ask(Begin(kept=OFFSET)), done.set()))
    caller.start()
    wait_until(lambda: client.waits >= 3)
    assert not done.is_set()
    client.own.loop.call_soon_threadsafe(client.query.going.set)
    caller.join(20)
    assert done.is_set()
    assert client.query.done(Begin) == [Begin(kept=OFFSET)]


def test_a_call_whose_caller_has_given_up_is_made_before_the_next_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.run.clients.ANSWER_SECONDS", 0.05)
    client.own.loop.call_soon_threadsafe(client.query.going.clear)
    client.give_up = True
    with pytest.raises(TimeoutError):
        client.link.ask(Begin(kept=OFFSET))
    client.give_up = False
    caller = threading.Thread(target=lambda: client.link.ask(Begin(resumed=OFFSET)))
    caller.start()
    before = client.waits
    wait_until(lambda: client.waits > before)
    client.own.loop.call_soon_threadsafe(client.query.going.set)
    caller.join(20)
    assert client.query.asked == [Begin(kept=OFFSET), Begin(resumed=OFFSET)]


def test_an_answer_that_was_lost_is_given_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, lost = RunConnection.ask, []

    def losing(self: RunConnection, request: Any) -> Any:
        answer = ask(self, request)
        if not lost:
            lost.append(answer)
            raise FetcherUnreachableError("the connection broke")
        return answer

    monkeypatch.setattr(RunConnection, "ask", losing)
    client.link.ask(Begin(kept=OFFSET))
    assert client.waits == 1
    assert client.query.done(Begin) == [Begin(kept=OFFSET)]


def test_an_error_of_a_query_is_the_answer_of_its_call_alone(client: Client, own: FakeRun, tmp_path: Path) -> None:
    other = Client(own, tmp_path / "run")
    first, second = own.queries
    first.error = DataLossError("records are gone")
    with pytest.raises(DataLossError, match="records are gone"):
        client.link.ask(Begin(kept=OFFSET))
    other.link.ask(Begin(kept=OFFSET))
    assert second.done(Begin)
    first.error = ValueError("a bug")
    with pytest.raises(FetcherError, match="ValueError: a bug"):
        client.link.ask(Begin(kept=OFFSET))
    # To the client, this type says that nobody is there.
    first.error = FetcherUnreachableError("a fetcher elsewhere")
    with pytest.raises(FetcherError, match="a fetcher elsewhere") as raised:
        client.link.ask(Begin(kept=OFFSET))
    assert type(raised.value) is FetcherError
    other.link.close()


def test_a_host_that_is_ending_takes_no_clients_and_sends_its_own_away(client: Client, own: FakeRun) -> None:
    assert not own.close(only_if_alone=True), "there is a client"
    client.link.ask(Begin(kept=OFFSET))
    assert own.close()
    with pytest.raises(RunLostError):
        client.link.ask(Begin(kept=OFFSET))
    assert not Client(own, client.path).joined.client
    assert len(client.query.done(Begin)) == 1


def test_what_was_asked_of_a_host_that_ends_meanwhile_is_not_answered(
    client: Client, own: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.run.clients.ANSWER_SECONDS", 30)
    own.loop.call_soon_threadsafe(client.query.going.clear)
    lost: list[BaseException] = []

    def call() -> None:
        try:
            client.link.ask(Begin(kept=OFFSET))
        except RunLostError as error:
            lost.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    wait_until(lambda: client.query.at_once)
    own.close()
    client.query.error = FetcherUnreachableError("the fetcher has stopped")
    own.loop.call_soon_threadsafe(client.query.going.set)
    caller.join(20)
    assert len(lost) == 1


def test_who_leaves_is_gone_and_may_say_so_twice(client: Client, own: FakeRun) -> None:
    assert len(own.clients) == 1
    client.link.leave()
    assert client.query.left
    assert len(own.clients) == 0
    assert own.close(only_if_alone=True)
    client.link.leave()


def test_who_asks_to_be_a_client_once_more_is_one_client_all_the_same(own: FakeRun, tmp_path: Path) -> None:
    lost, again = (Client(own, tmp_path / "run", reader="one") for _ in range(2))
    assert [query.left for query in own.queries] == [True, False]
    again.link.ask(Begin(kept=OFFSET))
    again.link.leave()
    assert own.close(only_if_alone=True)
    lost.link.close()


def test_the_queries_of_a_host_that_stops_end_with_its_run(client: Client, own: FakeRun) -> None:
    own.stop()
    assert not client.query.left, "it would no longer hold back checkpoints"


@pytest.mark.slow
def test_a_client_whose_process_is_gone_is_taken_out(own: FakeRun, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Client(own, tmp_path / "run")
        gone = Client(own, tmp_path / "run", Process.of(process.pid))
        reused = Client(own, tmp_path / "run", Process(process.pid, "1"))
        wait_until(lambda: own.queries[2].left, 20)
        assert not own.queries[1].left
        process.kill()
        wait_until(lambda: own.queries[1].left, 20)
    assert not own.queries[0].left
    assert len(own.clients) == 1
    for each in (gone, reused):
        with pytest.raises(RunLostError):
            each.link.ask(Begin(kept=OFFSET))
        each.link.close()


def test_calls_wait_until_the_clients_streams_are_open(
    own: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.run.clients.ANSWER_SECONDS", 0.05)
    own.loop.call_soon_threadsafe(own.may_open.clear)
    client = Client(own, tmp_path / "run")
    caller = threading.Thread(target=lambda: client.link.ask(Begin(kept=OFFSET)))
    caller.start()
    wait_until(lambda: client.waits >= 2)
    assert client.query.asked == []
    own.loop.call_soon_threadsafe(own.may_open.set)
    caller.join(20)
    assert client.query.done(Begin)
    client.link.close()


def test_other_options_and_streams_are_refused_with_all_reasons(own: FakeRun, tmp_path: Path) -> None:
    own.faults = ["stream 'orders' is another"]
    client = Client(own, tmp_path / "run", bufferBytes="64m")
    assert client.joined.client == ""
    assert client.joined.faults[0] == "stream 'orders' is another"
    assert "'bufferBytes'" in client.joined.faults[1]
    assert own.queries == []
    client.link.close()


def test_without_the_secret_nobody_is_a_client(own: FakeRun, tmp_path: Path) -> None:
    client = RunConnection(own.address, "another")
    link = RunLink(RunFile(tmp_path / "run"), client, lambda: None, time.sleep)
    with pytest.raises(FetcherError, match="does not know this run's secret"):
        link.join("reader", Process.of(1), manifest("orders").streams, OPTIONS)
    link.close()


def test_a_leave_does_not_wait_for_a_call_that_hangs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_efo.planner.run_link._LEAVE_SECONDS", 0.05)
    with client.link._lock:
        client.link.leave()
    assert not client.query.left


def test_the_end_of_a_clients_query_is_told(own: FakeRun, tmp_path: Path) -> None:
    client = Client(own, tmp_path / "run", endingPosition='{"orders": {"shardId-000000000000": "AFTER:42"}}')
    assert client.query.options.ends == Bounds(None, {}, {KEY: Position.after(42)})
    assert client.query.streams == {"orders"}
    client.link.close()


def test_a_query_that_has_failed_keeps_no_word_from_the_others(client: Client, own: FakeRun) -> None:
    client.query.error = DataLossError("records are gone")
    other = Client(own, client.path)
    with RunConnection(own.address, own.secret) as driver:
        driver.finished(FinishedBatches([Mark("ab", 1)], "archive", alone=True))
    assert other.query.finishes == [([Mark("ab", 1)], "archive")]
    assert other.query.alone


def continue_at(query: FakeQuery, checkpoint: str) -> None:
    """Let a query continue from a checkpoint."""
    query.progress.begin(Offset({}, mark=Mark(checkpoint)))


def test_report_of_copied_checkpoint_reaches_its_own_query_only(client: Client, own: FakeRun) -> None:
    """Both queries have planned the same micro-batch, by its mark."""
    first = client.query
    second = Client(own, client.path).query
    marks = [Mark("ab", number) for number in range(4)]

    def report(number: int, run: str) -> None:
        with RunConnection(own.address, own.secret) as driver:
            driver.finished(FinishedBatches([marks[number]], None, run=run))

    continue_at(first, "ab")
    report(0, "first run")
    continue_at(second, "ab")
    report(1, "first run")
    report(2, "second run")
    report(3, "third run")

    def got(query: FakeQuery) -> list[Mark]:
        return [mark for marks, _ in query.finishes for mark in marks]

    assert got(first) == marks[:2]
    assert got(second) == [marks[0], marks[2]], "the first was of a checkpoint that it did not have yet"


@pytest.mark.parametrize("is_known", [True, False])
def test_late_report_of_a_query_that_left_is_not_its_copys(client: Client, own: FakeRun, *, is_known: bool) -> None:
    first = client.query
    continue_at(first, "ab")
    marks = [Mark("ab", number) for number in range(2)]
    with RunConnection(own.address, own.secret) as driver:
        if is_known:
            driver.finished(FinishedBatches(marks[:1], None, run="first run"))
        copy = Client(own, client.path)
        copied = copy.query
        continue_at(copied, "ab")
        client.link.leave()
        driver.finished(FinishedBatches(marks[1:], None, run="first run"))
    assert first.left
    assert not any(marks for marks, _ in copied.finishes)


def test_report_that_may_be_of_two_queries_reaches_neither(client: Client, own: FakeRun) -> None:
    first = client.query
    second = Client(own, client.path).query
    continue_at(first, "ab")
    continue_at(second, "ab")
    with RunConnection(own.address, own.secret) as driver:
        driver.finished(FinishedBatches([Mark("ab", 1)], None, run="a run"))
    assert first.finishes == second.finishes == [([], None)]


def test_every_call_has_a_name_of_its_own() -> None:
    names = [call.__struct_config__.tag for call in AnyCall.__args__]
    assert len(set(names)) == len(names)
