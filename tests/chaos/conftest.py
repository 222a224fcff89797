"""A local AWS that outlives the drivers that read it."""

from collections.abc import Iterator

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.world import world as world


@pytest.fixture(scope="package")
def local_aws() -> Iterator[LocalAws]:
    settings = Settings(
        consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.5, max_event_records=20
    )
    with LocalAws(settings=settings) as aws:
        yield aws
