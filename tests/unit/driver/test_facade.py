"""What `read_stream` and `read` pass to the source, in a classic session and in a client of Spark Connect."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kinesis_efo.driver.facade import keep_alive, read, read_stream, register
from kinesis_efo.driver.listener import FinishedListener
from kinesis_efo.errors import ConfigurationError, ManifestError, OptionsError
from kinesis_efo.options import BatchOptions, SourceOptions
from kinesis_efo.options.source import DRIVER_HOST, LISTENS, PROGRAM
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.spark.source import KinesisEfoSource
from kinesis_efo.tasks.compat import SPARK_VERSION
from kinesis_efo_tools.operate.manifest_search import document
from tests.support.messages import raises
from tests.support.shared_runs import manifest

pytestmark = pytest.mark.spark

SERVER_MILLIS = 1_700_000_000_123
EIGHT = Position.at_timestamp(1_700_035_200_000)
both = pytest.mark.parametrize("open_source", [read_stream, read])


class Loaded(dict[str, str]):
    """The options of a read, which returns the server's time if it is a read of that."""

    def first(self) -> dict[str, int]:
        assert self["session.clock"] == "true"
        assert "session.loaded" not in self
        return {"subSequenceNumber": SERVER_MILLIS}


class Client:
    """A client of Spark Connect with some settings, which is its own reader; fails to load an unregistered source with `error`."""

    conf: Any = None
    dataSource: Any = None
    read: Any = None
    readStream: Any = None
    name_of_source: str | None = None

    def __init__(self, error: str = "", **conf: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in conf.items()}
        self.error = error
        self.registered: list[object] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.read = self.readStream = self

    def format(self, _: str) -> Client:
        return self

    def name(self, name: str) -> Client:
        self.name_of_source = name
        return self

    def options(self, **options: str) -> Client:
        self.given = Loaded(options)
        return self

    def load(self) -> Loaded:
        if self.error and not self.registered:
            raise AnalysisException(f"[{self.error}] Failed to find the data source: kinesis-efo.")
        return self.given


class Driver(Client, SparkSession):
    """A classic session, whose JVM has the process id that `pid` returns."""

    sparkContext: Any = None
    streams: Any = None

    def __init__(self, error: str = "", **conf: str) -> None:
        super().__init__(error, **conf)

        def refuse() -> int:
            raise Py4JError("no such method")

        self.pid: Callable[[], int] = refuse
        self.listeners: list[object] = []
        self.streams = SimpleNamespace(addListener=self.listeners.append)
        handle = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: self.pid()))
        java = SimpleNamespace(lang=SimpleNamespace(ProcessHandle=handle))
        self.sparkContext = SimpleNamespace(_jvm=SimpleNamespace(java=java), defaultParallelism=2)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A manifest that can be loaded, and a Kinesis that tells its time."""
    monkeypatch.setattr(KinesisEfoSource, "kinesis_time", lambda _: SERVER_MILLIS)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document(manifest("orders"), "leases")))
    return str(path)


def streamed(spark: Any, path: str = "m.json", **options: object) -> dict[str, str]:
    """The options that the source gets, besides the manifest."""
    found: Any = read_stream(spark, manifest=path, **options)  # type: ignore[arg-type]
    SourceOptions.parse(found)
    return {name: value for name, value in found.items() if name != "manifest"}


@pytest.mark.parametrize(
    ("master", "host"),
    [
        *((master, "localhost") for master in ("local", "local[*]", "local[2,3]")),
        *((master, "10.0.0.7") for master in ("local-cluster[2,1,1024]", "spark://m:7077", "yarn", "k8s://https://api")),
        ("custom:emr-serverless", "10.0.0.7"),
        ("", None),
    ],
)  # fmt: skip
def test_the_source_gets_the_drivers_address(master: str, host: str | None) -> None:
    spark = Client(spark_master=master, spark_driver_host="10.0.0.7") if master else Client()
    assert streamed(spark) == ({DRIVER_HOST: host} if host else {})


def test_connect_sessions_of_a_server_are_distinguished(there: str) -> None:
    client, driver = Client(), Driver()
    client.session_id = driver.session_id = "5f3c"  # type: ignore[attr-defined]
    assert streamed(client) == {PROGRAM: "5f3c"}
    assert streamed(driver, there) == {}, "queries of a classic session share with all of their program"


def test_connect_client_is_warned_unless_kept_alive(caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Event()

    class Conf(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "spark.connect.session.manager.defaultSessionTimeout" and default is None:
                calls.set()
            return super().get(name, default)

    session: Any = Client()
    session.session_id, session.conf, session.is_stopped = "77aa", Conf(), False
    streamed(session)
    (warning,) = caplog.messages
    assert "makes no call for 60m" in warning
    assert "kinesis_efo.keep_alive(spark)" in warning
    end = keep_alive(session, seconds=0.01)
    streamed(session)
    assert len(caplog.messages) == 1
    assert calls.wait(60), "the server is called"
    end()
    streamed(session)
    assert len(caplog.messages) == 2


def test_a_classic_session_gets_one_listener(there: str) -> None:
    spark = Driver()
    assert streamed(spark, there) == {}, "its JVM refuses"
    assert spark.listeners == []
    spark.pid = os.getpid
    for _ in range(2):
        assert streamed(spark, there) == {LISTENS: "true"}
    assert [type(each) for each in spark.listeners] == [FinishedListener]


def test_options_become_texts() -> None:
    given = streamed(
        Client(spark_master="yarn"), streams=["a", "b"], catchUp=True, metrics_shards=3, fetcherHost="gateway"
    )
    assert given == {"streams": "a,b", "catchUp": "true", "metrics.shards": "3", "fetcherHost": "gateway"}


@both
def test_wrong_options_are_reported_together(open_source: Callable[..., object]) -> None:
    with pytest.raises(OptionsError) as caught:
        open_source(SimpleNamespace(), manifest="m.json", retryTimeout="lots", bufferByte="1")
    assert len(caught.value.faults) == 2


def test_a_source_has_a_name_from_spark_4_2() -> None:
    spark = Client()
    if SPARK_VERSION >= (4, 2):
        assert streamed(spark, name="orders") == {}
        assert spark.name_of_source == "orders"
    else:
        said = "kinesis_efo.read_stream got name='orders': Spark has names of sources since 4.2; leave it out on this version"
        with raises(ConfigurationError, said):
            streamed(spark, name="orders")


def test_a_pipeline_only_describes_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SimpleNamespace(get_active_graph_element_registry=object)
    monkeypatch.setitem(sys.modules, "pyspark.pipelines.graph_element_registry", registry)
    spark = Client()
    del spark.dataSource, spark.conf
    assert streamed(spark, bufferBytes="64m") == {"bufferBytes": "64m"}
    with pytest.raises(OptionsError):
        streamed(spark, bufferBytes="lots")
    with raises(
        ConfigurationError,
        "kinesis_efo.read_stream got fetchers=2 in a pipeline, but only a program in the driver can start "
        "fetchers: leave it out, and one fetcher on the driver's host reads all streams",
    ):
        streamed(spark, fetchers=2)


def test_connect_clients_cannot_start_fetchers() -> None:
    with pytest.raises(ConfigurationError, match="fetchers=2 in a client of Spark Connect"):
        streamed(Client(), fetchers=2)


# -- batch reads


def batch(**arguments: Any) -> BatchOptions:
    found: Any = read(Client(), manifest="m.json", **arguments)  # type: ignore[arg-type]
    return BatchOptions.parse(found)


@pytest.mark.parametrize(
    "moment",
    [
        "2023-11-15T08:00:00Z",
        " 2023-11-15T09:00+01:00",
        "1700035200000",
        datetime(2023, 11, 15, 8, tzinfo=UTC),
        datetime(2023, 11, 15, 3, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_times_with_a_zone_become_positions(moment: datetime | str) -> None:
    since, until = batch(since=moment), batch(until=moment)
    assert (since.starts.of("orders"), since.source.ends.of("orders")) == (EIGHT, None)
    assert (until.starts.of("orders"), until.source.ends.of("orders")) == (TRIM_HORIZON, EIGHT)


def test_timedelta_is_before_now_and_a_duration() -> None:
    (start,) = {batch(since=timedelta(minutes=15)).starts.of("orders")}
    assert start.value / 1000 == pytest.approx(time.time() - 900, abs=60)
    given = streamed(Client(), since=datetime(2023, 11, 15, 8, tzinfo=UTC), leaseTimeout=timedelta(seconds=1.5))
    assert given == {"startingPosition": "AT_TIMESTAMP:1700035200000", "leaseTimeout": "1500ms"}


@pytest.mark.parametrize("moment", ["2023-11-15T08:00:00", datetime(2023, 11, 15, 8)])  # noqa: DTZ001
def test_time_without_zone_is_refused(moment: datetime | str) -> None:
    said = (
        f"kinesis_efo.read: since must include its time zone, as 2023-11-15T08:00:00Z does for UTC; got {str(moment)!r}"
    )
    with raises(ConfigurationError, said):
        batch(since=moment)


@pytest.mark.parametrize(
    ("moment", "meant"),
    [
        *((moment, ".") for moment in ("LATEST", "yesterday", "")),
        *(
            (moment, f": {moment} is no time of this century in milliseconds; did you mean {meant}?")
            for moment, meant in (
                ("20231115", "1700006400000, which is 2023-11-15T00:00:00Z"),
                (1700035200, "1700035200000, which is 2023-11-15T08:00:00Z"),
            )
        ),
    ],
)
def test_other_times_are_refused_with_a_remedy(moment: object, meant: str) -> None:
    said = (
        f"kinesis_efo.read: since must be a datetime, a timedelta, or a time such as 2026-11-20T08:00:00Z; got {moment!r}{meant} "
        "Other positions go into startingPosition and endingPosition"
    )
    with raises(ConfigurationError, said):
        batch(since=moment)


@pytest.mark.parametrize("name", ["startingPosition", "startingposition"])
def test_two_starts_are_refused(name: str) -> None:
    with raises(
        ConfigurationError, "kinesis_efo.read got since='2023-11-15T08:00Z' and startingPosition; give one of the two"
    ):
        batch(since="2023-11-15T08:00Z", **{name: "TRIM_HORIZON"})


def test_connect_clients_ask_the_server_for_the_tip() -> None:
    options = batch(streams=["orders", "clicks"], maxShardRate="2m").source
    assert (options.streams, options.shard_rate) == (("orders", "clicks"), 2 << 20)
    assert (options.loaded, options.clock) == (SERVER_MILLIS, False)
    assert batch(until="2023-11-15T08:00Z").source.loaded is None, "the end is known"


# -- discovery


@both
def test_only_an_undiscovered_source_is_registered(open_source: Callable[..., Any], there: str) -> None:
    spark = Driver("DATA_SOURCE_NOT_FOUND")
    assert open_source(spark, manifest=there)["manifest"] == there
    assert spark.registered == [KinesisEfoSource]
    other = Driver("SOMETHING_ELSE")
    with pytest.raises(AnalysisException, match="SOMETHING_ELSE"):
        open_source(other, manifest=there)
    assert other.registered == []


@both
def test_a_missing_manifest_is_reported_before_spark_loads(open_source: Callable[..., Any], tmp_path: Path) -> None:
    spark = Driver("DATA_SOURCE_NOT_FOUND")
    with pytest.raises(ManifestError):
        open_source(spark, manifest=str(tmp_path / "none.json"))
    assert spark.registered == []


def test_registering_twice_is_no_error() -> None:
    def answering(condition: str) -> Any:
        def refuse(_: object) -> None:
            raise AnalysisException(f"[{condition}] Failed to register the data source.")

        return SimpleNamespace(dataSource=SimpleNamespace(register=refuse))

    register(answering("DATA_SOURCE_ALREADY_EXISTS"))
    with pytest.raises(AnalysisException, match="SOMETHING_ELSE"):
        register(answering("SOMETHING_ELSE"))
