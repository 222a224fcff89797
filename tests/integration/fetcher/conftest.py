"""Fetchers against a local AWS with quick settings; every test has streams of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.world import QUICK, World, make_world


@pytest.fixture(scope="package", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


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
