"""Expiry by watching, and when the lease on a stream is free: pure decisions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.search import Free, Search

TIMEOUT = 10.0
KEY = run_key("orders")


def lease(key: str = KEY, owner: str | None = None, counter: int = 1, epoch: int = 0) -> Lease:
    return Lease(key, counter, owner, epoch=epoch)


def rows(*leases: Lease) -> dict[str, Lease]:
    return {each.key: each for each in leases}


def decision(seen: Mapping[float, dict[str, Lease]]) -> Free | Heartbeat:
    """What `me` decides after having seen the rows of the stream at several times."""
    observer = Observer(TIMEOUT)
    for now, leases in seen.items():
        heartbeats = observer.observe(leases, now)
    search = Search(LeaseKeys({"orders": "dev-orders"}), observer, "me", "lake", lambda _: False)
    return search.decide("orders", heartbeats, now)


STILL = lease("k", "x")
MOVED = lease("k", "x", counter=2)


# Shows 62.
@pytest.mark.parametrize(
    ("steps", "quiet", "alive"),
    [
        # First sight counts as renewed.
        ([(1e6, STILL)], False, False),
        ([(0, STILL), (9.99, STILL)], False, False),
        ([(0, STILL), (10, STILL)], True, False),
        ([(t, lease("k", "x", counter=t)) for t in range(0, 50, 5)], False, True),
        ([(0, lease("k", "x", counter=9)), (9, lease("k", "x", counter=9)), (10, STILL)], False, True),
        # A whole timeout of watching shows that an owner is alive, if it has renewed just now.
        ([(0, STILL), (9, MOVED)], False, False),
        ([(0, STILL), (4, STILL), (10, MOVED)], False, True),
        # It may have renewed long before the scan that shows it.
        ([(0, STILL), (10, MOVED)], False, False),
        ([(0, STILL), (3, MOVED), (10, MOVED)], False, False),
        ([(0, STILL), (3, MOVED), (10, MOVED), (13, MOVED)], True, False),
        ([(0, STILL), (10, lease("k", "y"))], False, False),
        # A row that is there again was renewed, whatever its counter.
        ([(0, STILL), (1, None), (10, STILL), (19, STILL)], False, False),
        ([(0, STILL), (1, None), (10, STILL), (20, STILL)], True, False),
    ],
)
def test_expiry_follows_from_what_was_seen(steps: list[tuple[float, Lease | None]], quiet: bool, alive: bool) -> None:
    observer = Observer(TIMEOUT)
    for now, seen in steps:
        found = observer.observe(rows(seen) if seen else {}, now)["k"]
    assert (observer.quiet(found, now), observer.proven_alive(found, now)) == (quiet, alive)


def test_lease_expires_a_timeout_after_its_last_change() -> None:
    observer = Observer(TIMEOUT)
    observer.observe(rows(STILL), 100)
    assert observer.expires_at(observer.observe(rows(STILL), 104)["k"]) == 110


def test_deleted_row_counts_until_its_owner_must_notice() -> None:
    observer = Observer(TIMEOUT)
    observer.observe(rows(STILL, lease("free")), 0)
    assert observer.observe({}, 9).keys() == {"k"}
    assert observer.observe({}, 9)["k"].gone
    assert observer.observe({}, 10) == {}
    row = lease(owner="x", epoch=2)
    assert isinstance(decision({0: rows(row), 5: {}}), Heartbeat)
    assert decision({0: rows(row), 10: {}}) == Free(None, 1, {})


def test_lease_is_free_where_its_row_names_this_run() -> None:
    row = lease(owner="me", epoch=3)
    assert decision({0: rows(row)}) == Free(row, 4, {})


def test_rival_that_changed_last_is_named() -> None:
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


# Shows 61.
@given(histories())
def test_no_lease_is_free_while_any_owner_renews(history: list[tuple[float, dict[str, Lease]]]) -> None:
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
