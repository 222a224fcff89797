"""The sink `kinesis-efo`: writes streaming and batch DataFrames to Kinesis.

Delivery is at least once: a task succeeds when Kinesis has acknowledged every record of its partition, and a retried task writes its
records again. To deduplicate, compute an id in the query (for rows of the source, from `stream`, `shardId`, `sequenceNumber` and
`subSequenceNumber`), add the id to the data, and drop repeated ids in the consumer.

The documentation of the sink's options is generated from `SINK_OPTIONS`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from kinesis_efo.arns import STREAM_ARN, STREAM_NAME
from kinesis_efo.aws import SyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import ConfigurationError, OptionsError, RecordRefusedError, StreamNotFoundError
from kinesis_efo.manifest import load_manifest
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import AwsSettings, RetrySettings
from kinesis_efo.options import readers as read
from kinesis_efo.options.settings import AWS_OPTIONS, MANIFEST_OPTION, METRICS_OPTIONS, OBSOLETE_OPTIONS
from kinesis_efo.options.table import Option, OptionTable
from kinesis_efo.patience import Patience
from kinesis_efo.producer import Producer, ProducerMetrics, ProducerSettings, PutArguments
from kinesis_efo.producer.service import region_of
from kinesis_efo.producer.settings import BOUNDS

logger = logging.getLogger(__name__)

_COLUMNS = {
    "data": ("binary or string", (BinaryType, StringType)),
    "partitionKey": ("string", (StringType,)),
    "explicitHashKey": ("string", (StringType,)),
    "stream": ("string", (StringType,)),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The sink's options, parsed and validated.

    >>> SinkOptions.parse({"stream": "orders", "linger": "soon"})
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.OptionsError: kinesis-efo sink option 'linger' must be a duration such as 100ms, up to 60s; got 'soon'
    """

    manifest: str | None = None
    stream: str | None = None
    producer: ProducerSettings = field(default_factory=ProducerSettings)
    aws: AwsSettings = field(default_factory=AwsSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options that Spark passes to the sink. Option names are case-insensitive."""
        return _TABLE.parse(options)


_RANGES: Final = {name: (least, most) for name, (least, most, _) in BOUNDS.items()}
# `retryTimeout` rejects numbers up to 999 without a unit: as milliseconds, they would make a task fail after one throttled request.
SINK_OPTIONS: Final = (
    MANIFEST_OPTION,
    Option("stream", read.text, "the name of a stream; without a manifest, also its ARN", "the manifest's stream, if it has only one",
           "target of rows whose column `stream` is missing or null", "stream"),
    Option("maxOutstandingRecords", read.bounded(read.integer, *_RANGES["max_outstanding_records"]),
           "a whole number of records, at least 1", "`20000`",
           "maximum unacknowledged records of a task; then the task waits", "producer.max_outstanding_records"),
    Option("maxOutstandingBytes", read.bounded(read.size, *_RANGES["max_outstanding_bytes"]), "a size such as 64m, at least 1k", "`64m`",
           "maximum unacknowledged bytes of a task; not below the largest record's size", "producer.max_outstanding_bytes"),
    Option("linger", read.duration(*_RANGES["linger"]), "a duration such as 100ms, up to 60s", "`100ms`",
           "how long a record waits for others to fill its request", "producer.linger"),
    Option("maxInFlight", read.bounded(read.integer, *_RANGES["max_in_flight"]), "a whole number of requests, 1 to 256", "`8`",
           "requests of a task that may be in flight", "producer.max_in_flight"),
    Option("ordered", read.flag, "true or false", "`false`",
           "keep the order of rows with the same partition key within a task", "producer.ordered"),
    Option("aggregate", read.flag, "true or false", "`false`",
           "pack rows into KPL aggregates, which readers must unpack", "producer.aggregate"),
    Option("aggregateBytes", read.bounded(read.size, *_RANGES["aggregate_bytes"]), "a size from 1k to 1m", "`50k`",
           "size of the largest aggregate", "producer.aggregate_bytes"),
    Option("failOnError", read.flag, "true or false", "`true`",
           "fail on a record that can never be written; if false, log and skip it", "producer.fail_on_error"),
    Option("retryTimeout", read.duration(*_RANGES["retry_timeout"], 999), "a duration such as 5m, 100ms to 1d", "`5m`",
           "a task fails if all attempts for a shard fail for this long", "producer.retry_timeout"),
    *AWS_OPTIONS,
    *METRICS_OPTIONS,
)  # fmt: skip
_TABLE: Final = OptionTable(
    "kinesis-efo sink",
    SinkOptions,
    (*SINK_OPTIONS, *OBSOLETE_OPTIONS),
    # Ignore these options, which Spark passes to the sink of each streaming query.
    ignored=("checkpointlocation", "queryname"),
    removed=("stallWarning", "backoffBase", "backoffMax", "backoff.baseMs", "backoff.maxMs"),
)


@dataclass(frozen=True, slots=True)
class Targets:
    """The streams to which rows can be written."""

    default: str | None  # The stream for rows without a stream name; None if every row must name a stream
    arns: Mapping[str, str] | None  # ARNs by logical name. None without a manifest: rows then contain names or ARNs
    source: str  # The option or manifest that lists the streams, for messages
    application: str = ""

    @classmethod
    def of(cls, options: SinkOptions, *, named_by_rows: bool) -> Targets:
        """Return the target streams that the options or the manifest define. Set `named_by_rows` if rows have a column `stream`."""
        if options.manifest is None:
            if options.stream is not None:
                region_of(options.stream, options.aws)
            elif not named_by_rows:
                raise OptionsError(["kinesis-efo sink needs option 'stream' or 'manifest', or a column 'stream'"])
            return cls(options.stream, None, "option 'stream'")
        load = partial(load_manifest, options.manifest, SyncClients(options.aws).client)
        manifest = Patience(RetrySettings(), SystemClock()).load(options.manifest, load).in_region(options.aws.region)
        arns = {name: stream.stream_arn for name, stream in manifest.streams.items()}
        names = ", ".join(map(repr, sorted(arns)))
        default = options.stream
        if default is None and len(arns) == 1:
            (default,) = arns
        if default not in arns and not (default is None and named_by_rows):
            got = "" if default is None else f"; got {default!r}"
            raise OptionsError(
                [f"kinesis-efo sink option 'stream' must be one of {names} (manifest {manifest.source}){got}"]
            )
        return cls(default, arns, f"manifest {manifest.source}", manifest.application)

    def target_of(self, name: str | None) -> str:
        """Return the name or ARN of the stream for rows with `name` in column `stream`. None and "" mean the default stream.

        Raises RecordRefusedError if there is no such stream. Callers prepend the row to the error's message, as in "row 7 ...".
        """
        wanted = name or self.default
        if wanted is None:
            raise RecordRefusedError("has null in column 'stream', and there is no default; set option 'stream'")
        if self.arns is not None:
            if wanted not in self.arns:
                names = ", ".join(map(repr, sorted(self.arns)))
                raise RecordRefusedError(f"names stream {wanted!r}; {self.source} has {names}")
            return self.arns[wanted]
        if not (STREAM_ARN.fullmatch(wanted) or STREAM_NAME.fullmatch(wanted)):
            raise RecordRefusedError(f"names stream {wanted!r}, which is neither a stream's name nor its ARN")
        return wanted


@dataclass
class WriteCounts(WriterCommitMessage):
    """How many records and bytes of a task Kinesis has acknowledged, and how many records the task skipped (`refused`)."""

    records: int
    bytes: int
    refused: int


def check_columns(schema: StructType) -> None:
    """Raise ConfigurationError if the sink cannot write a DataFrame with these columns."""
    faults = []
    given = {field.name: field.dataType for field in schema}
    if "data" not in given:
        faults.append("column 'data' (binary or string) is missing")
    for name, kind in given.items():
        if name not in _COLUMNS:
            faults.append(f"column '{name}' is not one of {', '.join(map(repr, _COLUMNS))}")
        elif not isinstance(kind, _COLUMNS[name][1]):
            faults.append(f"column '{name}' must be {_COLUMNS[name][0]}; got {kind.simpleString()}")
    if len(given) != len(schema.fields):
        faults.append(f"column names repeat: {', '.join(schema.fieldNames())}")
    if faults:
        raise ConfigurationError(f"kinesis-efo cannot write this DataFrame: {'; '.join(faults)}")


class KinesisWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes a batch DataFrame or a streaming query. Spark 4.0 only passes Arrow batches to a subclass of `DataSourceArrowWriter`."""

    def __init__(self, options: SinkOptions, targets: Targets) -> None:
        self.options = options
        self.targets = targets

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> Self:
        """Validate the save mode (`overwrite`), columns and options, and create a writer. Called on the driver before the tasks start."""
        if overwrite:
            raise ConfigurationError("kinesis-efo can only append: use mode('append') or outputMode('append')")
        check_columns(schema)
        parsed = SinkOptions.parse(options)
        targets = Targets.of(parsed, named_by_rows="stream" in schema.fieldNames())
        return cls(replace(parsed, aws=parsed.aws.of(targets.application)), targets)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteCounts:
        """Write one partition. Returns when Kinesis has acknowledged all of its records."""
        with Producers(self.options, self.targets) as producers:
            for batch in iterator:
                producers.put(batch)
            return producers.finish()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Log how many records and bytes the tasks have written, and how many records they have skipped."""
        done, what = _counts(messages), _name(batchId)
        records, size, refused = (sum(getattr(each, name) for each in done) for name in ("records", "bytes", "refused"))
        logger.info("%s: wrote %d records (%d bytes) to Kinesis", what, records, size)
        if refused:
            logger.error("%s: skipped %d records that can never be written (failOnError is off)", what, refused)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Log how many records were written before the job failed."""
        done = _counts(messages)
        logger.warning(
            "%s failed: %d of %d tasks had written %d records, which stay in Kinesis; a retry writes them again",
            _name(batchId),
            len(done),
            len(messages),
            sum(each.records for each in done),
        )


def _counts(messages: Sequence[WriterCommitMessage | None]) -> list[WriteCounts]:
    return [message for message in messages if isinstance(message, WriteCounts)]


def _name(batch: int | None) -> str:
    return "batch write" if batch is None else f"micro-batch {batch}"


@dataclass
class OpenProducer:
    """An open producer, which successive tasks of a Python worker reuse."""

    key: Hashable  # Identifies the producer in the pool: its target stream and options
    producer: Producer
    opened: float  # When the producer was opened, in monotonic seconds
    before: ProducerMetrics  # The producer's metrics before the current task


_MISSING_PAUSES: Final = (1.0, 3.0, 6.0)


@dataclass
class ProducerPool:
    """Keeps up to `most` open producers for later tasks of a Python worker: opening a producer needs calls that AWS limits per account.

    A producer is not reused after `seconds`, because the properties of its stream may have changed.
    """

    seconds: float = 300.0
    most: int = 8
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    producer: Any = Producer
    _kept: dict[Hashable, OpenProducer] = field(default_factory=dict)

    def acquire(self, target: str, options: SinkOptions) -> OpenProducer:
        """Remove a producer for `target` from the pool and return it, or open a new one."""
        kept = self._kept.pop((target, options), None)
        if kept is not None and self.clock() - kept.opened < self.seconds:
            kept.before = kept.producer.metrics
            return kept
        if kept is not None:
            kept.producer.abort()
        made = self._open(target, options)
        return OpenProducer((target, options), made, self.clock(), made.metrics)

    def _open(self, target: str, options: SinkOptions) -> Producer:
        """Open a producer. With `failOnError=false`, retry if its stream is missing, because rows of missing streams are skipped."""
        again = iter(() if options.producer.fail_on_error else _MISSING_PAUSES)
        while True:
            try:
                made: Producer = self.producer(
                    target, settings=options.producer, aws=options.aws, metrics=options.metrics
                ).open()
                return made
            except StreamNotFoundError:
                if (pause := next(again, None)) is None:
                    raise
                self.sleep(pause)

    def release(self, used: OpenProducer) -> None:
        """Return a producer to the pool. It must not have outstanding records."""
        while len(self._kept) >= self.most:
            self._kept.pop(next(iter(self._kept))).producer.abort()
        self._kept[used.key] = used

    def forget(self) -> None:
        """Drop the producers without closing them. Called in a forked process, in which their threads do not exist."""
        self._kept.clear()


_pool = ProducerPool()
os.register_at_fork(after_in_child=_pool.forget)


class Producers:
    """The producers of one task, one per stream. A producer is acquired from the pool at the first row for its stream."""

    def __init__(self, options: SinkOptions, targets: Targets) -> None:
        self._options = options
        self._targets = targets
        self._in_use: dict[str, OpenProducer] = {}
        self._by_name: dict[str | None, Producer] = {}
        self._missing: set[str] = set()
        self._rows = 0
        self._left_out = 0

    def put(self, batch: pa.RecordBatch) -> None:
        """Queue the rows of a batch. Blocks while too many records or bytes are outstanding."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing: Sequence[Any] = [None] * batch.num_rows
        keys, hash_keys, streams = (
            columns.get(name, nothing) for name in ("partitionKey", "explicitHashKey", "stream")
        )
        # Group rows by producer, not by name: rows with null or with the default stream's name have one producer, and must stay in order.
        rows: dict[Producer, list[PutArguments]] = defaultdict(list)
        # The row numbers within the task, for messages. A producer could not count them, because it only receives the rows of one stream.
        positions: dict[Producer, list[int]] = defaultdict(list)
        for data, key, hash_key, stream in zip(columns["data"], keys, hash_keys, streams, strict=True):
            producer = self._by_name.get(stream) or self._producer(stream)
            if producer is not None:
                # Treat an empty key as null: rows of the source may have empty keys, but Kinesis rejects them.
                rows[producer].append((data, key or None, hash_key or None))
                positions[producer].append(self._rows)
            self._rows += 1
        for producer, its_rows in rows.items():
            producer.put_many(its_rows, positions[producer])

    def finish(self) -> WriteCounts:
        """Wait until Kinesis has acknowledged every row, return the producers to the pool, and return the counts."""
        written = WriteCounts(0, 0, self._left_out)
        for used in self._in_use.values():
            used.producer.flush()
            metrics = used.producer.metrics
            written.records += metrics.records_written - used.before.records_written
            written.bytes += metrics.bytes_written - used.before.bytes_written
            written.refused += metrics.records_refused - used.before.records_refused
        for used in self._in_use.values():
            _pool.release(used)
        self._in_use.clear()
        return written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Producers are only left here if the task failed before `finish`. Do not wait for their records: Spark retries the whole task.
        for used in self._in_use.values():
            used.producer.abort()

    def _producer(self, name: str | None) -> Producer | None:
        """Return the producer for rows with `name` in column `stream`; None if such rows are skipped (`failOnError=false`)."""
        try:
            target = self._targets.target_of(name)
        except RecordRefusedError as error:
            refused = RecordRefusedError(f"row {self._rows} of this task {error}")
            if self._options.producer.fail_on_error:
                raise refused from None
            self._left_out += 1
            logger.error("skipped (failOnError is off): %s", refused)
            return None
        if target in self._missing:
            self._left_out += 1
            return None
        try:
            if target not in self._in_use:
                self._in_use[target] = _pool.acquire(target, self._options)
        except StreamNotFoundError as error:
            if self._options.producer.fail_on_error or (name or self._targets.default) == self._targets.default:
                raise
            self._missing.add(target)
            self._left_out += 1
            logger.error("row %d of this task and later ones skipped (failOnError is off): %s", self._rows, error)
            return None
        self._by_name[name] = self._in_use[target].producer
        return self._by_name[name]
