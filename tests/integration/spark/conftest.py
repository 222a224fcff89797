"""One Spark session and one local AWS for all tests that need them; every test has streams of its own."""

import contextlib
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_efo
from kinesis_efo.driver.tuning import MANAGER
from kinesis_efo_local import LocalAws, Settings
from tests.support.played_spark import CREDENTIALS, FEW_CERTIFICATES, PlayedSpark
from tests.support.world import World, wait_until
from tests.support.world import world as world

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
RunExample = Callable[[str, Mapping[str, object], Callable[[], bool]], dict[str, Any]]


@pytest.fixture(scope="session")
def local_aws() -> Iterator[LocalAws]:
    # Small events, because a micro-batch is made of whole ones; and a query that goes on where another one stopped need not wait.
    settings = Settings(
        consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0, max_event_records=10
    )
    with LocalAws(settings=settings) as aws:
        yield aws


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The processes that Spark starts for a reader inherit the environment of the JVM.
    os.environ.update(CREDENTIALS, PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    builder = (
        SparkSession.builder.master("local[2,2]")
        .appName("kinesis-efo tests")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with pytest.MonkeyPatch.context() as patch:
        # For the JVM and what it starts: other tests of this process may fetch packages.
        for name, value in FEW_CERTIFICATES.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def gateway(spark: SparkSession) -> Any:
    """The way into the session's JVM."""
    return spark.sparkContext._gateway


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the manager of checkpoints that Spark is shipped with; afterwards it has the one of all other tests again."""
    before = spark.conf.get(MANAGER, None)
    spark.conf.unset(MANAGER)
    assert spark.conf.get(MANAGER, None) is None
    yield spark
    spark.conf.unset(MANAGER)
    if before is not None:
        spark.conf.set(MANAGER, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark and py4j leave the sockets to the JVM to the garbage collector; ours are watched by the other tests."""
    for item in items:
        if any(item.get_closest_marker(marker) for marker in ("spark", "spark40", "spark43")):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
                )
            )


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which a process listens."""
    sockets = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {each.laddr.ip.removeprefix("::ffff:") for each in sockets}


class Queries:
    """Starts queries on a world and stops them after the test.

    Attributes:
        directory: Where checkpoints are.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.started: list[StreamingQuery] = []

    def load(self, world: World, **options: Any) -> DataFrame:
        """The world's streams from their beginning, unless an option says otherwise."""
        return self.spark.readStream.format("kinesis-efo").options(**self._given(world, options)).load()

    def read_stream(self, world: World, **options: Any) -> DataFrame:
        """The same, as `kinesis_efo.read_stream` opens it."""
        return kinesis_efo.read_stream(self.spark, **self._given(world, options))

    def _given(self, world: World, options: dict[str, Any]) -> dict[str, Any]:
        # A busy machine renews late; who stops a query releases its leases.
        return {**world.options, "leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", **options}

    def start(
        self, df: DataFrame, sink: str | Callable[[DataFrame, int], None], mode: str = "append", **trigger: Any
    ) -> StreamingQuery:
        """Start a query into a memory table or a function; queries of one name continue each other."""
        name = sink if isinstance(sink, str) else sink.__name__
        writer = df.writeStream.outputMode(mode).option(
            "checkpointLocation", str(self.directory / f"checkpoint-{name}")
        )
        if isinstance(sink, str):
            # Two queries of one name cannot run at a time.
            writer = writer.format("memory").queryName(f"{name}{len(self.started)}")
        else:
            writer = writer.foreachBatch(sink)
        if trigger:
            writer = writer.trigger(**trigger)
        self.started.append(writer.start())
        return self.started[-1]

    def stop(self) -> None:
        for query in self.started:
            query.stop()


def numbers(rows: list[Row]) -> list[int]:
    """The numbers that the data of rows begin with; see `arriving.numbered`."""
    return [int(bytes(row["data"])[:8]) for row in rows]


class Rows:
    """A `foreachBatch` function that keeps all rows, by batch, and then waits where `going` is not set."""

    __name__ = "rows"

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.check: Callable[[DataFrame, list[Row]], None] = lambda _df, _rows: None
        self.going = threading.Event()
        self.going.set()

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = df.collect()
        self.check(df, self.batches[batch])
        self.going.wait(120)

    @property
    def numbers(self) -> list[int]:
        """Those that the data of all rows begin with."""
        return numbers(self.all)

    @property
    def all(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def wait_for(self, query: StreamingQuery, count: int, seconds: float = 120.0) -> list[Row]:
        def enough() -> bool:
            if query.exception() is not None:
                raise AssertionError(f"the query failed: {query.exception()}")
            return len(self.all) >= count

        wait_until(enough, seconds, f"{count} rows")
        return self.all


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[Queries]:
    """Starts queries; all are stopped after the test."""
    started = Queries(spark, tmp_path)
    yield started
    started.stop()


@pytest.fixture
def example(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> RunExample:
    """Runs a program of examples/ with NAME=VALUE arguments until something is so, for minutes at most; returns what it defined."""

    def run(name: str, arguments: Mapping[str, object], done: Callable[[], bool]) -> dict[str, Any]:
        ended, give_up_at = threading.Event(), time.monotonic() + 180

        def stop_when_done() -> None:
            while not ended.wait(0.1):
                if done() or time.monotonic() > give_up_at:
                    for query in spark.streams.active:
                        query.stop()

        given = [f"{option}={value}" for option, value in arguments.items()]
        # The session is that of other tests as well.
        monkeypatch.setattr(SparkSession, "stop", lambda _session: None)
        # And so are queries that have ended long ago, for which a program must not take its own.
        spark.streams.resetTerminated()
        monkeypatch.setattr(sys, "argv", [name, "startingPosition=TRIM_HORIZON", *given])
        watch = threading.Thread(target=stop_when_done)
        watch.start()
        try:
            return runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        finally:
            ended.set()
            watch.join()
            assert not spark.streams.active

    return run


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., PlayedSpark]]:
    """Starts readers' processes; all are ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(world: World, **options: str) -> PlayedSpark:
            played = PlayedSpark(world, tmp_path, **options)
            stack.callback(played.close)
            return played

        yield start
