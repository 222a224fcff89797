"""A real run as the host of guests, over its real service: who may join, what it tells of its streams, what ends with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import FetcherError, StreamError
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import Begin
from kinesis_efo.planner.guest import GuestRun, HostClient, HostLink
from kinesis_efo.planner.runtime import PlannerRuntime
from kinesis_efo.processes import Process
from tests.support.fetching import prepare
from tests.support.world import World

MakeWorld = Callable[..., World]


@contextmanager
def hosting(world: World, *, shared: bool = True) -> Iterator[tuple[PlannerRuntime, list[dict[str, str]]]]:
    """A run that reads `orders`, and what it tells of its streams."""
    runtime = prepare(world, shared=shared, streams="orders")
    told: list[dict[str, str]] = []
    runtime.streams_changed = told.append
    runtime.start()
    try:
        yield runtime, told
    finally:
        runtime.stop()


@contextmanager
def asking(world: World, runtime: PlannerRuntime, streams: str) -> Iterator[GuestRun | None]:
    """Ask to be a guest; None if the host has none."""
    options = SourceOptions.parse(
        {**world.options, "startingPosition": "TRIM_HORIZON", "leaseTimeout": "1s", "streams": streams}
    )
    manifest = resolve_manifest(options, SyncClients(options.aws))
    file: Any = SimpleNamespace(host_lives=True, close=lambda: None)
    client = HostClient(runtime.address, runtime.secret)
    link = HostLink(file, client, lambda: None, time.sleep)
    try:
        joined = link.join("guest", Process.of(os.getpid()), manifest.streams, options)
        assert not joined.faults
        yield GuestRun(link, joined) if joined.guest else None
    finally:
        client.close()


def test_a_guest_adds_a_stream_and_is_told_where_it_begins(world: MakeWorld) -> None:
    w = world({"orders": 1, "clicks": 2})
    with hosting(w) as (runtime, told), asking(w, runtime, "orders,clicks") as guest:
        assert guest is not None
        assert [sorted(streams) for streams in told] == [["clicks", "orders"]]
        begins = guest.ask(Begin(new=True))
        assert begins is not None
        assert sorted(key.stream for key in begins) == ["clicks", "clicks", "orders"]


def test_a_run_that_was_closed_before_anybody_asked_takes_no_guest(world: MakeWorld) -> None:
    w = world({"orders": 1})
    with hosting(w) as (runtime, _):
        assert runtime.close()
        with asking(w, runtime, "orders") as guest:
            assert guest is None


def test_a_run_that_nobody_may_share_answers_no_guest(world: MakeWorld) -> None:
    w = world({"orders": 1})
    with (
        hosting(w, shared=False) as (runtime, _),
        pytest.raises(FetcherError, match="has no action 'join'"),
        asking(w, runtime, "orders"),
    ):
        pass


def test_a_run_with_a_guest_is_not_closed_if_it_should_be_alone(world: MakeWorld) -> None:
    w = world({"orders": 1})
    with hosting(w) as (runtime, _), asking(w, runtime, "orders") as guest:
        assert guest is not None
        assert not runtime.close(only_if_alone=True)
        runtime.say("a line\n")
        assert runtime.close()


def test_a_run_that_has_failed_is_no_run_to_join(world: MakeWorld) -> None:
    async def fail() -> None:
        runtime.host.run.failure.set(StreamError("planted"))

    with hosting(world({"orders": 1})) as (runtime, told):
        assert told == []
        runtime._call(fail())
        assert told == [{}]
