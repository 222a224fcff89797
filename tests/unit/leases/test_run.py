"""The run's lease in virtual time against the model of the table: what readers of streams rely on, scenario by scenario."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from random import Random
from types import NoneType

import pytest

from kinesis_efo.errors import (
    AlreadyRunningError,
    KinesisEfoError,
    LeaseError,
    LeaseLostError,
    LeaseTableError,
    TableUnavailableError,
)
from kinesis_efo.leases.attributes import Lag
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.run import LeaseListener, LeaseStats, RunLease
from kinesis_efo.leases.store import Scan
from kinesis_efo.marks import Mark
from kinesis_efo.positions import Position
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0
KEYS = LeaseKeys({name: f"dev-{name}" for name in "pqrs"})


class Listener(LeaseListener):
    """Writes down what a run's lease tells."""

    def __init__(self, fixture: Fixture, name: str) -> None:
        super().__init__()
        self._fixture = fixture
        self._name = name

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        self._fixture.events.append((self._name, stream, "taken"))
        self._fixture.rows_found[stream] = rows

    def lease_lost(self, stream: str, owner: str | None) -> None:
        self._fixture.events.append((self._name, stream, owner))


class Fixture:
    """A table and the runs on it."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.networks: dict[str, Network] = {}
        self.events: list[tuple[str, str, str | None]] = []
        self.rows_found: dict[str, Mapping[str, Lease]] = {}
        self.leases: list[RunLease] = []
        self.listeners: dict[RunLease, LeaseListener] = {}
        self.ended: set[str] = set()
        self.siblings: set[str] = set()

    async def begin(self, name: str = "a", streams: str = "", listener: LeaseListener | None = None) -> RunLease:
        network = self.networks[name] = Network(self.store, Random(name))
        lease = RunLease(
            network,
            name,
            KEYS,
            Timing(TIMEOUT),
            LoopClock(),
            Random(name),
            application="lake",
            gone=self.ended.__contains__,
            is_sibling=self.siblings.__contains__,
        )
        self.leases.append(lease)
        self.listeners[lease] = listener = listener or Listener(self, name)
        await lease.start(listener, f"grpc://{name}")
        lease.want(streams)
        return lease

    def failure(self, lease: RunLease) -> KinesisEfoError | None:
        return self.listeners[lease].failure.error

    def row(self, stream: str = "p") -> Lease:
        return self.store.lease(run_key(stream))

    @property
    def losses(self) -> list[tuple[str, str, str | None]]:
        return [event for event in self.events if event[2] != "taken"]


def scenario(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main() -> None:
            fixture = Fixture()
            try:
                await test(fixture)
            finally:
                for network in fixture.networks.values():
                    network.running.set()
                await asyncio.gather(*(lease.stop() for lease in fixture.leases))
            assert len(asyncio.all_tasks()) == 1, "nothing goes on after stop"

        run(main())

    in_virtual_time.__name__ = getattr(test, "__name__", "scenario")
    return in_virtual_time


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait in virtual time; how long it took."""
    start = now()
    while not condition():
        assert now() - start < seconds, "took too long"
        await asyncio.sleep(0.05)
    return now() - start


def now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def logged(name: str, level: int = logging.WARNING) -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# -- taking and renewing


@scenario
async def test_an_empty_table_is_filled_at_once(f: Fixture) -> None:
    lease = await f.begin(streams="pqr")
    start = now()
    await lease.wait_held("pqr")
    assert now() - start < 0.1
    assert (f.row().owner, f.row().endpoint, f.row().epoch) == ("a", "grpc://a", 1)
    assert (lease.held, lease.wanted) == ({"p", "q", "r"}, {"p", "q", "r"})
    assert [lease.epoch(stream) for stream in "ps"] == [1, None]
    assert sorted(f.events) == [("a", stream, "taken") for stream in "pqr"]
    assert sorted(f.store.items) == ["#run:p", "#run:q", "#run:r"], "no row for a shard"


def test_a_long_lease_is_renewed_often_enough_to_tell_of_the_lag() -> None:
    assert [round(Timing(seconds).renewal, 2) for seconds in (1, 10, 30, 60, 3600)] == [0.33, 3.33, 10, 10, 10]


@scenario
async def test_renewed_every_third_of_the_timeout_and_the_table_is_not_scanned_meanwhile(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    await lease.wait_held("pq")
    await asyncio.sleep(10)
    scans, before = f.networks["a"].requests["scan"], f.row().counter
    await asyncio.sleep(100)
    assert 28 <= f.row().counter - before <= 32
    assert f.networks["a"].requests["scan"] == scans
    assert lease.held == {"p", "q"}


@scenario
async def test_the_rows_of_a_streams_shards_are_told_with_its_lease(f: Fixture) -> None:
    shards = [Lease(f"{stream}:shardId-{n}", 3, checkpoint=Position.after(n)) for stream in "pq" for n in (1, 2)]
    f.store.items |= {row.key: row.to_item() for row in shards}
    lease = await f.begin(streams="pq")
    await lease.wait_held("pq")
    assert {stream: sorted(rows) for stream, rows in f.rows_found.items()} == {
        stream: [f"{stream}:shardId-1", f"{stream}:shardId-2"] for stream in "pq"
    }
    assert f.rows_found["p"]["p:shardId-2"] == shards[1]


@scenario
async def test_the_epoch_grows_with_every_run_also_where_the_row_was_deleted(f: Fixture) -> None:
    for number in (1, 2):
        lease = await f.begin(f"run {number}", "p")
        await lease.wait_held("p")
        assert lease.epoch("p") == number
        await lease.stop()
    f.store.items = {"p:shardId-1": Lease("p:shardId-1", epoch=2).to_item()}
    lease = await f.begin("run 3", "p")
    await lease.wait_held("p")
    assert lease.epoch("p") == 3


# -- another run


@scenario
async def test_a_second_run_is_refused_and_the_first_goes_on_undisturbed(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    second = await f.begin("b", "pqr")
    start = now()
    with pytest.raises(
        AlreadyRunningError,
        match=r"^application lake, stream [pq], is already read by a, last seen [0-4] s ago renewing lease #run:[pq]; stop that",
    ):
        await second.wait_held("pqr")
    assert TIMEOUT <= now() - start < TIMEOUT + 2
    assert (first.held, second.held) == ({"p", "q"}, set())
    assert run_key("r") not in f.store.items, "it takes nothing next to the first"
    assert f.losses == []
    assert [type(f.failure(lease)) for lease in f.leases] == [NoneType, AlreadyRunningError]


@scenario
async def test_a_second_source_of_the_same_program_is_told_so(f: Fixture) -> None:
    first = await f.begin("a", "p")
    await first.wait_held("p")
    f.siblings.add("a")
    second = await f.begin("b", "p")
    with pytest.raises(AlreadyRunningError) as caught:
        await second.wait_held("p")
    message = str(caught.value)
    assert (
        "stream p, is already read by this Spark program itself, by another of its sources (process a), last seen"
        in message
    )
    assert "share a run if they can find each other" in message
    assert "with foreachBatch, or give this source an application of its own" in message
    assert "stop that query" not in message


@scenario
async def test_queries_of_other_streams_do_not_disturb_each_other(f: Fixture) -> None:
    first, second = await f.begin("a", "pq"), await f.begin("b", "rs")
    await first.wait_held("pq")
    await second.wait_held("rs")
    await asyncio.sleep(10 * TIMEOUT)
    assert (first.held, second.held, f.losses) == ({"p", "q"}, {"r", "s"}, [])


@scenario
async def test_a_run_takes_further_streams(f: Fixture) -> None:
    lease = await f.begin("a", "p")
    await lease.wait_held("p")
    lease.extend("pq")
    await lease.wait_held("pq")
    assert lease.held == {"p", "q"}
    assert [event for event in f.events if event[2] == "taken"] == [("a", "p", "taken"), ("a", "q", "taken")]


@scenario
async def test_a_further_stream_that_another_run_has_is_refused_to_who_needs_it_alone(f: Fixture) -> None:
    first, second = await f.begin("a", "p"), await f.begin("b", "q")
    await first.wait_held("p")
    await second.wait_held("q")
    first.extend("qr")
    with pytest.raises(AlreadyRunningError, match="stream q, is already read by b"):
        await first.wait_held("pqr")
    await first.wait_held("pr")
    await asyncio.sleep(3 * TIMEOUT)
    assert (first.held, second.held, f.losses) == ({"p", "r"}, {"q"}, [])
    assert f.failure(first) is None
    with pytest.raises(AlreadyRunningError):
        await first.wait_held("q")
    # Somebody asks for it later, when it is free.
    await second.stop()
    first.extend("q")
    await first.wait_held("pqr")


@scenario
async def test_a_further_stream_is_like_any_other_once_its_lease_was_held(f: Fixture) -> None:
    first = await f.begin("a", "p")
    await first.wait_held("p")
    first.extend("q")
    await first.wait_held("pq")
    f.networks["a"].running.clear()
    await asyncio.sleep(2 * TIMEOUT)
    second = await f.begin("b", "q")
    await second.wait_held("q")
    f.networks["a"].running.set()
    await until(lambda: f.failure(first) is not None, 3 * TIMEOUT)
    assert isinstance(f.failure(first), AlreadyRunningError | LeaseLostError)


@scenario
async def test_a_further_stream_is_like_any_other_once_the_run_itself_wants_it(f: Fixture) -> None:
    first, second = await f.begin("a", "p"), await f.begin("b", "q")
    await first.wait_held("p")
    await second.wait_held("q")
    first.extend("q")
    with pytest.raises(AlreadyRunningError):
        await first.wait_held("q")
    assert f.failure(first) is None
    first.want("pq")
    await until(lambda: isinstance(f.failure(first), AlreadyRunningError), TIMEOUT)


@scenario
async def test_a_row_of_a_further_stream_that_cannot_be_read_is_refused_to_who_needs_it_alone(f: Fixture) -> None:
    lease = await f.begin("a", "p")
    await lease.wait_held("p")
    f.store.items["q:shardId-1"] = {"leaseKey": {"S": "q:shardId-1"}, "leaseCounter": {"S": "many"}}
    lease.extend("q")
    with pytest.raises(LeaseTableError, match="correct or delete the row"):
        await lease.wait_held("q")
    await asyncio.sleep(3 * TIMEOUT)
    assert lease.held == {"p"}
    assert f.failure(lease) is None


@scenario
async def test_two_runs_that_start_at_once_do_not_split_the_streams(f: Fixture) -> None:
    leases = [await f.begin(name, "pqrs") for name in "ab"]
    outcomes = await asyncio.gather(*(lease.wait_held("pqrs") for lease in leases), return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyRunningError", "NoneType"]
    assert sorted(len(lease.held) for lease in leases) == [0, 4]


@scenario
async def test_a_live_run_of_version_0_1_is_not_disturbed(f: Fixture) -> None:
    old = Lease("p:shardId-1", 1, "old", Position.after(5))

    async def renew() -> None:
        for counter in range(2, 1000):
            f.store.items[old.key] = replace(old, counter=counter).to_item()
            await asyncio.sleep(TIMEOUT / 3)

    renewing = asyncio.create_task(renew())
    lease = await f.begin(streams="pq")
    with pytest.raises(
        AlreadyRunningError, match=r"stream p, is already read by old, last seen .* lease p:shardId-1; stop"
    ):
        await lease.wait_held("pq")
    assert not [key for key in f.store.items if key.startswith("#run:")]
    renewing.cancel()
    later = await f.begin("b", "pq")
    start = now()
    await later.wait_held("pq")
    assert TIMEOUT * 0.6 < now() - start < TIMEOUT + 0.2


@scenario
async def test_after_a_crash_the_next_run_takes_over_when_the_leases_expire(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    f.networks["a"].running.clear()  # never to be seen again
    second = await f.begin("b", "pq")
    start = now()
    await second.wait_held("pq")
    assert TIMEOUT <= now() - start < TIMEOUT + 0.2, "nor later than that"
    assert second.epoch("p") == 2


@scenario
async def test_the_leases_of_a_process_that_is_provably_gone_are_taken_at_once(f: Fixture) -> None:
    first = await f.begin("a", "pqr")
    await first.wait_held("pqr")
    f.networks["a"].running.clear()
    f.ended.add("a")
    second = await f.begin("b", "pqr")
    start = now()
    await second.wait_held("pqr")
    assert now() - start < 0.2


@scenario
async def test_a_run_that_waits_for_a_silent_one_takes_over_once_its_process_is_gone(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    f.networks["a"].running.clear()
    second = await f.begin("b", "pq")
    await asyncio.sleep(TIMEOUT / 2)
    assert second.held == set()
    f.ended.add("a")
    assert await until(lambda: second.held == {"p", "q"}, 2) < TIMEOUT / 10 + 0.2


@scenario
async def test_after_a_graceful_stop_the_next_run_begins_at_once(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    start = now()
    await first.stop()
    assert first.held == set()
    assert first.epoch("p") is None
    second = await f.begin("b", "pq")
    await second.wait_held("pq")
    assert now() - start < 0.5
    assert f.losses == []


@scenario
async def test_that_kinesis_distributes_a_stream_itself_is_remembered_for_later_runs(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    assert not first.notes.was_distributed("p")
    first.notes.note_distributed("p")
    await until(lambda: f.row("p").distributed, TIMEOUT)
    first.notes.note_distributed("q")
    await first.stop()
    assert (f.row("p").distributed, f.row("q").distributed) == (True, True), "also where the next renewal never came"
    second = await f.begin("b", "pq")
    await second.wait_held("pq")
    assert second.notes.was_distributed("p")
    await asyncio.sleep(2 * TIMEOUT)
    assert f.row("p").distributed
    assert "distribution" not in Lease(run_key("q")).to_item(), "absent where it was not seen"


@scenario
async def test_how_far_a_checkpoint_has_come_is_kept_for_later_runs_with_no_write_of_its_own(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    assert first.notes.reached("p") == ()

    async def writes_of_fifty(steps: Iterator[int]) -> int:
        before = len(f.store.writes)
        for _ in range(50):
            for moved in islice(steps, 20):
                first.notes.note_mark(Mark("7c1f", moved))
            await asyncio.sleep(TIMEOUT / 10)
        return len(f.store.writes) - before

    idle, busy = await writes_of_fifty(iter(())), await writes_of_fifty(count(1))
    assert abs(busy - idle) <= 2, "no more than renewals, which a run writes anyway"
    assert f.row("p").marks[0].mark.moved >= 900, "at most one renewal behind"
    first.notes.note_mark(Mark("7c1f", 1001))
    await first.stop()
    assert [f.row(stream).marks[0].mark for stream in "pq"] == [Mark("7c1f", 1001)] * 2, "the release tells the last"
    second = await f.begin("b", "p")
    await second.wait_held("p")
    assert second.notes.reached("p")[0].mark == Mark("7c1f", 1001)
    second.notes.note_mark(Mark("beef", 1))
    await second.stop()
    assert {each.mark for each in f.row("p").marks} == {Mark("7c1f", 1001), Mark("beef", 1)}


@scenario
async def test_a_run_that_ends_while_the_next_waits_makes_way_at_once(f: Fixture) -> None:
    first = await f.begin("a", "pq")
    await first.wait_held("pq")
    second = await f.begin("b", "pq")
    await asyncio.sleep(5)
    await first.stop()
    start = now()
    await second.wait_held("pq")
    assert now() - start < 2


# -- losing


@scenario
async def test_a_lease_taken_by_another_is_lost_with_its_name(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    await lease.wait_held("pq")
    f.store.items[run_key("p")] = f.row().taken("thief", "", 9).to_item()
    await until(lambda: ("a", "p", "thief") in f.events, TIMEOUT / 2)
    assert not lease.is_held("p")
    assert lease.epoch("p") is None
    assert lease.is_held("q")
    assert lease.stats == LeaseStats(taken=2, lost_to_others=1)
    assert lease.wanted == {"p", "q"}


@scenario
async def test_an_unreachable_table_costs_the_leases_at_the_deadline_and_they_come_back(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    await lease.wait_held("pq")
    await asyncio.sleep(20)
    f.networks["a"].throttled = True
    took = await until(lambda: not lease.held, TIMEOUT + 0.2)
    assert took > TIMEOUT * 2 / 3 - 0.2
    await asyncio.sleep(0.1)
    assert set(f.losses) == {("a", "p", None), ("a", "q", None)}
    await asyncio.sleep(60 - TIMEOUT)
    f.networks["a"].throttled = False
    await until(lambda: lease.held == {"p", "q"}, 3)
    assert f.failure(lease) is None
    assert lease.stats == LeaseStats(taken=4, not_renewed=2)


@scenario
async def test_the_row_says_how_far_the_run_is_behind_with_its_renewals_and_in_no_other_write(f: Fixture) -> None:
    class Telling(Listener):
        behind = 1500

        def lag(self, stream: str) -> Lag:
            return Lag(7, 80, self.behind, f"shardId-of-{stream}")

    listener = Telling(f, "a")
    lease = await f.begin(streams="pq", listener=listener)
    await lease.wait_held("pq")
    assert f.row("p").lag is None, "nothing was read yet when it was taken"
    await asyncio.sleep(TIMEOUT)
    assert f.row("p").lag == Lag(7, 80, 1500, "shardId-of-p")
    listener.behind = 9
    writes = len(f.store.writes)
    await asyncio.sleep(5 * TIMEOUT)
    assert f.row("q").lag == Lag(7, 80, 9, "shardId-of-q")
    assert len(f.store.writes) - writes <= 2 * (5 * 3 + 1)
    await lease.stop()
    assert f.row("p").lag is None, "a run that has ended is not behind"


@scenario
async def test_a_table_that_stays_unreachable_ends_the_run_with_its_last_error(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.networks["a"].throttled = True
    await asyncio.sleep(Timing(TIMEOUT).patience - 1)
    assert f.failure(lease) is None
    with pytest.raises(
        TableUnavailableError,
        match=r"^application lake: .* not be used for 60\d s, given up: .*throttled\. .*'subscribe.retryTimeout' lets it",
    ):
        await lease.wait_held("p", at_most=30)


@scenario
async def test_a_lease_lost_to_the_deadline_is_not_taken_back_from_another(f: Fixture) -> None:
    a = await f.begin("a", "p")
    await a.wait_held("p")
    f.networks["a"].cut = True
    b = await f.begin("b", "p")
    await b.wait_held("p")
    f.networks["a"].cut = False
    with pytest.raises(AlreadyRunningError, match="already read by b"):
        await a.wait_held("p")
    assert b.held == {"p"}


@scenario
async def test_a_run_that_another_has_replaced_meanwhile_does_not_go_on(f: Fixture) -> None:
    a = await f.begin("a", "p")
    await a.wait_held("p")
    f.networks["a"].cut = True
    b = await f.begin("b", "p")
    await b.wait_held("p")
    await b.stop()
    f.networks["a"].cut = False
    with pytest.raises(
        LeaseLostError, match="another run held the lease on stream p while this one could not renew it"
    ):
        await a.wait_held("p")


@scenario
async def test_a_lease_released_by_hand_is_taken_again(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.store.items[run_key("p")] = f.row().released().to_item()
    await until(lambda: ("a", "p", None) in f.events, TIMEOUT / 2)
    await until(lambda: lease.is_held("p"), 2)


@scenario
async def test_a_process_that_was_stopped_knows_before_it_does_anything(f: Fixture) -> None:
    """SIGSTOP: the loop does not run and time passes; on waking up the clock is asked first."""
    written_before_loss: list[int] = []

    class Counting(LeaseListener):
        def lease_lost(self, stream: str, owner: str | None) -> None:
            written_before_loss.append(len(f.store.writes) - writes)

    lease = await f.begin(streams="p", listener=Counting())
    await lease.wait_held("p")
    await asyncio.sleep(20)
    writes = len(f.store.writes)
    asyncio.get_running_loop().now += 60  # type: ignore[attr-defined]
    assert not lease.is_held("p")
    assert lease.held == set()
    assert lease.epoch("p") is None
    await until(lambda: bool(written_before_loss), 0.2)
    assert written_before_loss == [0]
    await until(lambda: lease.is_held("p"), 2)


LATE = "lease #run:p of a lost: not renewed in time: "


@scenario
async def test_a_lease_not_renewed_in_time_says_whose_fault_that_was(f: Fixture) -> None:
    with logged("kinesis_efo.leases.run") as said:
        lease = await f.begin(streams="p")
        network = f.networks["a"]
        for spoil, mend in (
            (lambda: setattr(network, "throttled", True), lambda: setattr(network, "throttled", False)),
            (lambda: setattr(network, "latency", 100.0), lambda: setattr(network, "latency", 0.005)),
            (lambda: setattr(asyncio.get_running_loop(), "now", now() + 25), lambda: None),
        ):
            await until(lambda: lease.is_held("p"), 130)
            await asyncio.sleep(20)
            spoil()
            await until(lambda: not lease.is_held("p"), 30)
            await asyncio.sleep(0.1)
            mend()
    reasons = [text.removeprefix(LATE) for text in said if text.startswith(LATE)]
    assert reasons[0] == "lease table memory: throttled"
    assert reasons[1] == "lease table memory did not answer (writes sent: 1)"
    assert re.match(r"this process did not run for 2\d\.\d s .*lease_timeout is 10 s", reasons[2])
    assert len(reasons) == 3


@scenario
async def test_a_hanging_renewal_does_not_put_off_the_deadline(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.networks["a"].cut = True
    f.networks["a"].patience = 1000
    await until(lambda: ("a", "p", None) in f.events, TIMEOUT + 0.2)


@scenario
async def test_a_taking_write_that_is_answered_too_late_is_not_a_lease(f: Fixture) -> None:
    lease = await f.begin()
    network = f.networks["a"]
    network.latency = 1
    lease.want("p")
    await until(lambda: run_key("p") in f.store.items, 10)
    network.latency = 0.005
    network.running.clear()
    asyncio.get_running_loop().call_later(TIMEOUT + 1, network.running.set)
    await asyncio.sleep(TIMEOUT + 0.9)
    assert f.events == []
    await until(lambda: lease.is_held("p"), 3)
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_process_stopped_while_it_takes_a_lease_does_not_believe_the_late_answer(f: Fixture) -> None:
    lease = await f.begin()
    f.networks["a"].latency = 1
    lease.want("p")
    await until(lambda: run_key("p") in f.store.items, 10)
    f.networks["a"].latency = 0.005
    asyncio.get_running_loop().now += TIMEOUT + 1  # type: ignore[attr-defined]
    await until(lambda: lease.is_held("p"), 3)
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_row_deleted_by_hand_is_written_again(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    await asyncio.sleep(20)
    before = f.row()
    del f.store.items[run_key("p")]
    await until(lambda: run_key("p") in f.store.items, TIMEOUT / 2)
    assert (f.row().owner, f.row().epoch) == ("a", before.epoch)
    assert f.row().counter > before.counter
    await asyncio.sleep(30)
    assert lease.is_held("p")
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_lost_answers_lose_no_lease(f: Fixture) -> None:
    lease = await f.begin(streams="pqrs")
    await lease.wait_held("pqrs")
    f.networks["a"].lose_answers = 0.3
    f.networks["a"].patience = 0.3
    await asyncio.sleep(120)
    f.networks["a"].lose_answers = 0
    await asyncio.sleep(TIMEOUT)
    assert lease.held == {"p", "q", "r", "s"}
    assert not [event for event in f.losses if event[2] is not None], "never lost to anybody"


@scenario
async def test_a_take_whose_answer_was_lost_does_not_stretch_the_lease(f: Fixture) -> None:
    """The row says that it is ours, but its time runs from when that write arrived, not from when we asked again."""
    lease = await f.begin()
    network = f.networks["a"]
    network.lose_answers, network.lossy, network.patience = 1.0, frozenset({"create"}), TIMEOUT / 2
    lease.want("p")
    await until(lambda: run_key("p") in f.store.items, 1)
    created_at, counter = now(), f.row().counter
    await until(lambda: lease.is_held("p"), TIMEOUT)
    assert f.row().counter > counter, "only a write that moves the counter makes it ours"
    assert now() - created_at > TIMEOUT / 2
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_renewal_whose_answer_was_lost_does_not_stretch_the_lease(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    counter = f.row().counter
    network.lose_answers, network.lossy, network.patience = 1.0, frozenset({"update"}), 1.0
    await until(lambda: f.row().counter > counter, TIMEOUT)
    arrived_at = now()
    # Every answer is lost: what arrived counts from its arrival for others, so it must not last longer for us.
    await until(lambda: not lease.is_held("p"), TIMEOUT * 2)
    assert now() <= arrived_at + TIMEOUT


# -- what needs a person


@scenario
async def test_a_table_that_refuses_us_ends_the_run_when_its_lease_runs_out(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.networks["a"].error = LeaseTableError("not allowed: dynamodb:UpdateItem")
    await until(lambda: f.failure(lease) is not None, TIMEOUT + 0.5)
    assert "not allowed" in str(f.failure(lease))
    assert ("a", "p", None) in f.events
    with pytest.raises(LeaseTableError, match="not allowed"):
        await lease.wait_held("p")


@scenario
async def test_a_refusal_that_passes_is_borne(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.networks["a"].error = LeaseTableError("not allowed: dynamodb:UpdateItem")
    await asyncio.sleep(TIMEOUT / 2)
    f.networks["a"].error = None
    await asyncio.sleep(TIMEOUT * 2)
    assert lease.is_held("p")
    assert f.failure(lease) is None


@scenario
async def test_a_broken_row_of_a_stream_that_is_read_is_an_error_and_another_is_not(f: Fixture) -> None:
    f.store.items["q:shardId-1"] = {"leaseKey": {"S": "q:shardId-1"}}
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    lease.want("pq")
    with pytest.raises(
        LeaseTableError,
        match="lease row 'q:shardId-1' has no attribute 'leaseCounter' in lease table memory; correct or delete the row",
    ):
        await lease.wait_held("q")
    assert isinstance(f.failure(lease), LeaseTableError), "the run ends, unlike for a further stream"


@scenario
async def test_waiting_has_an_end_and_says_what_was_in_the_way(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    f.networks["a"].throttled = True
    with pytest.raises(
        TableUnavailableError,
        match="application lake: the lease on stream p, q is not held after 30 s: lease table memory: throttled",
    ):
        await lease.wait_held("pq", at_most=30)


@scenario
async def test_an_error_in_the_listener_ends_the_run_visibly(f: Fixture) -> None:
    class Failing(LeaseListener):
        def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
            raise KeyError(stream)

    lease = await f.begin(streams="p", listener=Failing())
    with pytest.raises(LeaseError, match="the run's lease failed: KeyError"):
        await lease.wait_held("p")


@scenario
async def test_stopping_without_a_table_takes_bounded_time(f: Fixture) -> None:
    lease = await f.begin(streams="pq")
    await lease.wait_held("pq")
    f.networks["a"].cut = True
    f.networks["a"].patience = 1000
    start = now()
    await lease.stop(at_most=3)
    assert now() - start < 3.5
    assert lease.held == set()
    await lease.stop()


@scenario
async def test_a_lease_that_runs_out_while_stopping_is_released_all_the_same(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    f.networks["a"].throttled = True
    await asyncio.sleep(TIMEOUT * 0.9)
    asyncio.get_running_loop().call_later(TIMEOUT / 2, lambda: setattr(f.networks["a"], "throttled", False))
    await lease.stop(at_most=TIMEOUT)
    assert f.row().owner is None


@scenario
async def test_a_lease_whose_renewal_hangs_while_stopping_is_released_all_the_same(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    network.cut, network.patience = True, 1000
    await until(lambda: network.in_flight == 1, TIMEOUT)
    network.cut = False
    await lease.stop(at_most=TIMEOUT * 2)
    assert f.row().owner is None
    assert f.events == [("a", "p", "taken"), ("a", "p", None)]


@scenario
async def test_stopping_while_leases_are_being_taken_leaves_none_behind(f: Fixture) -> None:
    lease = await f.begin(streams="pqrs")
    f.networks["a"].latency = 0.2
    await until(lambda: len(f.store.items) == 4, 5)
    await lease.stop()
    assert {f.row(stream).owner for stream in "pqrs"} == {None}


@scenario
async def test_a_lease_that_is_taken_while_stopping_is_released_though_another_write_is_never_answered(
    f: Fixture,
) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    put = network.create

    async def slow(row: Lease) -> object:
        await asyncio.sleep(1000 if row.key == run_key("r") else 0.5)
        return await put(row)

    network.create = slow  # type: ignore[method-assign, assignment]
    lease.want("pqr")
    await until(lambda: network.requests["scan"] == 2 and not network.in_flight, 1)
    await lease.stop(at_most=3)
    assert f.row("q").owner is None
    assert f.row("q").epoch == 1, "it was taken"
    assert f.row("p").owner is None, "what is held waits for no other write"
    assert f.events == [("a", "p", "taken")], "nobody begins to read it"


@scenario
async def test_a_lease_that_was_released_is_not_taken_again_by_the_look_that_was_under_way(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    scan, asked = network.scan, asyncio.Event()

    async def late() -> Scan:
        asked.set()
        await until(lambda: f.row("p").owner is None, 1)
        return await scan()

    network.scan = late  # type: ignore[method-assign]
    lease.want("pq")
    await asked.wait()
    await lease.stop()
    assert (f.row("p").owner, f.row("p").epoch) == (None, 1)


@scenario
async def test_one_line_when_a_lease_is_taken_or_given_up_and_none_per_renewal(f: Fixture) -> None:
    with logged("kinesis_efo.leases", logging.DEBUG) as lines:
        lease = await f.begin(streams="p")
        await lease.wait_held("p")
        await asyncio.sleep(100)
        await lease.stop()
    assert lines == ["lease #run:p taken by a, epoch 1", "lease #run:p released by a"]


# -- what readers may rely on in time


@scenario
async def test_for_how_long_a_lease_is_surely_ours(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    assert lease.seconds("p") == 0
    await lease.wait_held("p")
    assert TIMEOUT - 0.1 < lease.seconds("p") <= TIMEOUT
    assert lease.seconds("q") == 0
    f.networks["a"].cut = True
    await asyncio.sleep(TIMEOUT / 2)
    assert 0 < lease.seconds("p") < TIMEOUT * 0.9
    await asyncio.sleep(TIMEOUT)
    assert lease.seconds("p") == 0


@scenario
async def test_a_stream_that_joins_is_taken_at_once(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    await asyncio.sleep(0.1)
    lease.want("pq")
    assert await until(lambda: lease.held == {"p", "q"}, 5) < 0.2
    await asyncio.sleep(0.1)
    lease.extend("r")
    assert await until(lambda: lease.held == {"p", "q", "r"}, 5) < 0.2


@scenario
async def test_stopping_takes_no_longer_than_releasing(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    assert f.networks["a"].requests["check"] == 1
    await asyncio.sleep(1)
    start = now()
    await lease.stop()
    assert now() - start < 0.1
    assert f.row().owner is None


@scenario
async def test_a_run_that_was_never_started_stops(f: Fixture) -> None:
    lease = RunLease(f.store, "a", KEYS, Timing(TIMEOUT), LoopClock(), Random(1))
    assert lease.wanted == frozenset(), "which the loop reads, too, until a stream is wanted"
    await lease.stop()


@scenario
async def test_stopping_while_the_table_does_not_answer_leaves_no_task_behind(f: Fixture) -> None:
    """Neither one that looks for leases nor one that releases them."""
    for held in (False, True):
        lease = await f.begin(f"run {held}", "p")
        if held:
            await lease.wait_held("p")
            lease.want("pq")
            await asyncio.sleep(0)
        network = f.networks[f"run {held}"]
        network.cut, network.patience = True, 1000
        await asyncio.sleep(1)
        start = now()
        await lease.stop(at_most=3)
        assert now() - start < 3.5
        assert len(asyncio.all_tasks()) == 1


@scenario
async def test_a_table_that_cannot_be_used_is_told_once(f: Fixture) -> None:
    lease = await f.begin()
    for _ in range(2):
        with logged("kinesis_efo.leases.run") as lines:
            f.networks["a"].throttled = True
            lease.want("pq" if lease.held else "p")
            await asyncio.sleep(TIMEOUT / 2)
        assert lines == ["lease table memory: throttled"]
        f.networks["a"].throttled = False
        await lease.wait_held(lease.wanted)


@scenario
async def test_troubles_that_lie_apart_are_not_one(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    for _ in range(3):
        f.networks["a"].throttled = True
        await asyncio.sleep(TIMEOUT + 20)
        assert lease.held == set()
        f.networks["a"].throttled = False
        await lease.wait_held("p", at_most=30)
        await asyncio.sleep(Timing(TIMEOUT).patience)
    assert f.failure(lease) is None


@scenario
async def test_a_lease_that_cannot_be_written_says_why_it_is_not_held(f: Fixture) -> None:
    lease = await f.begin()

    async def throttled(_: Lease) -> object:
        raise TableUnavailableError("lease table memory: writes are throttled")

    network = f.networks["a"]
    put, network.create = network.create, throttled  # type: ignore[method-assign, assignment]
    lease.want("p")
    with pytest.raises(TableUnavailableError, match=r"is not held after 5 s: .*writes are throttled"):
        await lease.wait_held("p", at_most=5)
    network.create = put  # type: ignore[method-assign]
    await lease.wait_held("p", at_most=5)
    f.networks["a"].cut = True
    with pytest.raises(TableUnavailableError, match=r"is not held after 1 s$"):
        await lease.wait_held("q", at_most=1)


@pytest.mark.parametrize(("owner", "soon"), [("a", True), ("b", False)])
def test_a_row_that_an_earlier_write_of_ours_made_is_taken_at_once(owner: str, soon: bool) -> None:
    """And one that another run has made just before us is looked at again later, not over and over."""

    @scenario
    async def main(f: Fixture) -> None:
        lease = await f.begin()
        network = f.networks["a"]
        put = network.create

        async def late(row: Lease) -> object:
            if row.key not in f.store.items:
                f.store.items[row.key] = replace(row, owner=owner).to_item()
            return await put(row)

        network.create = late  # type: ignore[method-assign, assignment]
        lease.want("p")
        if soon:
            assert await until(lambda: lease.held == {"p"}, 5) < 0.2
            return
        await asyncio.sleep(2)
        assert lease.held == set()
        assert network.requests["scan"] <= 4

    main()


@scenario
async def test_a_row_that_is_deleted_just_before_it_is_taken_is_written_with_the_next_look(f: Fixture) -> None:
    rows = Lease(run_key("p"), 4, checkpoint=None, epoch=3), Lease("p:shardId-1", epoch=3)
    f.store.items |= {row.key: row.to_item() for row in rows}
    lease = await f.begin()
    network = f.networks["a"]
    update = network.update

    async def late(before: Lease, after: Lease) -> object:
        network.update = update  # type: ignore[method-assign]
        del f.store.items[before.key]
        return await update(before, after)

    network.update = late  # type: ignore[method-assign, assignment]
    lease.want("p")
    await until(lambda: lease.is_held("p"), TIMEOUT / 5)
    assert (lease.epoch("p"), f.row().owner) == (4, "a")
    assert f.failure(lease) is None


@scenario
async def test_rows_of_runs_are_not_told_as_rows_of_shards(f: Fixture) -> None:
    for number in (1, 2):
        lease = await f.begin(f"run {number}", "pq")
        await lease.wait_held("pq")
        assert f.rows_found == {"p": {}, "q": {}}
        await lease.stop()


@scenario
async def test_a_lease_that_is_taken_is_told_while_another_is_still_being_taken(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    put = network.create

    async def slow(row: Lease) -> object:
        await asyncio.sleep(5 if row.key == run_key("r") else 0)
        return await put(row)

    network.create = slow  # type: ignore[method-assign, assignment]
    lease.want("pqr")
    start = now()
    await lease.wait_held("q")
    assert now() - start < 0.2
    await lease.wait_held("r")
    assert 5 <= now() - start < 5.2


@scenario
async def test_a_refusal_is_told_while_another_lease_is_still_being_taken(f: Fixture) -> None:
    lease = await f.begin(streams="p")
    await lease.wait_held("p")
    network = f.networks["a"]
    put = network.create

    async def slow(row: Lease) -> object:
        await asyncio.sleep(5)
        return await put(row)

    network.create = slow  # type: ignore[method-assign, assignment]
    f.store.items["q:shardId-1"] = {"leaseKey": {"S": "q:shardId-1"}}
    lease.extend("qr")
    start = now()
    with pytest.raises(LeaseTableError, match="correct or delete the row"):
        await lease.wait_held("q")
    assert now() - start < 0.2
    await lease.wait_held("r")


@scenario
async def test_an_error_in_a_listener_that_is_told_of_a_loss_ends_the_run_visibly(f: Fixture) -> None:
    class Broken(Listener):
        def lease_lost(self, stream: str, owner: str | None) -> None:
            raise KeyError("broken")

    lease = await f.begin(streams="p", listener=Broken(f, "a"))
    await lease.wait_held("p")
    f.store.items[run_key("p")] = replace(f.row(), owner="b", counter=99).to_item()
    await until(lambda: f.failure(lease) is not None, TIMEOUT)
    failure = f.failure(lease)
    assert isinstance(failure, LeaseError)
    assert isinstance(failure.__cause__, KeyError)
