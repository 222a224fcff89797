"""The lease loop in virtual time against the model of the table: what users of leases rely on, scenario by scenario."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from kinesis_efo.errors import AlreadyRunningError, LeaseError, LeaseTableError, TableUnavailableError
from kinesis_efo.leases import LeaseInfo, LeaseListener, LeaseLoop, SilentListener, Timing, Worker
from kinesis_efo.leases.loop import LeaseStats
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0


class Listener(SilentListener):
    """Writes down what a worker's loop tells."""

    def __init__(self, fixture: Fixture, name: str) -> None:
        self._fixture = fixture
        self._name = name

    def lease_taken(self, key: str) -> None:
        self._fixture.events.append((self._name, key, "taken"))

    def lease_lost(self, key: str, owner: str | None) -> None:
        self._fixture.events.append((self._name, key, owner))

    def failed(self, error: LeaseError) -> None:
        self._fixture.failed.append(error)


class Fixture:
    """A table and the workers on it."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.networks: dict[str, Network] = {}
        self.events: list[tuple[str, str, str | None]] = []
        self.failed: list[LeaseError] = []
        self.loops: list[LeaseLoop] = []
        self.ended: set[str] = set()

    async def worker(
        self,
        name: str = "a",
        run_id: str = "run",
        keys: str = "",
        listener: LeaseListener | None = None,
        in_flight: int = 32,
    ) -> LeaseLoop:
        network = self.networks[name] = Network(self.store, Random(name))
        loop = LeaseLoop(
            network,
            Worker(name, run_id),
            Timing(TIMEOUT),
            LoopClock(),
            Random(name),
            application="lake",
            in_flight=in_flight,
            gone=self.ended.__contains__,
        )
        self.loops.append(loop)
        await loop.start(listener or Listener(self, name), f"grpc://{name}")
        loop.want(info(keys))
        return loop

    def counter(self, key: str) -> int:
        return self.store.lease(key).counter


def info(keys: str, start: Position = TRIM_HORIZON) -> dict[str, LeaseInfo]:
    return {key: LeaseInfo(start) for key in keys.split()}


def scenario(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main() -> None:
            fixture = Fixture()
            try:
                await test(fixture)
            finally:
                for network in fixture.networks.values():
                    network.running.set()
                await asyncio.gather(*(loop.stop() for loop in fixture.loops))
            assert len(asyncio.all_tasks()) == 1, "nothing goes on after stop"

        run(main())

    in_virtual_time.__name__ = getattr(test, "__name__", "scenario")
    return in_virtual_time


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait in virtual time; how long it took."""
    start = asyncio.get_running_loop().time()
    while not condition():
        assert asyncio.get_running_loop().time() - start < seconds, "took too long"
        await asyncio.sleep(0.05)
    return asyncio.get_running_loop().time() - start


def now() -> float:
    return asyncio.get_running_loop().time()


# -- taking and renewing


@scenario
async def test_an_empty_table_is_filled_at_once(f: Fixture) -> None:
    loop = await f.worker()
    loop.want({"p": LeaseInfo(Position.at_timestamp(7), frozenset({"o"}), "0", "9"), **info("q r")})
    start = now()
    await loop.wait_held("pqr")
    assert now() - start < 0.1
    row = f.store.lease("p")
    assert (row.owner, row.run, row.endpoint) == ("a", "run", "grpc://a")
    assert (row.checkpoint, row.parents) == (Position.at_timestamp(7), {"o"})
    assert (row.starting_hash_key, row.ending_hash_key) == ("0", "9")
    assert loop.held == {"p", "q", "r"}
    assert sorted(f.events) == [("a", key, "taken") for key in "pqr"]


@scenario
async def test_leases_are_renewed_every_third_of_the_timeout_and_the_table_is_not_scanned_meanwhile(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    await asyncio.sleep(10)
    scans, before = f.networks["a"].requests["scan"], f.counter("p")
    await asyncio.sleep(100)
    assert 28 <= f.counter("p") - before <= 32
    assert f.networks["a"].requests["scan"] == scans
    assert loop.held == {"p", "q"}


@scenario
async def test_256_leases_are_renewed_well_within_the_period_with_bounded_requests(f: Fixture) -> None:
    keys = " ".join(f"shard-{i:03}" for i in range(256))
    loop = await f.worker(keys=keys, in_flight=16)
    f.networks["a"].latency = 0.04
    await loop.wait_held(keys.split(), at_most=10)
    worst = 0.0
    seen = {key: (f.counter(key), now()) for key in keys.split()}
    for _ in range(300):
        await asyncio.sleep(0.1)
        for key, (counter, at) in seen.items():
            if f.counter(key) != counter:
                worst = max(worst, now() - at)
                seen[key] = (f.counter(key), now())
    assert worst < TIMEOUT / 2
    assert f.networks["a"].most_in_flight <= 16 + 1  # and a scan
    assert len(loop.held) == 256


@scenario
async def test_the_wanted_set_grows_and_shrinks(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    loop.want(info("q r s"))
    await loop.wait_held("qrs")
    await until(lambda: f.store.lease("p").owner is None, 1)
    assert loop.held == {"q", "r", "s"}
    assert not [event for event in f.events if event[2] != "taken"], "what is given up is not lost"


@scenario
async def test_wanted_again_before_it_was_released_it_is_reported_lost_and_taken(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    loop.want({})
    loop.want(info("p"))
    await until(lambda: len(f.events) == 3, 5)
    assert f.events == [("a", "p", "taken"), ("a", "p", None), ("a", "p", "taken")]
    assert loop.held == {"p"}


# -- another worker


@scenario
async def test_a_second_run_is_refused_and_the_first_goes_on_undisturbed(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q")
    await first.wait_held("pq")
    second = await f.worker("b", "run 2", "p q r")
    start = now()
    with pytest.raises(
        AlreadyRunningError,
        match=r"^application lake is already read by a \(run run 1\), last seen [0-4] s ago renewing lease [pq]; stop that",
    ):
        await second.wait_held("pqr")
    assert TIMEOUT <= now() - start < TIMEOUT + 2
    assert (first.held, second.held) == ({"p", "q"}, set())
    assert "r" not in f.store.items, "it takes nothing next to the first"
    assert [event for event in f.events if event[2] != "taken"] == []
    assert [type(error) for error in f.failed] == [AlreadyRunningError]


@scenario
async def test_two_runs_that_start_at_once_do_not_split_the_shards(f: Fixture) -> None:
    loops = [await f.worker(name, f"run {name}", "p q r s") for name in "ab"]
    outcomes = await asyncio.gather(*(loop.wait_held("pqrs") for loop in loops), return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyRunningError", "NoneType"]
    assert sorted(len(loop.held) for loop in loops) == [0, 4]


@scenario
async def test_after_a_crash_the_next_run_takes_over_when_the_leases_expire(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q")
    await first.wait_held("pq")
    f.networks["a"].running.clear()  # never to be seen again
    second = await f.worker("b", "run 2", "p q")
    start = now()
    await second.wait_held("pq")
    assert TIMEOUT <= now() - start < TIMEOUT + 0.2, "nor later than that"
    assert f.store.lease("p").owner_switches == 1


@scenario
async def test_the_leases_of_a_process_that_is_provably_gone_are_taken_at_once(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q r")
    await first.wait_held("pqr")
    f.networks["a"].running.clear()
    f.ended.add("a")
    second = await f.worker("b", "run 2", "p q r")
    start = now()
    await second.wait_held("pqr")
    assert now() - start < 0.2


@scenario
async def test_a_run_that_waits_for_a_silent_one_takes_over_once_its_process_is_gone(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q")
    await first.wait_held("pq")
    f.networks["a"].running.clear()
    second = await f.worker("b", "run 2", "p q")
    await asyncio.sleep(TIMEOUT / 2)
    assert second.held == set()
    f.ended.add("a")
    assert await until(lambda: second.held == {"p", "q"}, 2) < TIMEOUT / 10 + 0.2


@scenario
async def test_the_leases_of_a_dead_peer_go_to_the_others_of_the_run_at_once(f: Fixture) -> None:
    keys = "p q r s"
    a = await f.worker("a", keys=keys)
    b = await f.worker("b", keys=keys)
    await until(lambda: len(a.held) == len(b.held) == 2, 60)
    f.networks["b"].running.clear()
    f.ended.add("b")
    await until(lambda: len(a.held) == 4, TIMEOUT)


@scenario
async def test_after_a_graceful_stop_the_next_run_begins_at_once(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q")
    await first.wait_held("pq")
    first.checkpoint("p", Position.after(10**60))
    start = now()
    await first.stop()
    assert first.held == set()
    assert f.store.lease("p").checkpoint == Position.after(10**60), "the last checkpoint is written"
    second = await f.worker("b", "run 2", "p q")
    await second.wait_held("pq")
    assert now() - start < 0.5
    assert [event for event in f.events if event[2] != "taken"] == []


@scenario
async def test_a_run_that_ends_while_the_next_waits_makes_way_at_once(f: Fixture) -> None:
    first = await f.worker("a", "run 1", "p q")
    await first.wait_held("pq")
    second = await f.worker("b", "run 2", "p q")
    await asyncio.sleep(5)
    await first.stop()
    start = now()
    await second.wait_held("pq")
    assert now() - start < 2


@scenario
async def test_workers_of_one_run_share_and_hand_over_without_overlap(f: Fixture) -> None:
    keys = "p q r s t u"
    a = await f.worker("a", keys=keys)
    await a.wait_held(keys.split())
    b = await f.worker("b", keys=keys)
    await b.wait_held(keys.split())  # by the run
    both = []

    async def watch() -> None:
        while True:
            both.extend(a.held & b.held)
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    await until(lambda: len(b.held) == 3, 60)
    await asyncio.sleep(30)
    watcher.cancel()
    assert both == []
    assert (len(a.held), len(b.held)) == (3, 3)
    handed = [(name, key, what) for name, key, what in f.events if name == "a" and what != "taken"]
    assert {what for *_, what in handed} == {"b"}
    assert len(handed) == 3, "no more than needed"
    assert a.stats == LeaseStats(taken=6), "what is handed over is not lost"


@scenario
async def test_the_leases_of_a_crashed_worker_go_to_the_others_of_the_run(f: Fixture) -> None:
    keys = "p q r s"
    a = await f.worker("a", keys=keys)
    b = await f.worker("b", keys=keys)
    await until(lambda: len(a.held) == len(b.held) == 2, 60)
    f.networks["b"].running.clear()
    took = await until(lambda: len(a.held) == 4, 60)
    assert TIMEOUT / 2 < took < TIMEOUT * 2
    assert b.held == set()


# -- losing


@scenario
async def test_a_lease_taken_by_another_is_lost_with_its_name_and_gets_no_checkpoint(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    row = f.store.lease("p")
    f.store.items["p"] = row.taken("thief", "run", "").to_item()
    loop.checkpoint("p", Position.after(9))
    await until(lambda: ("a", "p", "thief") in f.events, TIMEOUT / 2)
    assert not loop.is_held("p")
    assert loop.is_held("q")
    await asyncio.sleep(TIMEOUT / 2)
    assert f.store.lease("p").checkpoint == TRIM_HORIZON
    assert loop.stats == LeaseStats(taken=2, lost_to_others=1)
    assert loop.wanted == {"p", "q"}


@scenario
async def test_an_unreachable_table_costs_the_leases_at_the_deadline_and_they_come_back(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    loop.checkpoint("p", Position.after(50))
    await asyncio.sleep(20)
    f.networks["a"].throttled = True
    before = {key: f.counter(key) for key in "pq"}
    took = await until(lambda: not loop.held, TIMEOUT + 0.2)
    assert took > TIMEOUT * 2 / 3 - 0.2
    await asyncio.sleep(0.1)
    assert {event for event in f.events if event[2] != "taken"} == {("a", "p", None), ("a", "q", None)}
    loop.checkpoint("p", Position.after(60))
    await asyncio.sleep(60 - TIMEOUT)
    f.networks["a"].throttled = False
    await until(lambda: loop.held == {"p", "q"}, 3)
    await until(lambda: f.store.lease("p").checkpoint == Position.after(60), TIMEOUT)
    assert {key: f.store.lease(key).owner_switches for key in "pq"} == {"p": 0, "q": 0}
    assert f.counter("q") > before["q"]
    assert loop.failure is None
    assert loop.stats == LeaseStats(taken=4, not_renewed=2)


@scenario
async def test_a_lease_lost_to_the_deadline_is_not_taken_back_from_another(f: Fixture) -> None:
    a = await f.worker("a", "run 1", "p")
    await a.wait_held("p")
    f.networks["a"].cut = True
    b = await f.worker("b", "run 2", "p")
    await b.wait_held("p")
    f.networks["a"].cut = False
    with pytest.raises(AlreadyRunningError, match="already read by b"):
        await a.wait_held("p")
    assert b.held == {"p"}


@scenario
async def test_a_process_that_was_stopped_knows_before_it_does_anything(f: Fixture) -> None:
    """SIGSTOP: the loop does not run and time passes; on waking up the clock is asked first."""
    written_before_loss: list[int] = []

    class Counting(SilentListener):
        def lease_lost(self, key: str, owner: str | None) -> None:
            written_before_loss.append(len(f.store.writes) - writes)

    loop = await f.worker(keys="p", listener=Counting())
    await loop.wait_held("p")
    await asyncio.sleep(20)
    writes = len(f.store.writes)
    asyncio.get_running_loop().now += 60  # type: ignore[attr-defined]
    assert not loop.is_held("p")
    assert loop.held == set()
    await until(lambda: bool(written_before_loss), 0.2)
    assert written_before_loss == [0]
    await until(lambda: loop.is_held("p"), 2)


LATE = "lease p of a lost: not renewed in time: "


@scenario
async def test_a_lease_not_renewed_in_time_says_whose_fault_that_was(f: Fixture) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kinesis_efo.leases.loop").addHandler(handler)
    try:
        loop = await f.worker(keys="p")
        network = f.networks["a"]
        for spoil, mend in (
            (lambda: setattr(network, "throttled", True), lambda: setattr(network, "throttled", False)),
            (lambda: setattr(network, "latency", 100.0), lambda: setattr(network, "latency", 0.005)),
            (lambda: setattr(asyncio.get_running_loop(), "now", now() + 25), lambda: None),
        ):
            await until(lambda: loop.is_held("p"), 130)
            await asyncio.sleep(20)
            spoil()
            await until(lambda: not loop.is_held("p"), 30)
            await asyncio.sleep(0.1)
            mend()
        reasons = [text.removeprefix(LATE) for text in said if text.startswith(LATE)]
        assert reasons[0] == "lease table memory: throttled"
        assert reasons[1] == "lease table memory did not answer (writes sent: 1)"
        assert re.match(r"this process did not run for 2\d\.\d s .*lease_timeout is 10 s", reasons[2])
        assert len(reasons) == 3
    finally:
        logging.getLogger("kinesis_efo.leases.loop").removeHandler(handler)


@scenario
async def test_a_hanging_renewal_does_not_put_off_the_deadline(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    f.networks["a"].cut = True
    f.networks["a"].patience = 1000
    await until(lambda: ("a", "p", None) in f.events, TIMEOUT + 0.2)


@scenario
async def test_a_taking_write_that_is_answered_too_late_is_not_a_lease(f: Fixture) -> None:
    loop = await f.worker()
    network = f.networks["a"]
    network.latency = 1
    loop.want(info("p"))
    await until(lambda: "p" in f.store.items, 10)
    network.latency = 0.005
    network.running.clear()
    asyncio.get_running_loop().call_later(TIMEOUT + 1, network.running.set)
    await asyncio.sleep(TIMEOUT + 0.9)
    assert f.events == []
    await until(lambda: loop.is_held("p"), 3)
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_process_stopped_while_it_takes_a_lease_does_not_believe_the_late_answer(f: Fixture) -> None:
    loop = await f.worker()
    f.networks["a"].latency = 1
    loop.want(info("p"))
    await until(lambda: "p" in f.store.items, 10)
    f.networks["a"].latency = 0.005
    asyncio.get_running_loop().now += TIMEOUT + 1  # type: ignore[attr-defined]
    await until(lambda: loop.is_held("p"), 3)
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_row_deleted_by_hand_is_written_again_with_its_last_checkpoint(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    loop.want({"p": LeaseInfo(TRIM_HORIZON, frozenset({"o"}), "0", "9")})
    await loop.wait_held("p")
    loop.checkpoint("p", Position.after(77))
    await until(lambda: f.store.lease("p").checkpoint == Position.after(77), 20)
    before = f.store.lease("p")
    del f.store.items["p"]
    await until(lambda: "p" in f.store.items, TIMEOUT / 2)
    after = f.store.lease("p")
    assert (after.checkpoint, after.owner, after.parents) == (Position.after(77), "a", {"o"})
    assert after.counter > before.counter
    await asyncio.sleep(30)
    assert loop.is_held("p")
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_lost_answers_lose_no_lease(f: Fixture) -> None:
    loop = await f.worker(keys="p q r s")
    await loop.wait_held("pqrs")
    f.networks["a"].lose_answers = 0.3
    f.networks["a"].patience = 0.3
    for i in range(60):
        loop.checkpoint("p", Position.after(i))
        await asyncio.sleep(2)
    f.networks["a"].lose_answers = 0
    await asyncio.sleep(TIMEOUT)
    assert loop.held == {"p", "q", "r", "s"}
    assert f.store.lease("p").checkpoint == Position.after(59)
    assert not [event for event in f.events if event[2] not in ("taken", None)], "never lost to anybody"


@scenario
async def test_a_take_whose_answer_was_lost_does_not_stretch_the_lease(f: Fixture) -> None:
    """The row says that it is ours, but its time runs from when that write arrived, not from when we asked again."""
    loop = await f.worker()
    network = f.networks["a"]
    network.lose_answers, network.lossy, network.patience = 1.0, frozenset({"put"}), TIMEOUT / 2
    loop.want(info("p"))
    await until(lambda: "p" in f.store.items, 1)
    created_at, counter = now(), f.counter("p")
    await until(lambda: loop.is_held("p"), TIMEOUT)
    assert f.counter("p") > counter, "only a write that moves the counter makes it ours"
    assert now() - created_at > TIMEOUT / 2
    assert f.events == [("a", "p", "taken")]


@scenario
async def test_a_renewal_whose_answer_was_lost_does_not_stretch_the_lease(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    network = f.networks["a"]
    counter = f.counter("p")
    network.lose_answers, network.lossy, network.patience = 1.0, frozenset({"update"}), 1.0
    await until(lambda: f.counter("p") > counter, TIMEOUT)
    arrived_at = now()
    # Every answer is lost: what arrived counts from its arrival for others, so it must not last longer for us.
    await until(lambda: not loop.is_held("p"), TIMEOUT * 2)
    assert now() <= arrived_at + TIMEOUT


# -- checkpoints


@scenario
async def test_checkpoints_are_batched_and_only_go_forward(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    for i in range(1000):
        loop.checkpoint("p", Position.after(10**55 + i))
        await asyncio.sleep(0.1)
    loop.checkpoint("p", Position.after(3))
    await asyncio.sleep(20)
    stored = [
        after["checkpoint"]["S"]
        for _, before, after in f.store.writes
        if before and after and before["checkpoint"] != after["checkpoint"]
    ]
    assert 10 <= len(stored) <= 21
    assert stored == sorted(stored, key=int)
    assert f.store.lease("p").checkpoint == Position.after(10**55 + 999)


@scenario
async def test_a_stored_checkpoint_ahead_of_ours_stays(f: Fixture) -> None:
    f.store.items["p"] = Lease("p", checkpoint=Position.after(500)).to_item()
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    loop.checkpoint("p", Position.after(100))
    await asyncio.sleep(20)
    loop.want({})
    await until(lambda: f.store.lease("p").owner is None, 1)
    assert f.store.lease("p").checkpoint == Position.after(500)
    loop.want(info("p"))
    await loop.wait_held("p")
    loop.checkpoint("p", Position.after(501))
    await loop.stop()
    assert f.store.lease("p").checkpoint == Position.after(501)


@scenario
async def test_a_row_tells_until_when_its_checkpoint_reaches(f: Fixture) -> None:
    known: dict[Position, int] = {TRIM_HORIZON: 111}

    class Knowing(SilentListener):
        def read_until(self, key: str, position: Position | None) -> float | None:
            return known.get(position) if key == "p" and position is not None else None

    loop = await f.worker(listener=Knowing())
    loop.want(info("p q"))
    await loop.wait_held(["p", "q"])
    await asyncio.sleep(4)
    assert [f.store.lease(key).read_until for key in "pq"] == [111, None]
    assert loop.read_until("p", Position.after(5)) == 111
    assert loop.read_until("q", Position.after(5)) is None
    loop.checkpoint("p", Position.after(9))
    await asyncio.sleep(10)
    assert f.store.lease("p").read_until == 111, "true of every later position, too"
    assert loop.read_until("p", Position.after(5)) is None, "the row's checkpoint lies behind that"
    known[Position.after(9)] = 222
    await loop.stop()
    assert f.store.lease("p").read_until == 222


@scenario
async def test_parts_of_an_aggregate_are_stored(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    loop.checkpoint("p", Position.after(5), 3)
    loop.checkpoint("p", Position.after(5), 2)
    await loop.stop()
    assert (f.store.lease("p").checkpoint, f.store.lease("p").sub) == (Position.after(5), 3)


# -- shard end


@scenario
async def test_a_finished_shard_is_marked_released_and_deleted_once_its_children_have_begun(f: Fixture) -> None:
    loop = await f.worker()
    loop.want({"p": LeaseInfo(starting_hash_key="0", ending_hash_key="9")})
    await loop.wait_held("p")
    loop.finish("p", {"c", "d"})
    loop.checkpoint("p", Position.after(1))  # a late one of a batch before
    children = {key: LeaseInfo(parents=frozenset({"p"})) for key in "cd"}
    loop.want(children)
    await loop.wait_held("cd")
    await until(lambda: f.store.lease("p").owner is None, 5)
    assert (f.store.lease("p").checkpoint, f.store.lease("p").children) == (SHARD_END, {"c", "d"})
    loop.checkpoint("c", Position.after(10))
    await asyncio.sleep(130)
    assert "p" in f.store.items, "a child is still at its start"
    loop.checkpoint("d", Position.after(20))
    await until(lambda: "p" not in f.store.items, 130)
    assert loop.held == {"c", "d"}
    assert not [event for event in f.events if event[2] != "taken"]


@scenario
async def test_a_parent_left_behind_by_a_crash_is_finished_once_only_its_children_are_wanted(f: Fixture) -> None:
    """Spark had planned the micro-batch without the parent, and the process died before the parent's last checkpoint."""
    parent = Lease("s:p", 4, "dead", Position.after(70), run="old")
    children = [Lease(f"s:{name}", 1, "dead", parents=frozenset({"p"}), run="old") for name in "cd"]
    stranger = Lease("t:p", 4, checkpoint=Position.after(70))
    f.store.items |= {lease.key: lease.to_item() for lease in (parent, stranger, *children)}
    loop = await f.worker()
    loop.want(info("s:c"), complete=False)  # a range from Spark's log, read before the offset is known
    await loop.wait_held(["s:c"])
    await asyncio.sleep(70)
    assert f.store.lease("s:p").checkpoint == Position.after(70)
    loop.want(info("s:c s:d"))
    await loop.wait_held(["s:c", "s:d"])
    await until(lambda: f.store.lease("s:p").checkpoint == SHARD_END, 70)
    assert (f.store.lease("s:p").owner, f.store.lease("s:p").children) == (None, {"c", "d"})
    assert f.store.lease("t:p") == stranger
    for key in ("s:c", "s:d"):
        loop.checkpoint(key, Position.after(80))
    await until(lambda: "s:p" not in f.store.items, 130)
    assert "t:p" in f.store.items


@scenario
async def test_a_row_that_is_still_held_is_deleted_only_once_its_lease_has_expired(f: Fixture) -> None:
    parent = Lease("p", 1, "dead", SHARD_END, children=frozenset({"c"}), run="run")
    child = Lease("c", 1, checkpoint=Position.after(1), parents=frozenset({"p"}))
    f.store.items |= {lease.key: lease.to_item() for lease in (parent, child)}
    loop = await f.worker(keys="c")
    await loop.wait_held("c")
    await asyncio.sleep(TIMEOUT - 1)
    assert "p" in f.store.items
    await until(lambda: "p" not in f.store.items, 130)


@scenario
async def test_a_finished_shard_is_not_taken_again_while_it_is_still_wanted(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    loop.finish("p")
    await asyncio.sleep(30)
    assert loop.held == {"q"}
    assert f.store.lease("p").owner is None


# -- what needs a person


@scenario
async def test_a_table_that_refuses_us_ends_the_loop_when_the_leases_run_out(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    f.networks["a"].error = LeaseTableError("not allowed: dynamodb:UpdateItem")
    await until(lambda: loop.failure is not None, TIMEOUT + 0.5)
    assert "not allowed" in str(loop.failure)
    assert ("a", "p", None) in f.events
    assert f.failed == [loop.failure]
    with pytest.raises(LeaseTableError, match="not allowed"):
        await loop.wait_held("p")


@scenario
async def test_a_refusal_that_passes_is_borne(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    f.networks["a"].error = LeaseTableError("not allowed: dynamodb:UpdateItem")
    await asyncio.sleep(TIMEOUT / 2)
    f.networks["a"].error = None
    await asyncio.sleep(TIMEOUT * 2)
    assert loop.is_held("p")
    assert loop.failure is None


@scenario
async def test_a_broken_row_that_is_wanted_is_an_error_and_another_is_not(f: Fixture) -> None:
    f.store.items["bad"] = {"leaseKey": {"S": "bad"}}
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    loop.want(info("p bad"))
    with pytest.raises(
        LeaseTableError,
        match="lease row 'bad' has no attribute 'leaseCounter' in lease table memory; correct or delete the row",
    ):
        await loop.wait_held(["bad"])


@scenario
async def test_waiting_has_an_end_and_says_what_was_in_the_way(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    f.networks["a"].throttled = True
    with pytest.raises(
        TableUnavailableError,
        match="application lake: lease p and 1 more not held after 30 s: lease table memory: throttled",
    ):
        await loop.wait_held("pq", at_most=30)


@scenario
async def test_an_error_in_the_listener_ends_the_loop_visibly(f: Fixture) -> None:
    class Failing(SilentListener):
        def lease_taken(self, key: str) -> None:
            raise KeyError(key)

    loop = await f.worker(listener=Failing())
    loop.want(info("p"))
    with pytest.raises(LeaseError, match="the lease loop failed: KeyError"):
        await loop.wait_held("p")


@scenario
async def test_stopping_without_a_table_takes_bounded_time(f: Fixture) -> None:
    loop = await f.worker(keys="p q")
    await loop.wait_held("pq")
    f.networks["a"].cut = True
    f.networks["a"].patience = 1000
    start = now()
    await loop.stop(at_most=3)
    assert now() - start < 3.5
    assert loop.held == set()
    await loop.stop()


@scenario
async def test_a_lease_that_runs_out_while_stopping_is_released_all_the_same(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    loop.checkpoint("p", Position.after(5))
    f.networks["a"].throttled = True
    await asyncio.sleep(TIMEOUT * 0.9)
    asyncio.get_running_loop().call_later(TIMEOUT / 2, lambda: setattr(f.networks["a"], "throttled", False))
    await loop.stop(at_most=TIMEOUT)
    assert (f.store.lease("p").owner, f.store.lease("p").checkpoint) == (None, Position.after(5))


@scenario
async def test_a_lease_whose_renewal_hangs_while_stopping_is_released_all_the_same(f: Fixture) -> None:
    loop = await f.worker(keys="p")
    await loop.wait_held("p")
    network = f.networks["a"]
    network.cut, network.patience = True, 1000
    await until(lambda: network.in_flight == 1, TIMEOUT)
    network.cut = False
    await loop.stop(at_most=TIMEOUT * 2)
    assert f.store.lease("p").owner is None
    assert f.events == [("a", "p", "taken"), ("a", "p", None)]


@scenario
async def test_stopping_while_leases_are_being_taken_leaves_none_behind(f: Fixture) -> None:
    loop = await f.worker(keys="p q r s")
    f.networks["a"].latency = 0.2
    await until(lambda: len(f.store.items) == 4, 5)
    await loop.stop()
    assert {f.store.lease(key).owner for key in "pqrs"} == {None}


@scenario
async def test_one_line_per_lease_taken_or_given_up_and_none_per_renewal(f: Fixture) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("kinesis_efo.leases")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        loop = await f.worker(keys="p")
        await loop.wait_held("p")
        await asyncio.sleep(100)
        await loop.stop()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert lines == ["lease p taken by a at TRIM_HORIZON", "lease p released by a"]
