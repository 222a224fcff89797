"""pytest fixtures for tests of Spark jobs: the local AWS, and an application for each test. pytest discovers them automatically.

Requires the extra `local`. Nothing is imported or started unless a test uses a fixture.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from kinesis_efo_local import LocalAws
    from kinesis_efo_local.rows import Row

_MARKER: Final = (
    'kinesis_efo(streams={"orders": 2}, application="lake"): the streams, with their number of shards, and the application '
    "that the fixture `kinesis_efo_streams` declares"
)
_FIRST: Final = "kinesis_efo_local_aws"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LocalKinesis:
    """The streams and the manifest of one test, created by the fixture `kinesis_efo_streams`.

    Attributes:
        aws: The local AWS.
        manifest: Path of the manifest file, for `kinesis_efo.read_stream(spark, manifest=kinesis_efo_streams.manifest)`.
        streams: Names of the streams in Kinesis, by their names in the manifest.
    """

    aws: LocalAws
    manifest: str
    streams: Mapping[str, str]

    def put(self, stream: str, rows: Iterable[Row]) -> int:
        """Put rows into a stream, given its name in the manifest; see `LocalAws.put`. Returns the number of rows."""
        return self.aws.put(self.streams[stream], rows)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers `kinesis_efo` and `kinesis`."""
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("markers", "kinesis: the former name of `kinesis_efo`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make the local AWS the first fixture of a test: its environment variables must be set before another fixture starts Spark."""
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if _FIRST in names:
            names.remove(_FIRST)
            names.insert(0, _FIRST)


@pytest.fixture(scope="session")
def kinesis_efo_local_aws() -> Iterator[LocalAws]:
    """The local AWS. Environment variables make every AWS SDK of this process and its children use it."""
    from kinesis_efo_local import LocalAws, Settings

    _refuse_running_spark()
    # Omit the delays of the real service that only slow tests down.
    settings = Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0)
    with LocalAws(settings=settings) as aws, pytest.MonkeyPatch.context() as patch:
        for name, value in aws.environment.items():
            patch.setenv(name, value)
        # By default, Spark starts the first Python on the PATH, which may not be the one that runs the tests.
        if "PYSPARK_PYTHON" not in os.environ:
            patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield aws


@pytest.fixture(scope="session")
def local_aws(kinesis_efo_local_aws: LocalAws) -> LocalAws:
    """Deprecated name of `kinesis_efo_local_aws`."""
    warnings.warn("the fixture local_aws is kinesis_efo_local_aws now", DeprecationWarning, stacklevel=1)
    return kinesis_efo_local_aws


@pytest.fixture
def kinesis(kinesis_efo_streams: LocalKinesis) -> LocalKinesis:
    """Deprecated name of `kinesis_efo_streams`."""
    warnings.warn("the fixture kinesis is kinesis_efo_streams now", DeprecationWarning, stacklevel=1)
    return kinesis_efo_streams


@pytest.fixture
def kinesis_efo_streams(
    request: pytest.FixtureRequest, kinesis_efo_local_aws: LocalAws, tmp_path: Path
) -> Iterator[LocalKinesis]:
    """Streams, consumers, lease table and manifest of one test, declared by `@pytest.mark.kinesis_efo`; by default, one stream `orders`."""
    from kinesis_efo_local import LocalApplication, LocalStream, declare

    marker = request.node.get_closest_marker("kinesis_efo") or request.node.get_closest_marker("kinesis")
    given = {"streams": {"orders": 1}, "application": "lake", **(marker.kwargs if marker else {})}
    if unknown := given.keys() - {"streams", "application"}:
        raise pytest.UsageError(
            f"@pytest.mark.kinesis_efo has no argument {min(unknown)!r}: it takes streams and application"
        )
    number = next(_numbers)
    streams = [LocalStream(name, f"test-{number}-{name}", shards) for name, shards in given["streams"].items()]
    table = f"test-{number}-{given['application']}"
    document = declare(kinesis_efo_local_aws, LocalApplication(given["application"], streams, lease_table=table))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(document))
    yield LocalKinesis(kinesis_efo_local_aws, str(manifest), {stream.name: stream.stream_name for stream in streams})
    client = kinesis_efo_local_aws.client("kinesis")
    for stream in streams:
        client.delete_stream(StreamName=stream.stream_name, EnforceConsumerDeletion=True)


def _refuse_running_spark() -> None:
    sql = sys.modules.get("pyspark.sql")
    if sql is not None and sql.SparkSession.getActiveSession() is not None:
        raise pytest.UsageError(
            "Spark runs already, and its processes do not know the local AWS: let the fixture that starts it ask for `kinesis_efo_local_aws`, as in "
            "`def spark(kinesis_efo_local_aws)`"
        )
