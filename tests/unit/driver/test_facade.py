"""What `read_stream` and `read` tell the source."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from kinesis_efo.driver import facade
from kinesis_efo.driver.facade import keep_alive, read, read_stream, register
from kinesis_efo.errors import ConfigurationError, ManifestError, OptionsError
from kinesis_efo.options import BatchOptions, SourceOptions
from kinesis_efo.options.source import DRIVER_HOST, LISTENS, PROGRAM
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.spark.source import KinesisEfoSource
from kinesis_efo.tasks.compat import SPARK_VERSION

pytestmark = pytest.mark.spark


class Spark:
    """A session that remembers the options of what is read; also its own reader."""

    def __init__(self, **conf: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in conf.items()}
        self.given: dict[str, str] = {}
        self.named: str | None = None
        self.dataSource = SimpleNamespace(register=lambda _: None)
        self.readStream = self

    def format(self, name: str) -> Spark:
        return self

    def name(self, name: str) -> Spark:
        self.named = name
        return self

    def options(self, **options: str) -> Spark:
        self.given = options
        return self

    def load(self) -> dict[str, str]:
        return self.given


def told(spark: Any, **options: object) -> dict[str, str]:
    found: Any = read_stream(spark, manifest="m.json", **options)
    SourceOptions.parse(found)
    return {name: value for name, value in found.items() if name != "manifest"}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_in_local_mode_all_is_on_this_host(master: str) -> None:
    assert told(Spark(spark_master=master, spark_driver_host="10.0.0.7")) == {DRIVER_HOST: "localhost"}


@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,1024]", "spark://m:7077", "yarn", "k8s://https://api", "custom:emr-serverless"]
)
def test_elsewhere_the_drivers_address_is_told(master: str) -> None:
    assert told(Spark(spark_master=master, spark_driver_host="10.0.0.7")) == {DRIVER_HOST: "10.0.0.7"}


def test_a_session_that_does_not_know_tells_nothing() -> None:
    assert told(Spark()) == {}


def test_a_session_of_spark_connect_is_told_from_others_of_its_server() -> None:
    session = Spark()
    session.session_id = "5f3c"  # type: ignore[attr-defined]
    assert told(session) == {PROGRAM: "5f3c"}


def test_connect_client_is_warned_unless_kept_alive(caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Event()

    class Conf(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "spark.connect.session.manager.defaultSessionTimeout" and default is None:
                calls.set()
            return super().get(name, default)

    session: Any = Spark()
    session.session_id, session.conf, session.is_stopped = "77aa", Conf(), False
    told(session)
    (warning,) = caplog.messages
    assert "makes no call for 60m" in warning
    assert "kinesis_efo.keep_alive(spark)" in warning
    end = keep_alive(session, seconds=0.01)
    told(session)
    assert len(caplog.messages) == 1
    assert calls.wait(60), "the server is called"
    end()
    told(session)
    assert len(caplog.messages) == 2


def test_queries_of_a_classic_session_share_with_all_of_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Spark()
    session.session_id = "5f3c"  # type: ignore[attr-defined]
    monkeypatch.setattr(facade, "_is_driver", lambda _: True)
    monkeypatch.setattr(facade.KinesisEfoSource, "schema", lambda _: None)
    assert told(session) == {}


@pytest.mark.parametrize("listens", [True, False])
def test_a_query_whose_micro_batches_the_driver_reports_is_told(monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    monkeypatch.setattr(facade, "listen", lambda _: listens)
    assert told(Spark()) == ({LISTENS: "true"} if listens else {})


def test_options_are_passed_on() -> None:
    given = told(
        Spark(spark_master="yarn"), streams=["a", "b"], catchUp=True, subscribe_maxRetries=3, fetcherHost="gateway"
    )
    assert given == {"streams": "a,b", "catchUp": "true", "subscribe.maxRetries": "3", "fetcherHost": "gateway"}


@pytest.mark.parametrize("open_source", [read_stream, read])
def test_wrong_options_are_told_all_together_before_spark_is_asked(open_source: Callable[..., object]) -> None:
    with pytest.raises(OptionsError) as caught:
        open_source(SimpleNamespace(), manifest="m.json", bufferBytes="lots", bufferByte="1")
    assert len(caught.value.faults) == 2


def test_a_source_has_a_name_if_spark_has_names() -> None:
    spark = Spark()
    if SPARK_VERSION >= (4, 2):
        assert told(spark, name="orders") == {}
        assert spark.named == "orders"
    else:
        with pytest.raises(ConfigurationError, match=r"got name='orders': Spark has names of sources since 4\.2"):
            told(spark, name="orders")


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definitions of a pipeline are run, in which nothing may be registered."""
    registry = SimpleNamespace(get_active_graph_element_registry=object)
    monkeypatch.setitem(sys.modules, "pyspark.pipelines.graph_element_registry", registry)


@pytest.mark.usefixtures("pipeline")
def test_in_a_pipeline_a_read_is_only_described() -> None:
    spark: Any = Spark(spark_master="local")
    del spark.dataSource, spark.conf
    assert told(spark, bufferBytes="64m") == {"bufferBytes": "64m"}
    with pytest.raises(OptionsError):
        told(spark, bufferBytes="lots")
    with pytest.raises(ConfigurationError, match="got fetchers=2 in a pipeline"):
        told(spark, fetchers=2)


def test_a_client_of_spark_connect_cannot_start_fetchers() -> None:
    with pytest.raises(ConfigurationError, match=r"got fetchers=2 in a client of Spark Connect, .*: leave it out"):
        told(Spark(), fetchers=2)


# -- batch reads

EIGHT = Position.at_timestamp(1_700_035_200_000)


SERVER_MILLIS = 1_700_000_000_123


class Reader:
    """Remembers the options of a batch read."""

    def format(self, name: str) -> Reader:
        return self

    def options(self, **options: str) -> Reader:
        self.given = options
        return self

    def load(self) -> Loaded:
        return Loaded(self.given)


class Loaded(dict[str, str]):
    """The options of a read, which returns the server's time if it is a read of that."""

    def first(self) -> dict[str, int]:
        assert self["session.clock"] == "true"
        assert "session.loaded" not in self
        return {"subSequenceNumber": SERVER_MILLIS}


def asked(**arguments: Any) -> BatchOptions:
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None), read=Reader())
    found: Any = read(spark, manifest="m.json", **arguments)
    return BatchOptions.parse(found)


@pytest.mark.parametrize(
    "moment",
    [
        "2023-11-15T08:00:00Z",
        " 2023-11-15T09:00+01:00",
        datetime(2023, 11, 15, 8, tzinfo=UTC),
        datetime(2023, 11, 15, 3, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_times_have_a_zone_and_become_positions(moment: datetime | str) -> None:
    assert asked(since=moment).starts.of("orders") == EIGHT
    assert asked(since=moment).source.ends.of("orders") is None
    assert asked(until=moment).starts.of("orders") == TRIM_HORIZON
    assert asked(until=moment).source.ends.of("orders") == EIGHT


@pytest.mark.parametrize("moment", ["2023-11-15T08:00:00", datetime(2023, 11, 15, 8)])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused(moment: datetime | str) -> None:
    with pytest.raises(
        ConfigurationError, match="since must say its time zone, as 2023-11-15T08:00:00Z does for UTC; got '2023-11-15"
    ):
        asked(since=moment)


@pytest.mark.parametrize("moment", ["LATEST", "yesterday", "1700035200000", ""])
def test_what_is_no_time_is_refused_with_where_positions_go(moment: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"until must be a datetime.* go into startingPosition and endingPosition"
    ):
        asked(until=moment)


@pytest.mark.parametrize("moment", ["1700035200", "1700035200.5", 1700035200, "1700035200000", "20231115"])
def test_a_number_is_answered_with_the_time_that_it_means(moment: object) -> None:
    with pytest.raises(ConfigurationError, match=r"since must be a datetime.*; did you mean 2023-11-15T0"):
        asked(since=moment)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ("kinesis-efo option 'startingPosition'", "kinesis-efo option 'endingPosition'")),
        ({"since": "2023-11-15T08:00Z"}, ("since", "kinesis-efo option 'endingPosition'")),
        ({"until": "2023-11-15T08:00Z"}, ("kinesis-efo option 'startingPosition'", "until")),
        ({"since": "2023-11-15T08:00Z", "until": "2023-11-15T09:00Z"}, ("since", "until")),
    ],
)
def test_messages_can_name_what_was_written(given: dict[str, str], names: tuple[str, str]) -> None:
    options = asked(**given)
    assert (options.start_name, options.end_name) == names


@pytest.mark.parametrize("name", ["startingPosition", "startingposition"])
def test_a_start_is_given_once(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match="got since='2023-11-15T08:00Z' and startingPosition; give one of the two"
    ):
        asked(since="2023-11-15T08:00Z", **{name: "TRIM_HORIZON"})


def test_streams_and_other_options_of_a_batch_read() -> None:
    options = asked(
        streams=["orders", "clicks"], batch_maxRate="2m", batch_shardsPerTask=16, failOnDataLoss=False
    ).source
    assert options.streams == ("orders", "clicks")
    assert (options.batch_rate, options.batch_shards_per_task, options.fail_on_data_loss) == (2 << 20, 16, False)


def test_client_asks_the_server_for_the_time_of_the_tip() -> None:
    assert asked().source.loaded == SERVER_MILLIS
    assert not asked().source.clock
    assert asked(until="2023-11-15T08:00Z").source.loaded is None, "the end is known"


# -- discovery


class Undiscovering(Reader):
    """Refuses to load what was not registered."""

    def __init__(self, condition: str) -> None:
        self.condition = condition
        self.registered: list[object] = []

    def load(self) -> dict[str, str]:
        if not self.registered:
            raise AnalysisException(f"[{self.condition}] Failed to find the data source: kinesis-efo.")
        return self.given


def session(reader: Undiscovering, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A classic session, in which manifests are not looked at."""
    monkeypatch.setattr(facade, "_is_driver", lambda _: True)
    monkeypatch.setattr(facade, "listen", lambda _: None)
    monkeypatch.setattr(KinesisEfoSource, "schema", lambda _: None)
    register = SimpleNamespace(register=reader.registered.append)
    return SimpleNamespace(dataSource=register, read=reader, readStream=reader, conf={"spark.master": "local"})


@pytest.mark.parametrize("open_source", [read_stream, read])
def test_what_spark_does_not_discover_is_registered(
    open_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Undiscovering("DATA_SOURCE_NOT_FOUND")
    spark = session(reader, monkeypatch)
    assert open_source(spark, manifest="m.json")["manifest"] == "m.json"
    assert reader.registered == [KinesisEfoSource]


@pytest.mark.parametrize("open_source", [read_stream, read])
def test_what_spark_discovers_is_not_registered_besides(
    open_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Undiscovering("SOMETHING_ELSE")
    with pytest.raises(AnalysisException, match="SOMETHING_ELSE"):
        open_source(session(reader, monkeypatch), manifest="m.json")
    assert reader.registered == []


@pytest.mark.parametrize("open_source", [read_stream, read])
def test_a_wrong_manifest_is_the_programs_exception_before_spark_is_asked(
    open_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Undiscovering("DATA_SOURCE_NOT_FOUND")
    spark = session(reader, monkeypatch)

    def refuse(_: object) -> None:
        raise ManifestError("m.json: there is no such file")

    monkeypatch.setattr(KinesisEfoSource, "schema", refuse)
    with pytest.raises(ManifestError, match="no such file"):
        open_source(spark, manifest="m.json")
    assert reader.registered == []


def test_only_a_source_that_is_registered_already_is_no_error() -> None:
    def answering(condition: str) -> Any:
        def refuse(_: object) -> None:
            raise AnalysisException(f"[{condition}] Failed to register the data source.")

        return SimpleNamespace(dataSource=SimpleNamespace(register=refuse))

    register(answering("DATA_SOURCE_ALREADY_EXISTS"))
    with pytest.raises(AnalysisException, match="SOMETHING_ELSE"):
        register(answering("SOMETHING_ELSE"))
