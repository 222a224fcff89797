"""Expiry by watching, and who takes what: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinesis_efo.leases import Lease
from kinesis_efo.leases.election import Plan, Worker, plan
from kinesis_efo.leases.expiry import Observer

TIMEOUT = 10.0
ME = Worker("me", "run")


def lease(
    key: str, owner: str | None = None, run: str | None = "run", counter: int = 1, heir: str | None = None
) -> Lease:
    return Lease(key, counter, owner, run=run if owner else None, handover_to=heir)


def rows(*leases: Lease) -> dict[str, Lease]:
    return {each.key: each for each in leases}


def decide(seen: Mapping[float, dict[str, Lease]], wanted: str, held: str = "", seed: int = 0) -> Plan:
    """The plan of `ME` after having seen rows at several times."""
    observer = Observer(TIMEOUT)
    for now, leases in seen.items():
        sightings = observer.observe(leases, now)
    return plan(sightings, observer, now, me=ME, wanted=wanted.split(), held=held.split(), random=Random(seed))


def keys(leases: tuple[Lease, ...]) -> set[str]:
    return {each.key for each in leases}


class TestExpiry:
    def sight(self, *steps: tuple[float, Lease | None]) -> tuple[bool, bool]:
        observer = Observer(TIMEOUT)
        for now, seen in steps:
            sightings = observer.observe(rows(seen) if seen else {}, now)
        return observer.expired(sightings["k"], now), observer.proven_alive(sightings["k"], now)

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


class TestOneWorker:
    def test_the_first_key_decides_then_all_follow(self) -> None:
        assert decide({0: {}}, "a b c") == Plan(create=("a",))
        todo = decide({0: rows(lease("a", "me"))}, "a b c", held="a")
        assert set(todo.create) == {"b", "c"}

    def test_only_what_is_wanted(self) -> None:
        todo = decide({0: rows(lease("a", "me"), lease("z"))}, "a b", held="a")
        assert (todo.create, todo.take) == (("b",), ())

    def test_a_free_row_is_taken(self) -> None:
        assert keys(decide({0: rows(lease("a"))}, "a").take) == {"a"}

    def test_its_own_row_given_up_locally_is_taken_back_at_once(self) -> None:
        assert keys(decide({0: rows(lease("a", "me", counter=4))}, "a").take) == {"a"}

    def test_an_expired_lease_of_another_run_is_taken(self) -> None:
        dead = rows(lease("a", "x", "old"))
        assert decide({0: dead, 9.9: dead}, "a").take == ()
        assert keys(decide({0: dead, 10: dead}, "a").take) == {"a"}

    def test_a_renewed_lease_is_left_alone(self) -> None:
        todo = decide({0: rows(lease("a", "x", "old", 1)), 10: rows(lease("a", "x", "old", 2))}, "a")
        assert (todo.take, todo.create) == ((), ())
        assert todo.rival is not None
        assert todo.rival.lease.owner == "x"

    def test_nothing_is_taken_next_to_another_run(self) -> None:
        todo = decide({0: rows(lease("b", "x", "old"), lease("a"))}, "a b c")
        assert (todo.take, todo.create, todo.ask) == ((), (), None)

    def test_a_row_of_kcl_is_another_run(self) -> None:
        todo = decide({0: rows(Lease("a", 1, "kcl", run=None))}, "a")
        assert todo.rival is not None
        assert todo.take == ()

    def test_a_run_that_holds_leases_is_not_blocked_by_another(self) -> None:
        todo = decide({0: rows(lease("a", "me"), lease("b", "x", "other"), lease("c"))}, "a b c", held="a")
        assert keys(todo.take) == {"c"}
        assert todo.rival is not None

    def test_a_deleted_row_is_created_only_after_its_owner_would_have_noticed(self) -> None:
        peer = lease("a", "x")
        mine = lease("b", "me")
        assert decide({0: rows(peer, mine), 5: rows(mine)}, "a b", held="b").create == ()
        assert decide({0: rows(peer, mine), 10: rows(mine)}, "a b", held="b").create == ("a",)


class TestSeveralWorkers:
    def test_free_leases_are_shared(self) -> None:
        todo = decide({0: rows(lease("a", "x"), *(lease(k) for k in "bcdef"))}, "a b c d e f")
        assert len(todo.take) == 3

    def test_one_is_asked_for_when_another_has_two_more(self) -> None:
        todo = decide({0: rows(*(lease(k, "x") for k in "abcd"), lease("e", "me"))}, "a b c d e", held="e")
        assert todo.take == ()
        assert todo.ask is not None
        assert todo.ask.owner == "x"
        assert todo.with_peers == set("abcd")

    def test_nothing_is_asked_for_when_off_by_one(self) -> None:
        assert decide({0: rows(lease("a", "x"), lease("b", "x"), lease("c", "me"))}, "a b c", held="c").ask is None

    def test_nothing_is_asked_for_while_something_is_free(self) -> None:
        todo = decide({0: rows(*(lease(k, "x") for k in "abcd"), lease("e"))}, "a b c d e")
        assert todo.ask is None
        assert keys(todo.take) == {"e"}

    def test_nothing_is_asked_for_while_a_request_is_open(self) -> None:
        assert decide({0: rows(lease("a", "x", heir="me"), *(lease(k, "x") for k in "bcd"))}, "a b c d").ask is None

    def test_what_another_asked_for_is_not_asked_for(self) -> None:
        for seed in range(20):
            todo = decide(
                {0: rows(lease("a", "x", heir="y"), lease("b", "x", heir="y"), lease("c", "x"))}, "a b c", seed=seed
            )
            assert todo.ask is not None
            assert todo.ask.key == "c"

    def test_a_lease_handed_over_is_reserved_for_a_while(self) -> None:
        handed = rows(lease("a", heir="y"), lease("b", "me"))
        assert decide({0: handed, 9: handed}, "a b", held="b").take == ()
        assert keys(decide({0: handed, 10: handed}, "a b", held="b").take) == {"a"}
        assert keys(decide({0: rows(lease("a", heir="me"), lease("b", "x"))}, "a b").take) == {"a"}

    def test_what_nobody_takes_is_taken_beyond_the_share(self) -> None:
        table = {t: rows(lease("a", "me"), lease("b", "x", counter=t), lease("c")) for t in range(0, 25, 5)}
        assert keys(decide(table, "a b c d", held="a d").take) == {"c"}


owners = st.sampled_from([None, "me", "p1", "p2", "q"])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, dict[str, Lease]]]:
    """Some leases over time: owners that renew, fall silent, change, and rows that come and go."""
    state: dict[str, Lease] = {}
    now = 0.0
    history = []
    for _ in range(draw(st.integers(1, 8))):
        for key in "abcdef":
            match draw(st.sampled_from(["keep", "keep", "renew", "renew", "change", "drop"])):
                case "renew" if key in state:
                    state[key] = replace(state[key], counter=state[key].counter + 1)
                case "change":
                    owner = draw(owners)
                    counter = state[key].counter + 1 if key in state else 1
                    heir = draw(st.sampled_from([None, None, "me", "p1"]))
                    state[key] = lease(key, owner, "other" if owner == "q" else "run", counter, heir)
                case "drop":
                    state.pop(key, None)
        now += draw(st.floats(0, 12))
        history.append((now, dict(state)))
    return history


@settings(deadline=None)
@given(histories(), st.integers(0, 100))
def test_no_lease_is_taken_while_its_owner_renews(history: list[tuple[float, dict[str, Lease]]], seed: int) -> None:
    observer = Observer(TIMEOUT)
    for now, leases in history:
        sightings = observer.observe(leases, now)
    held = [key for key, each in leases.items() if each.owner == "me"]
    todo = plan(sightings, observer, now, me=ME, wanted="abcdef", held=held, random=Random(seed))
    for each in todo.take:
        assert leases[each.key] == each
        if each.owner is not None:
            versions = [(t, seen.get(each.key)) for t, seen in history]
            unchanged_since = min(
                t
                for i, (t, _) in enumerate(versions)
                if all(v is not None and (v.owner, v.counter) == (each.owner, each.counter) for _, v in versions[i:])
            )
            assert now - unchanged_since >= TIMEOUT
    assert not set(todo.create) & leases.keys()
    assert not (keys(todo.take) | set(todo.create)) & set(held)
    if todo.ask is not None:
        assert todo.ask.owner not in (None, "me", "q")


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 12), st.randoms(use_true_random=False), st.data())
def test_workers_of_a_run_end_up_within_one_of_each_other(
    workers: int, shards: int, random: Random, data: st.DataObject
) -> None:
    """All workers plan on their own view and act in any order; a table that keeps conditions does the rest."""
    names = [f"w{i}" for i in range(workers)]
    wanted = [f"k{i:02}" for i in range(shards)]
    dead = data.draw(st.sets(st.sampled_from(wanted)))
    table: dict[str, Lease] = {key: lease(key, "dead", "run", 5) for key in dead}
    views = {name: Observer(TIMEOUT) for name in names}
    now = 0.0

    def owned(name: str) -> list[str]:
        return [key for key, each in table.items() if each.owner == name]

    for _ in range(60 + 4 * shards):
        now += 1.0
        for name in data.draw(st.permutations(names)) if workers > 1 and now < 5 else names:
            me = Worker(name, "run")
            for key in owned(name):  # renew, and hand over what was asked for
                table[key] = table[key].released() if table[key].handover_to else table[key].renewed()
            sightings = views[name].observe(dict(table), now)
            todo = plan(sightings, views[name], now, me=me, wanted=wanted, held=owned(name), random=random)
            for key in todo.create:
                table.setdefault(key, Lease(key).taken(name, "run", ""))
            for each in todo.take:
                assert table[each.key] == each
                table[each.key] = each.taken(name, "run", "")
            if todo.ask is not None:
                table[todo.ask.key] = todo.ask.asked(name)
    counts = sorted(len(owned(name)) for name in names)
    assert sum(counts) == shards, "every free and every expired lease is taken in the end"
    assert counts[-1] - counts[0] <= 1


@pytest.mark.parametrize("silent", [True, False])
def test_every_expired_key_is_taken_in_the_end_also_by_one_that_has_its_share(silent: bool) -> None:
    observer = Observer(TIMEOUT)
    taken: set[str] = set()
    for now in range(0, 40, 2):
        peer = [lease("p", "peer", counter=now)]  # renews its own, and never takes anything
        left = [lease(k, "dead", counter=1 if silent else now) for k in "xyz" if k not in taken]
        sightings = observer.observe(rows(lease("m", "me", counter=now), *peer, *left), float(now))
        todo = plan(sightings, observer, now, me=ME, wanted="mpxyz", held=["m", *taken], random=Random(1))
        taken |= keys(todo.take)
    assert taken == (set("xyz") if silent else set())


def test_a_row_that_is_there_again_was_renewed_whatever_its_counter() -> None:
    observer = Observer(TIMEOUT)
    row = lease("a", "p1")
    observer.observe({"a": row}, 0.0)
    observer.observe({}, 1.0)
    sighting = observer.observe({"a": row}, TIMEOUT)["a"]
    assert not observer.expired(sighting, TIMEOUT * 1.9)
    assert observer.expired(sighting, TIMEOUT * 2)
