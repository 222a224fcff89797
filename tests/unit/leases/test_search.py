"""Expiry by watching, and when the lease on a stream is free: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.search import Free, Search
from kinesis_efo.positions import Position

TIMEOUT = 10.0
KEY = run_key("orders")


def lease(key: str = KEY, owner: str | None = None, counter: int = 1, epoch: int = 0) -> Lease:
    return Lease(key, counter, owner, epoch=epoch)


def rows(*leases: Lease) -> dict[str, Lease]:
    return {each.key: each for each in leases}


def decision(seen: Mapping[float, dict[str, Lease]], ended: str = "") -> Free | Heartbeat:
    """What `me` decides after having seen the rows of the stream at several times."""
    observer = Observer(TIMEOUT, ended.__eq__)
    for now, leases in seen.items():
        heartbeats = observer.observe(leases, now)
    search = Search(LeaseKeys({"orders": "dev-orders"}), observer, "me", "lake", lambda _: False)
    return search.decide("orders", heartbeats, now)


class TestExpiry:
    def sight(self, *steps: tuple[float, Lease | None]) -> tuple[bool, bool]:
        observer = Observer(TIMEOUT)
        for now, seen in steps:
            heartbeats = observer.observe(rows(seen) if seen else {}, now)
        return observer.quiet(heartbeats["k"], now), observer.proven_alive(heartbeats["k"], now)

    def test_when_it_expires(self) -> None:
        observer = Observer(TIMEOUT)
        leases = rows(lease("k", "x"))
        observer.observe(leases, 100)
        seen = observer.observe(leases, 104)
        assert observer.expires_at(seen["k"]) == 110

    def test_first_sight_counts_as_renewed(self) -> None:
        assert self.sight((1e6, lease("k", "x", counter=1))) == (False, False)

    def test_expired_when_the_counter_stands_still_for_the_timeout(self) -> None:
        still = lease("k", "x")
        assert self.sight((0, still), (9.99, still)) == (False, False)
        assert self.sight((0, still), (10, still)) == (True, False)

    def test_a_counter_that_moves_keeps_it(self) -> None:
        assert self.sight(*((t, lease("k", "x", counter=t)) for t in range(0, 50, 5))) == (False, True)

    def test_a_counter_that_goes_back_has_moved_too(self) -> None:
        assert self.sight((0, lease("k", "x", counter=9)), (10, lease("k", "x", counter=1)))[0] is False

    def test_alive_takes_a_whole_timeout_of_watching(self) -> None:
        assert self.sight((0, lease("k", "x", counter=1)), (9, lease("k", "x", counter=2))) == (False, False)
        assert self.sight((0, lease("k", "x", counter=1)), (10, lease("k", "x", counter=2))) == (False, True)

    def test_one_that_moved_and_then_died_is_not_called_alive(self) -> None:
        moved = lease("k", "x", counter=2)
        steps = [(0.0, lease("k", "x", counter=1)), (3.0, moved), (10.0, moved)]
        assert self.sight(*steps) == (False, False)
        assert self.sight(*steps, (13.0, moved)) == (True, False)

    def test_another_owner_is_watched_anew(self) -> None:
        assert self.sight((0, lease("k", "x")), (10, lease("k", "y"))) == (False, False)

    def test_a_row_that_vanished_is_remembered_for_the_timeout(self) -> None:
        observer = Observer(TIMEOUT)
        observer.observe(rows(lease("k", "x")), 0)
        assert observer.observe({}, 9)["k"].gone
        assert "k" not in observer.observe({}, 10)

    def test_a_free_row_that_vanished_is_forgotten(self) -> None:
        observer = Observer(TIMEOUT)
        observer.observe(rows(lease("k")), 0)
        assert "k" not in observer.observe({}, 1)

    def test_a_row_that_is_there_again_was_renewed_whatever_its_counter(self) -> None:
        observer = Observer(TIMEOUT)
        row = lease("a", "p1")
        observer.observe({"a": row}, 0.0)
        observer.observe({}, 1.0)
        heartbeat = observer.observe({"a": row}, TIMEOUT)["a"]
        assert not observer.quiet(heartbeat, TIMEOUT * 1.9)
        assert observer.quiet(heartbeat, TIMEOUT * 2)


class TestTheLeaseOnAStream:
    def test_is_free_where_there_is_no_row(self) -> None:
        assert decision({0: {}}) == Free(None, 1, {})

    def test_is_free_where_its_row_has_no_owner(self) -> None:
        row = lease(counter=7, epoch=3)
        assert decision({0: rows(row)}) == Free(row, 4, {})

    def test_is_free_where_its_row_names_us(self) -> None:
        row = lease(owner="me", epoch=3)
        assert decision({0: rows(row)}) == Free(row, 4, {})

    def test_is_free_once_its_owner_was_silent_for_the_timeout(self) -> None:
        row = lease(owner="x", epoch=3)
        assert isinstance(decision({0: rows(row), 9.9: rows(row)}), Heartbeat)
        assert decision({0: rows(row), 10: rows(row)}) == Free(row, 4, {})

    def test_is_free_at_once_where_its_owner_has_ended(self) -> None:
        row = lease(owner="x")
        assert decision({0: rows(row)}, ended="x") == Free(row, 1, {})

    def test_is_not_free_while_its_owner_renews(self) -> None:
        found = decision({t: rows(lease(owner="x", counter=t)) for t in range(0, 50, 5)})
        assert isinstance(found, Heartbeat)
        assert found.lease.owner == "x"

    def test_is_not_free_while_a_shard_has_an_owner(self) -> None:
        """A KCL application holds the leases of shards and knows nothing of the run's row."""
        shard = Lease("shardId-000000000000", 1, "kcl", Position.after(5))
        assert isinstance(decision({0: rows(shard)}), Heartbeat)
        assert decision({0: rows(shard), 10: rows(shard)}) == Free(None, 1, rows(shard))

    def test_is_taken_with_an_epoch_above_that_of_every_row(self) -> None:
        """Also where somebody has deleted the run's row: its checkpoints remember the epoch."""
        shards = [Lease(f"orders:{number}", epoch=number) for number in range(4)]
        assert decision({0: rows(*shards)}) == Free(None, 4, rows(*shards))

    def test_of_a_row_deleted_by_hand_is_free_only_after_its_owner_would_have_noticed(self) -> None:
        row = lease(owner="x", epoch=2)
        assert isinstance(decision({0: rows(row), 5: {}}), Heartbeat)
        assert decision({0: rows(row), 10: {}}) == Free(None, 1, {})

    def test_names_the_rival_that_changed_last(self) -> None:
        old, new = lease("orders:a", "x"), [lease("orders:b", "y", counter=n) for n in range(2)]
        found = decision({0: rows(old, new[0]), 5: rows(old, new[1])})
        assert isinstance(found, Heartbeat)
        assert found.lease.owner == "y"


owners = st.sampled_from([None, "me", "p1", "q"])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, dict[str, Lease]]]:
    """Some rows over time: owners that renew, fall silent, change, and rows that come and go."""
    state: dict[str, Lease] = {}
    now = 0.0
    history = []
    for _ in range(draw(st.integers(1, 8))):
        for key in (KEY, "orders:a", "orders:b"):
            match draw(st.sampled_from(["keep", "keep", "renew", "renew", "change", "drop"])):
                case "renew" if key in state:
                    state[key] = replace(state[key], counter=state[key].counter + 1)
                case "change":
                    counter = state[key].counter + 1 if key in state else 1
                    state[key] = lease(key, draw(owners), counter, draw(st.integers(0, 9)))
                case "drop":
                    state.pop(key, None)
        history.append((now, dict(state)))
        now += draw(st.sampled_from([0.5, 3.0, 5.0, 10.0, 30.0]))
    return history


@given(histories())
def test_nothing_is_taken_while_any_owner_renews(history: list[tuple[float, dict[str, Lease]]]) -> None:
    found = decision(dict(history))
    now, leases = history[-1]
    if isinstance(found, Heartbeat):
        assert found.lease.owner not in (None, "me")
        return
    assert found.row == leases.get(KEY)
    assert all(each.epoch < found.epoch for each in leases.values())
    for key, each in leases.items():
        if each.owner in (None, "me"):
            continue
        versions = [(t, seen.get(key)) for t, seen in history]
        unchanged_since = min(
            t
            for i, (t, _) in enumerate(versions)
            if all(v is not None and (v.owner, v.counter) == (each.owner, each.counter) for _, v in versions[i:])
        )
        assert now - unchanged_since >= TIMEOUT
