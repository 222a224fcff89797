"""`kinesis_efo.read_stream` and `kinesis_efo.read`: load the source, and pass it session properties such as the driver's address."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Unpack

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from kinesis_efo.driver.listener import listen
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.options import BatchOptions, SourceOptions
from kinesis_efo.options.keywords import BatchKeywords, StreamKeywords
from kinesis_efo.options.source import BATCH, CLOCK, CORES, DRIVER_HOST, LISTENS, LOADED, PROGRAM, SUPERVISOR, TIMES
from kinesis_efo.spark.source import NAME, KinesisEfoSource
from kinesis_efo.tasks.compat import SPARK_VERSION, in_pipeline
from kinesis_efo.units import NotMillisecondsError, NoZoneError, parse_time

logger = logging.getLogger(__name__)

_SESSION_TIMEOUT: Final = "spark.connect.session.manager.defaultSessionTimeout"
_alive: Final[set[str]] = set()
"""Ids of the Spark Connect sessions that `keep_alive` currently keeps alive."""


def read_stream(
    spark: SparkSession,
    *,
    manifest: str | None = None,
    streams: str | Sequence[str] | None = None,
    name: str | None = None,
    since: datetime | timedelta | str | None = None,
    **options: Unpack[StreamKeywords],
) -> DataFrame:
    """Read the streams of an application as a streaming DataFrame.

    Like `spark.readStream.format("kinesis-efo")`, but also works if Spark's discovery of data sources is off, and passes the driver's
    address to the fetcher. In a classic session, it also reports each finished micro-batch, so that the lease table includes the last
    micro-batch of a stopped query.

    It validates the options before Spark receives them and, in a classic session, the manifest as well. In a function of a Declarative
    Pipeline, it only describes the read, and Spark must discover the source.

    Args:
        spark: The session.
        manifest: A path, `ssm:///name` or `s3://bucket/key`.
        streams: Logical names of the streams to read, as a sequence or separated by commas; `*` reads all streams of the manifest.
        name: The source's name in the checkpoint: letters, digits and `_`. If sources have names and the setting
            `spark.sql.streaming.queryEvolution.enableSourceEvolution` is on, a restart may add and remove sources. Requires Spark 4.2.
        since: Where a new query starts, instead of `startingPosition`; see `read`.
        options: Any other options of the source. For example, `fetchers=8` fetches in eight Spark tasks while the query runs. To pass a
            dict, type it as `StreamKeywords`, or as `dict[str, Any]` if it comes from a file or the command line.

    Raises:
        OptionsError: Options are invalid; the message lists all of them.
        ManifestError: In a classic session: the manifest cannot be loaded, or lacks something that the options refer to.
        ConfigurationError: Fetchers would occupy all cores or are not supported (in a Spark Connect client or a Declarative Pipeline);
            this Spark version does not support `name`; or `since` is invalid or given twice.
        AnalysisException: In a Spark Connect session: the manifest is wrong; `kinesis_efo.cause` returns the original error.

    ```python
    df = kinesis_efo.read_stream(
        spark, manifest="ssm:///kinesis-efo/dev/lake", streams=["orders"], bufferBytes="512m"
    )
    ```
    """
    if name is not None and SPARK_VERSION < (4, 2):
        raise ConfigurationError(
            f"kinesis_efo.read_stream got name={name!r}: Spark has names of sources since 4.2; leave it out on this version"
        )
    given, _ = _with_times("kinesis_efo.read_stream", dict(_texts(manifest, streams, options)), since=since)
    # Validate the options before starting the supervisor, which starts fetchers. The option with its socket's path gets a placeholder.
    checked = {**given, SUPERVISOR: "not yet"}
    fetchers = SourceOptions.parse(checked).fetchers
    if fetchers is not None and (in_pipeline() or not _is_driver(spark)):
        where = "a pipeline" if in_pipeline() else "a client of Spark Connect"
        raise ConfigurationError(
            f"kinesis_efo.read_stream got fetchers={fetchers} in {where}, but only a program in the driver can start fetchers: leave it "
            "out, and one fetcher on the driver's host reads all streams"
        )
    if not in_pipeline():
        if _is_driver(spark):
            KinesisEfoSource(checked).schema()
        else:
            register(spark)
            # Identify this program by its session id, because one Spark Connect server runs the queries of several programs.
            if session := getattr(spark, "session_id", None):
                given[PROGRAM] = session
            if session is not None and session not in _alive:
                logger.warning(
                    "Spark Connect stops the queries of this session if its client makes no call for %s (%s); call "
                    "kinesis_efo.keep_alive(spark), or raise that setting on the server",
                    spark.conf.get(_SESSION_TIMEOUT, "60m"),
                    _SESSION_TIMEOUT,
                )
        if listen(spark):
            given[LISTENS] = "true"
        if host := _driver_host(spark):
            given[DRIVER_HOST] = host
        if fetchers is not None:
            from kinesis_efo.driver.supervisor import supervisor_of

            given[SUPERVISOR] = supervisor_of(spark, fetchers).path
    reader = spark.readStream.format(NAME)
    if name is not None:
        reader = reader.name(name)
    return _loaded(spark, reader.options(**given))


def read(
    spark: SparkSession,
    *,
    manifest: str | None = None,
    streams: str | Sequence[str] | None = None,
    since: datetime | timedelta | str | None = None,
    until: datetime | timedelta | str | None = None,
    **options: Unpack[BatchKeywords],
) -> DataFrame:
    """Read the records that arrived from `since` to `until` (exclusive) as a DataFrame.

    Needs neither a consumer nor leases, and does not affect running queries. Every action on the DataFrame reads the same records. Without
    `until`, the read ends with the newest records at the time of this call. Like `spark.read.format("kinesis-efo")`, but also works if
    Spark's discovery of data sources is off.

    Args:
        spark: The session.
        manifest: A path, `ssm:///name` or `s3://bucket/key`.
        streams: Logical names of the streams to read, as a sequence or separated by commas; `*` reads all streams of the manifest.
        since: The start: a `datetime` or an ISO 8601 string, both with a time zone, or a `timedelta` before now. Defaults to the trim
            horizon.
        until: The end (exclusive), in the same format. Defaults to the newest records.
        options: Any other options of the source. To pass a dict, type it as `BatchKeywords`.

    Raises:
        OptionsError: Options are invalid; the message lists all of them.
        ManifestError: In a classic session: the manifest cannot be loaded, or lacks something that the options refer to.
        StreamError: In a classic session, for a read without `until`: a stream is missing, or Kinesis denies the call or does not respond.
        ConfigurationError: A time cannot be parsed, lacks a time zone, or is given twice.
        AnalysisException: In a Spark Connect session: the manifest is wrong; `kinesis_efo.cause` returns the original error.

    ```python
    df = kinesis_efo.read(
        spark,
        manifest="ssm:///kinesis-efo/dev/lake",
        streams="orders",
        since="2026-11-20T08:00Z",
        until="2026-11-20T09:00Z",
    )
    ```
    """
    given, times = _with_times("kinesis_efo.read", dict(_texts(manifest, streams, options)), since=since, until=until)
    hints = {BATCH: "true"} | ({TIMES: ",".join(times)} if times else {})
    ends = BatchOptions.parse({**given, **hints}).source.ends
    if not in_pipeline():
        at_tips = None in (ends.everywhere, *ends.streams.values(), *ends.shards.values())
        # Determine the end of the read once: for each action, Spark Connect loads the source again, and Spark 4.0 plans the read again.
        if _is_driver(spark):
            hints[CORES] = str(spark.sparkContext.defaultParallelism)
            source = KinesisEfoSource({**given, **hints})
            if at_tips:
                hints[LOADED] = str(source.kinesis_time())
            else:
                source.schema()
        else:
            register(spark)
            if at_tips:
                told = spark.read.format(NAME).options(**given, **hints, **{CLOCK: "true"}).load().first()
                assert told is not None, "the source returns one row"
                hints[LOADED] = str(told["subSequenceNumber"])
    return _loaded(spark, spark.read.format(NAME).options(**given, **hints))


def register(spark: SparkSession) -> None:
    """Register the source with a session if necessary, so that `format("kinesis-efo")` works even if Spark's discovery is off."""
    try:
        spark.dataSource.register(KinesisEfoSource)
    except AnalysisException as error:
        # Spark 4.0 raises this error if it has already discovered the source. (Spark 4.3 registers it again.)
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _loaded(spark: SparkSession, reader: DataFrameReader | DataStreamReader) -> DataFrame:
    """Load the source, and register it only if Spark does not discover it.

    If the source is both discovered and registered, Spark 4.3 logs a warning, and logs it again whenever the session is cloned.
    With Spark Connect, `load` does not report a missing source, so the callers have already registered it.
    """
    try:
        return reader.load()
    except AnalysisException as error:
        if in_pipeline() or "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
    register(spark)
    return reader.load()


def _texts(
    manifest: str | None, streams: str | Sequence[str] | None, options: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Yield the options' names and values. The values are strings, the only type that Spark passes to a source."""
    if manifest is not None:
        yield "manifest", manifest
    if streams is not None:
        yield "streams", streams if isinstance(streams, str) else ",".join(streams)
    for name, value in options.items():
        text = f"{value // timedelta(milliseconds=1)}ms" if isinstance(value, timedelta) else str(value)
        # Accept `_` for the dots in option names of version 0.1: keyword arguments cannot contain dots.
        yield name.replace("_", "."), text.lower() if isinstance(value, bool) else text


def _with_times(
    caller: str, given: dict[str, str], **times: datetime | timedelta | str | None
) -> tuple[dict[str, str], list[str]]:
    """Add the positions for `since` and `until` to the options. Returns the options, and the names of the arguments that are set."""
    arguments = [argument for argument, value in times.items() if value is not None]
    for argument in arguments:
        name, value = {"since": "startingPosition", "until": "endingPosition"}[argument], times[argument]
        if name.lower() in map(str.lower, given):
            raise ConfigurationError(f"{caller} got {argument}={str(value)!r} and {name}; give one of the two")
        try:
            moment = parse_time(str(datetime.now(UTC) - value if isinstance(value, timedelta) else value))
        except NoZoneError as error:
            raise ConfigurationError(f"{caller}: {argument} {error}; got {str(value)!r}") from None
        except ValueError as error:
            hint = f": {error}" if isinstance(error, NotMillisecondsError) else "."
            raise ConfigurationError(
                f"{caller}: {argument} must be a datetime, a timedelta, or a time such as 2026-11-20T08:00:00Z; got {value!r}{hint} "
                "Other positions go into startingPosition and endingPosition"
            ) from None
        given[name] = f"AT_TIMESTAMP:{moment}"
    return given, arguments


def keep_alive(spark: SparkSession, *, seconds: float = 300.0) -> Callable[[], None]:
    """Keep an idle Spark Connect session from timing out while this process runs. Does nothing for a classic session.

    Otherwise, Spark Connect stops an idle session's queries after `spark.connect.session.manager.defaultSessionTimeout`.

    Args:
        spark: The session.
        seconds: Interval of the calls to the server.

    Returns:
        A function that stops these calls.

    ```python
    kinesis_efo.keep_alive(spark)
    ```
    """
    ended, session = threading.Event(), str(getattr(spark, "session_id", None))

    def call() -> None:
        while not ended.wait(seconds) and not spark.is_stopped:  # type: ignore[attr-defined]
            try:
                spark.conf.get(_SESSION_TIMEOUT, None)
            except Exception as error:  # any gRPC or Spark error
                logger.warning("cannot reach Spark Connect to keep the session alive: %s; trying again", error)

    if not _is_driver(spark):
        _alive.add(session)
        threading.Thread(target=call, name="kinesis-efo keep alive", daemon=True).start()

    def end() -> None:
        ended.set()
        _alive.discard(session)

    return end


def _is_driver(spark: SparkSession) -> bool:
    """Whether this process is the driver, with the driver's files, role and network. False in a Spark Connect client."""
    return isinstance(spark, SparkSession)


def _driver_host(spark: SparkSession) -> str | None:
    """Return the host name or address at which executors reach the driver; None if unknown."""
    master = spark.conf.get("spark.master", None) or ""
    # Exclude `local-cluster`: its executors are separate processes, which may reach the driver at another address.
    if master.startswith("local") and not master.startswith("local-cluster"):
        return "localhost"
    return spark.conf.get("spark.driver.host", None)
