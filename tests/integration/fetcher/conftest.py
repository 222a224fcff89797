"""Fetchers against a local AWS with quick settings; every test has streams of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.world import World, make_world

QUICK: dict[str, Any] = {
    "consumer_creating_seconds": 0.0,
    "consumer_deleting_seconds": 0.0,
    "idle_event_seconds": 0.2,
    "resubscribe_seconds": 0.0,
    "subscribe_interval_seconds": 0.0,
    "read_limit": False,
}


@pytest.fixture(scope="package", autouse=True)
def credentials() -> Iterator[None]:
    wanted = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="package")
def local_aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(**QUICK)) as aws:
        yield aws


@pytest.fixture
def world(local_aws: LocalAws, tmp_path: Path) -> Callable[..., World]:
    """Makes a world; arguments as `make_world`."""

    def make(streams: Any = ("orders",), **create: Any) -> World:
        return make_world(local_aws, tmp_path, streams, **create)

    return make
