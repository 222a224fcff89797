"""Guests of a run: what they ask arrives as it was asked, once and in order, and they are gone when their process is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kinesis_efo.errors import DataLossError, FetcherError, FetcherUnreachableError
from kinesis_efo.fetcher.progress import ShardProgress
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds, SourceOptions, Start
from kinesis_efo.planner import guest_messages
from kinesis_efo.planner.guest import GuestRun, HostClient, HostLink, HostLostError
from kinesis_efo.planner.guest_messages import BoundsParts, StartParts, bounds_of, bounds_parts, start_of, start_parts
from kinesis_efo.planner.program import HostFile, OwnFile, RunEntry
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.processes import Process
from tests.support.shared_runs import BIG, KEY, FakeOwn, FakeQuery, manifest
from tests.support.world import wait_until

OPTIONS = SourceOptions.parse({"manifest": "m.json"})
OFFSET = Offset({KEY: Position.after(BIG), ShardKey("orders", "b"): SHARD_END}, {KEY: BIG - 5}, Mark("ab", 3))
RANGES = [
    ShardRange(KEY, TRIM_HORIZON, Position.after(BIG), BIG),
    ShardRange(ShardKey("orders", "b"), TRIM_HORIZON, SHARD_END),
]


LINKS: list[HostLink] = []
"""Of all guests of a test."""


class Guest:
    """A guest of a host: its side of the wire, and the query at the other end."""

    def __init__(
        self, own: FakeOwn, path: Path, process: Process | None = None, reader: str = "", **options: str
    ) -> None:
        self.own = own
        self.path = path
        self.waits = 0
        self.give_up = False
        file = HostFile(path)
        self.link = HostLink(file, HostClient(own.address, own.secret), self.check, lambda _: time.sleep(0.01))
        LINKS.append(self.link)
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        self.joined = self.link.join(
            reader or f"reader {id(self)}", process or Process.of(1), manifest("orders").streams, parsed
        )
        self.run: Any = GuestRun(self.link, self.joined) if self.joined.guest else None

    def check(self) -> None:
        self.waits += 1
        if self.give_up:
            raise TimeoutError

    @property
    def query(self) -> FakeQuery:
        return self.own.queries[-1]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[FakeOwn]:
    own = FakeOwn(manifest("orders"), OPTIONS)
    own.start()
    file = OwnFile(tmp_path / "run", RunEntry(own.address, own.secret, {}))
    yield own
    file.close()
    while LINKS:
        LINKS.pop().close()
    own.die()


@pytest.fixture
def guest(own: FakeOwn, tmp_path: Path) -> Guest:
    return Guest(own, tmp_path / "run", reader="the reader")


def test_what_is_asked_and_answered_is_what_it_was(guest: Guest) -> None:
    query = guest.run.query
    assert query.wait_held(timeout=0.5) is True
    reply = query.poll(OFFSET, max_bytes=1 << 62, max_records=7, timeout=0.2)
    assert reply.shards == [
        ShardProgress(KEY, Position.after(BIG + 1), 3, 300, 5, BIG, 1.5, 60),
        ShardProgress(ShardKey("orders", "b"), Position.at_timestamp(1), 0, 0, None),
    ]
    assert all(isinstance(each.key, ShardKey) for each in reply.shards)
    assert (reply.starting, reply.finished) == ([ShardKey("orders", "c")], [ShardKey("orders", "d")])
    query.commit(OFFSET)
    assert query.last_records(RANGES) == {KEY: BIG}
    query.check_replay(OFFSET, RANGES)
    found = query.ends(OFFSET, timeout=0.2)
    assert found == ({KEY: Position.after(BIG), ShardKey("orders", "b"): None}, True, {KEY: BIG})
    assert query.ends(OFFSET, timeout=0.0) is None
    assert query.strict({"orders"}) == frozenset({"orders"})
    query.resume(OFFSET)
    query.planned(Mark("ab", 4))
    assert query.tips(OFFSET, timeout=0.2) == OFFSET
    assert query.tips(OFFSET, timeout=0.0) is None
    assert guest.query.asked == [
        ("wait_held", 0.5),
        ("poll", OFFSET, 1 << 62, 7, 0.2),
        ("commit", OFFSET),
        ("last_records", RANGES),
        ("check_replay", OFFSET, RANGES),
        ("ends", OFFSET, 0.2),
        ("ends", OFFSET, 0.0),
        ("strict", ["orders"]),
        ("resume", OFFSET),
        ("planned", Mark("ab", 4)),
        ("tips", OFFSET, 0.2),
        ("tips", OFFSET, 0.0),
    ]


def test_the_run_is_asked_for_what_the_guest_reads(guest: Guest, own: FakeOwn) -> None:
    at = Start(Position.after(BIG))
    assert guest.run.initial_offset(at) == Offset({ShardKey("orders", "a"): Position.after(BIG)})
    assert guest.run.added_offset(Start(), ["clicks"]) == Offset({ShardKey("clicks", "a"): Position.at_timestamp(7)})
    assert guest.run.place(RANGES, 0.2) == [own.address, own.address], "one fetcher reads all: nobody is asked"
    guest.run.by_planner = True
    assert guest.run.place(RANGES, 0.2) == [None, own.address]
    assert own.names == ["the reader"] * 2, "its query, and whose tasks these are"
    assert guest.run.reading is False
    own.reading = True
    assert guest.run.reading is True


def test_an_offset_is_told_once(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    ask = HostClient.ask
    monkeypatch.setattr(HostClient, "ask", lambda self, request: told.append(request.call) or ask(self, request))
    query = guest.run.query
    for _ in range(3):
        query.poll(OFFSET, max_bytes=1, max_records=1, timeout=0)
    same = Offset(dict(OFFSET), OFFSET.lasts, OFFSET.mark)
    query.commit(same)
    assert [call.offset.data is None for call in told] == [False, True, True, False]
    polled = [asked[1] for asked in guest.query.done("poll")]
    assert polled[0] is polled[1] is polled[2], "what has not changed is recognized at once"


def test_an_offset_that_the_host_does_not_know_is_told_again(guest: Guest) -> None:
    query = guest.run.query
    query.poll(OFFSET, max_bytes=1, max_records=1, timeout=0)
    for member in guest.own.guests._guests.values():
        member.offsets.clear()
    query.commit(OFFSET)
    assert guest.query.done("commit") == [("commit", OFFSET)]


def test_many_offsets_one_after_the_other(guest: Guest) -> None:
    offsets = [Offset({KEY: Position.after(number)}) for number in range(12)]
    for before, offset in pairwise(offsets):
        guest.run.query.poll(offset, max_bytes=1, max_records=1, timeout=0)
        guest.run.query.commit(before)
    assert [asked[1] for asked in guest.query.done("poll")] == offsets[1:]
    assert [asked[1] for asked in guest.query.done("commit")] == offsets[:-1]
    (member,) = guest.own.guests._guests.values()
    assert len(member.offsets) <= 4


def test_a_call_that_takes_long_is_asked_for_again_and_made_once(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_efo.planner.guests.ANSWER_SECONDS", 0.05)
    guest.own.loop.call_soon_threadsafe(guest.query.going.clear)
    done = threading.Event()
    caller = threading.Thread(target=lambda: (guest.run.query.commit(OFFSET), done.set()))
    caller.start()
    wait_until(lambda: guest.waits >= 3)
    assert not done.is_set()
    guest.own.loop.call_soon_threadsafe(guest.query.going.set)
    caller.join(20)
    assert done.is_set()
    assert guest.query.done("commit") == [("commit", OFFSET)]


def test_a_call_whose_caller_has_given_up_is_made_before_the_next_one(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.planner.guests.ANSWER_SECONDS", 0.05)
    guest.own.loop.call_soon_threadsafe(guest.query.going.clear)
    guest.give_up = True
    with pytest.raises(TimeoutError):
        guest.run.query.commit(OFFSET)
    guest.give_up = False
    caller = threading.Thread(target=lambda: guest.run.query.resume(OFFSET))
    caller.start()
    before = guest.waits
    wait_until(lambda: guest.waits > before)
    guest.own.loop.call_soon_threadsafe(guest.query.going.set)
    caller.join(20)
    assert [asked[0] for asked in guest.query.asked] == ["commit", "resume"]


def test_an_answer_that_was_lost_is_given_again(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, lost = HostClient.ask, []

    def losing(self: HostClient, request: Any) -> Any:
        answer = ask(self, request)
        if not lost:
            lost.append(answer)
            raise FetcherUnreachableError("the connection broke")
        return answer

    monkeypatch.setattr(HostClient, "ask", losing)
    guest.run.query.commit(OFFSET)
    assert guest.waits == 1
    assert guest.query.done("commit") == [("commit", OFFSET)]


def test_an_error_of_a_query_is_the_answer_of_its_call_alone(guest: Guest, own: FakeOwn, tmp_path: Path) -> None:
    other = Guest(own, tmp_path / "run")
    first, second = own.queries
    first.error = DataLossError("records are gone")
    with pytest.raises(DataLossError, match="records are gone"):
        guest.run.query.commit(OFFSET)
    other.run.query.commit(OFFSET)
    assert second.done("commit")
    first.error = ValueError("a bug")
    with pytest.raises(FetcherError, match="ValueError: a bug"):
        guest.run.query.commit(OFFSET)
    # To the guest, this type says that nobody is there.
    first.error = FetcherUnreachableError("a fetcher elsewhere")
    with pytest.raises(FetcherError, match="a fetcher elsewhere") as raised:
        guest.run.query.commit(OFFSET)
    assert type(raised.value) is FetcherError
    other.link.close()


def test_a_host_that_is_ending_takes_no_guests_and_sends_its_own_away(guest: Guest, own: FakeOwn) -> None:
    assert not own.close(only_if_alone=True), "there is a guest"
    guest.run.query.commit(OFFSET)
    assert own.close()
    with pytest.raises(HostLostError):
        guest.run.query.commit(OFFSET)
    assert not Guest(own, guest.path).joined.guest
    assert len(guest.query.done("commit")) == 1


def test_what_was_asked_of_a_host_that_ends_meanwhile_is_not_answered(
    guest: Guest, own: FakeOwn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.planner.guests.ANSWER_SECONDS", 30)
    own.loop.call_soon_threadsafe(guest.query.going.clear)
    lost: list[BaseException] = []

    def call() -> None:
        try:
            guest.run.query.commit(OFFSET)
        except HostLostError as error:
            lost.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    wait_until(lambda: guest.query.at_once)
    own.close()
    guest.query.error = FetcherUnreachableError("the fetcher has stopped")
    own.loop.call_soon_threadsafe(guest.query.going.set)
    caller.join(20)
    assert len(lost) == 1


def test_who_leaves_is_gone_and_may_say_so_twice(guest: Guest, own: FakeOwn) -> None:
    assert len(own.guests) == 1
    guest.link.leave()
    assert guest.query.left
    assert len(own.guests) == 0
    assert own.close(only_if_alone=True)
    guest.link.leave()


def test_who_asks_to_be_a_guest_once_more_is_one_guest_all_the_same(own: FakeOwn, tmp_path: Path) -> None:
    lost, again = (Guest(own, tmp_path / "run", reader="one") for _ in range(2))
    assert [query.left for query in own.queries] == [True, False]
    again.run.query.commit(OFFSET)
    again.link.leave()
    assert own.close(only_if_alone=True)
    lost.link.close()


def test_the_queries_of_a_host_that_stops_end_with_its_run(guest: Guest, own: FakeOwn) -> None:
    own.stop()
    assert not guest.query.left, "it would no longer hold back checkpoints"


def test_a_guest_whose_process_is_gone_is_taken_out(own: FakeOwn, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Guest(own, tmp_path / "run")
        gone = Guest(own, tmp_path / "run", Process.of(process.pid))
        reused = Guest(own, tmp_path / "run", Process(process.pid, "1"))
        wait_until(lambda: own.queries[2].left, 20)
        assert not own.queries[1].left
        process.kill()
        wait_until(lambda: own.queries[1].left, 20)
    assert not own.queries[0].left
    assert len(own.guests) == 1
    for each in (gone, reused):
        with pytest.raises(HostLostError):
            each.run.query.commit(OFFSET)
        each.link.close()


def test_calls_wait_until_the_guests_streams_are_open(
    own: FakeOwn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo.planner.guests.ANSWER_SECONDS", 0.05)
    own.loop.call_soon_threadsafe(own.may_open.clear)
    guest = Guest(own, tmp_path / "run")
    caller = threading.Thread(target=lambda: guest.run.query.commit(OFFSET))
    caller.start()
    wait_until(lambda: guest.waits >= 2)
    assert guest.query.asked == []
    own.loop.call_soon_threadsafe(own.may_open.set)
    caller.join(20)
    assert guest.query.done("commit")
    guest.link.close()


def test_other_options_and_streams_are_refused_with_all_reasons(own: FakeOwn, tmp_path: Path) -> None:
    own.faults = ["stream 'orders' is another"]
    guest = Guest(own, tmp_path / "run", bufferBytes="64m")
    assert guest.joined.guest == ""
    assert guest.joined.faults[0] == "stream 'orders' is another"
    assert "'bufferBytes'" in guest.joined.faults[1]
    assert own.queries == []
    guest.link.close()


def test_without_the_secret_nobody_is_a_guest(own: FakeOwn, tmp_path: Path) -> None:
    client = HostClient(own.address, "another")
    link = HostLink(HostFile(tmp_path / "run"), client, lambda: None, time.sleep)
    with pytest.raises(FetcherError, match="does not know this run's secret"):
        link.join("reader", Process.of(1), manifest("orders").streams, OPTIONS)
    link.close()


def test_a_leave_does_not_wait_for_a_call_that_hangs(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_efo.planner.guest._LEAVE_SECONDS", 0.05)
    with guest.link._lock:
        guest.link.leave()
    assert not guest.query.left


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(),
        Bounds(
            TRIM_HORIZON,
            {"orders": None, "clicks": Position.at_timestamp(5)},
            {KEY: Position.after(BIG), ShardKey("o", "x"): None},
        ),
    ],
)
def test_bounds_and_starts_are_the_same_behind_the_wire(bounds: Bounds) -> None:
    assert bounds_of(msgspec.json.decode(msgspec.json.encode(bounds_parts(bounds)), type=BoundsParts)) == bounds
    for start in (Start(), Start(from_leases=True), Start(Position.inside(BIG, 3)), Start(bounds=bounds)):
        assert start_of(msgspec.json.decode(msgspec.json.encode(start_parts(start)), type=StartParts)) == start


def test_the_end_of_a_guests_query_is_told(own: FakeOwn, tmp_path: Path) -> None:
    guest = Guest(own, tmp_path / "run", endingPosition='{"orders": {"shardId-000000000000": "AFTER:42"}}')
    assert guest.query.ends_at == Bounds(None, {}, {KEY: Position.after(42)})
    assert guest.query.streams == {"orders"}
    guest.link.close()


def test_every_call_has_a_name_of_its_own() -> None:
    names = [call.__struct_config__.tag for call in guest_messages.Call.__args__]
    assert len(set(names)) == len(names)
