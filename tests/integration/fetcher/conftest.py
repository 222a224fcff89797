"""Fetchers against a local AWS with quick settings; every test has streams of its own."""

from collections.abc import Iterator

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.world import QUICK
from tests.support.world import world as world


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
