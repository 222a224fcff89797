"""A real run as the host of clients, over its real service: who may join, what it tells of its streams, what ends with it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import StreamError
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.run_link import RunConnection, RunLink
from kinesis_efo.processes import Process
from kinesis_efo.run.thread import RunThread
from tests.support.fetching import prepare
from tests.support.world import World

MakeWorld = Callable[..., World]


@contextmanager
def hosting(world: World) -> Iterator[tuple[RunThread, list[dict[str, str]]]]:
    """A run that reads `orders`, and what it tells of its streams."""
    runtime = prepare(world, streams="orders")
    told: list[dict[str, str]] = []
    runtime.streams_changed = told.append
    runtime.start()
    try:
        yield runtime, told
    finally:
        runtime.stop()


@contextmanager
def asking(world: World, runtime: RunThread, streams: str) -> Iterator[RunLink | None]:
    """Ask to be a client; None if the host has none."""
    options = SourceOptions.parse(
        {**world.options, "startingPosition": "TRIM_HORIZON", "leaseTimeout": "1s", "streams": streams}
    )
    manifest = resolve_manifest(options, SyncClients(options.aws).client)
    file: Any = SimpleNamespace(lives=True, close=lambda: None, entry=SimpleNamespace(pid=0))
    client = RunConnection(runtime.address, runtime.secret)
    link = RunLink(file, client, lambda: None, time.sleep)
    try:
        joined = link.join("client", Process.of(os.getpid()), manifest.streams, options)
        assert not joined.faults
        yield link if joined.client else None
    finally:
        client.close()


def test_closed_run_accepts_no_client(world: MakeWorld) -> None:
    w = world({"orders": 1})
    with hosting(w) as (runtime, _):
        assert runtime.close()
        with asking(w, runtime, "orders") as client:
            assert client is None


def test_run_with_a_client_is_not_closed_as_unused(world: MakeWorld) -> None:
    w = world({"orders": 1})
    with hosting(w) as (runtime, _), asking(w, runtime, "orders") as client:
        assert client is not None
        assert not runtime.close(only_if_alone=True)
        runtime.say("a line\n")
        assert runtime.close()


def test_failed_run_cannot_be_joined(world: MakeWorld) -> None:
    async def fail() -> None:
        runtime.whole.run.failure.set(StreamError("planted"))

    with hosting(world({"orders": 1})) as (runtime, told):
        assert told == []
        runtime.call(fail())
        assert told == [{}]
