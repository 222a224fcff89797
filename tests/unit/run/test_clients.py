"""Clients of a run: what they ask arrives as it was asked, once and in order, and they are gone when their process is."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kinesis_efo.errors import DataLossError
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import OwnFile, RunEntry, RunFile
from kinesis_efo.planner.run_link import RunConnection, RunLink, RunLostError, Silence
from kinesis_efo.positions import SHARD_END, Mark, Offset, Position, ShardKey
from kinesis_efo.processes import Process
from kinesis_efo.run.access import Begin, Next
from kinesis_efo.run.messages import FinishedBatches, Leave, OffsetsOfLink, QueryCall
from tests.support.shared_runs import BIG, KEY, FakeQuery, FakeRun, manifest
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
        self.link.ending_seconds = 0.1  # Nothing ends this run.
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
def own(tmp_path: Path) -> Iterator[FakeRun]:
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


def test_many_offsets_one_after_the_other(client: Client) -> None:
    offsets = [Offset({KEY: Position.after(number), **left_of(number)}) for number in range(12)]
    for before, offset in pairwise(offsets):
        client.link.ask(Next(offset, 0.1))
        client.link.ask(Begin(kept=before))
    assert [asked.position for asked in client.query.done(Next)] == offsets[1:]
    assert [asked.kept for asked in client.query.done(Begin)] == offsets[:-1]
    (member,) = client.own.clients._clients.values()
    assert len(member.offsets) <= 4


def test_late_message_does_not_repeat_an_earlier_call(client: Client) -> None:
    for position in (OFFSET, Offset({KEY: SHARD_END})):
        client.link.ask(Next(position, 0.1))
    late = QueryCall(client.joined.client, 1, OffsetsOfLink(0).encode(Next(OFFSET, 0.1)))
    with RunConnection(client.own.address, client.own.secret) as former:
        former.ask(late)
    assert len(client.query.done(Next)) == 2


def test_log_line_comes_again_until_its_client_has_received_it(client: Client) -> None:
    name, call = client.joined.client, OffsetsOfLink(0).encode(Next(OFFSET, 0.1))
    client.own.said.append("a loss")
    with RunConnection(client.own.address, client.own.secret) as connection:
        for _ in range(2):  # the first reply may have been lost
            assert connection.ask(QueryCall(name, 1, call, 0)).said == ["a loss"]
        client.own.said.append("another")
        assert connection.ask(QueryCall(name, 2, call, 1)).said == ["another"]
        assert connection.leave(Leave(name, 1)).said == ["another"]


class CountedSilence(Silence):
    """Counts how often a reply was awaited, and how often it came."""

    awaited = came = 0

    def expect(self, pid: int) -> None:
        self.awaited += 1

    def reset(self) -> None:
        self.came += 1


def test_error_of_a_call_counts_as_a_reply(client: Client, own: FakeRun) -> None:
    silence = CountedSilence(60.0)
    link = RunLink(RunFile(client.path), RunConnection(own.address, own.secret), client.check, time.sleep, silence)
    LINKS.append(link)
    link.join("another reader", Process.of(1), manifest("orders").streams, OPTIONS)
    client.query.error = DataLossError("expired")
    with pytest.raises(DataLossError):
        link.ask(Next(OFFSET, 0.1))
    assert silence.came == silence.awaited > 1


def left_of(number: int) -> dict[ShardKey, Position]:
    """Shards that come and go."""
    return {ShardKey("orders", f"x{each}"): SHARD_END for each in range(number % 3)}


@pytest.mark.slow
def test_client_of_a_dead_process_is_removed(own: FakeRun, tmp_path: Path) -> None:
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


def test_calls_wait_until_the_clients_streams_are_open(own: FakeRun, tmp_path: Path) -> None:
    own.clients.answer_seconds = 0.05
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


def test_closed_run_accepts_no_client(client: Client, own: FakeRun) -> None:
    assert not own.close(only_if_alone=True), "it has one"
    assert own.close()
    assert not Client(own, client.path).joined.client


def continue_at(query: FakeQuery, checkpoint: str) -> None:
    """Let a query continue from a checkpoint."""
    query.progress.begin(Offset({}, mark=Mark(checkpoint)))


@pytest.mark.parametrize("is_known", [True, False])
def test_late_report_does_not_count_for_a_copied_query(client: Client, own: FakeRun, *, is_known: bool) -> None:
    first = client.query
    continue_at(first, "ab")
    marks = [Mark("ab", number) for number in range(2)]
    with RunConnection(own.address, own.secret) as driver:
        if is_known:
            driver.finished(FinishedBatches(marks[:1], None, run="first run"))
        copy = Client(own, client.path)
        copied = copy.query
        continue_at(copied, "ab")
        client.link.leave(None)
        driver.finished(FinishedBatches(marks[1:], None, run="first run"))
    assert first.left
    assert not any(marks for marks, _ in copied.finishes)


def test_report_does_not_count_for_a_copied_query_that_continues_first(client: Client, own: FakeRun) -> None:
    client.link.ask(Begin(kept=Offset({}, mark=Mark("ab"))))
    continue_at(client.query, "ab")
    with RunConnection(own.address, own.secret) as driver:
        driver.finished(FinishedBatches([Mark("ab", 1)], None, run="run of the query that has not joined yet"))
    assert not any(marks for marks, _ in client.query.finishes)
