"""Reads the ranges of one Spark task of a batch read concurrently, with GetRecords at a limited rate per shard. Records are fetched in a
separate thread, while the task's thread decodes them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
from aiobotocore.config import AioConfig

from kinesis_efo.aws import AsyncClients
from kinesis_efo.batch.ending import Completion, first_position, rows_of
from kinesis_efo.batch.ranges import BatchRange, dated, trimmed, unlisted
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.decisions.lineage import announced
from kinesis_efo.decisions.losses import Facts
from kinesis_efo.errors import DataLossError, KinesisEfoError, StreamReplacedError, first_of
from kinesis_efo.kinesis.bounds import instant
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.faults import report_loss
from kinesis_efo.kinesis.polling import POLLING_CONFIG, Pace, PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology, explained
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import Deaggregation, SourceOptions
from kinesis_efo.patience import Patience
from kinesis_efo.positions import SHARD_END, Position, PositionKind, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import ChildShard, Event, last_arrival
from kinesis_efo.units import format_size

logger = logging.getLogger(__name__)

WORD_SECONDS: Final = 10.0
"""Seconds between two log lines about the progress of each shard."""

CALLS_PER_MEBIBYTE: Final = 2
"""GetRecords calls per MiB. At the default `maxShardRate` of 1 MiB/s, this is less than half of Kinesis' limit of five per second."""

_LARGEST_ANSWER: Final = 4 << 20
_AT_TIP_SECONDS: Final = 0.5
_WAITING_EVENTS: Final = 2
_REPLACED_SECONDS: Final = 10.0
"""Deleting and recreating a stream takes longer than this many seconds, so tasks that begin sooner after planning do not check for it."""
_CERTAIN_SECONDS: Final = KINESIS_LIMITS.shortest_retention - 600.0
"""Shards younger than this many seconds are not checked for losses: no record can have expired, even with AWS' maximum clock skew."""


class RangeEvent(NamedTuple):
    """An event with records. `after` is the position up to which the shard was read before the event."""

    part: BatchRange
    after: Position
    event: Event


@dataclass(slots=True)
class RangeProgress:
    """How far a shard's range was read, for the log."""

    part: BatchRange
    rows: int = 0  # Number of delivered rows
    records: int = 0  # Number of fetched Kinesis records, including records before and after the range
    bytes: int = 0  # Size of the fetched events in bytes
    arrived: float | None = None  # When the last fetched record arrived in the stream, epoch milliseconds

    def add(self, event: Event) -> None:
        self.records += event.head.records
        self.bytes += len(event.payload)
        if event.head.records:
            self.arrived = last_arrival(event.payload)

    def __str__(self) -> str:
        at = f", at {instant(self.arrived / 1000)}" if self.arrived is not None else ""
        until = f" of {instant(self.part.until / 1000)}" if self.part.until is not None else ""
        fetched = f"{self.records:,} records fetched, {format_size(self.bytes)}{at}{until}"
        return f"{self.part.key}: {self.rows:,} rows of {fetched}"


def pace_of(rate: int) -> Pace:
    """Return the pace of GetRecords calls for a rate in bytes per second.

    >>> pace_of(1 << 20).call_seconds
    0.5
    """
    return Pace(
        call_seconds=(1 << 20) / rate / CALLS_PER_MEBIBYTE,
        bytes_per_second=rate,
        answer_bytes=min(rate, _LARGEST_ANSWER),
    )


class _Complete(Exception):
    """Raised to end a subscription when all rows of a shard's range have been read."""


@dataclass
class _RangeSink:
    """Receives the events of one shard until its range is complete; implements `EventSink`."""

    room = Unlimited()
    committed = None
    progress: RangeProgress
    completion: Completion
    server_time: Callable[[], float]
    take: Callable[[RangeEvent], Awaitable[None]]
    clock: Clock
    after: Position  # How far the shard has been read
    begins: Callable[[BatchRange], Awaitable[None]] | None = None
    children: tuple[ChildShard, ...] = ()

    async def admit(self, event: Event) -> None:
        # Check completeness before any await: a later response would change the result of `server_time`.
        complete = self.completion.after(event, self.server_time(), self.clock.monotonic())
        self.progress.add(event)
        self.children = event.head.children
        if self.begins is not None:
            await self.begins(self.progress.part)
            self.begins = None
        if event.head.records:
            await self.take(RangeEvent(self.progress.part, self.after, event))
        if not event.head.still:
            self.after = event.through
        if complete:
            raise _Complete


_REMEDY: Final = (
    "Read from a later start (`since`), or set kinesis-efo option 'failOnDataLoss' to false to continue without them"
)


async def read_range(
    stream: Stream,
    progress: RangeProgress,
    server_time: Callable[[], float],
    take: Callable[[RangeEvent], Awaitable[None]],
    clock: Clock,
    *,
    patience: float,
    fail_on_data_loss: bool,
    begins: Callable[[BatchRange], Awaitable[None]] | None = None,
) -> list[BatchRange]:
    """Read one shard's range to its end. Return the ranges to read next: those of child shards that are missing from the plan.

    Args:
        stream: The shard's stream, whose client reads only this shard.
        progress: The range to read; updated during the read.
        server_time: Returns the time of Kinesis' last response, epoch seconds.
        take: Receives the records; may wait.
        patience: The read fails after this many seconds of responses without progress.
        fail_on_data_loss: Whether to raise an error for lost records instead of logging a warning.
        begins: Checks the stream for losses. Awaited after the first response, before its records are passed to `take`.
    """
    part = progress.part
    if part.newest is not None and part.key.shard > part.newest:
        await stream.refresh(patient=True)
        part = progress.part = dated(part, stream.lineage.shards)
        if part.is_empty:
            if begins is not None:
                await begins(replace(part, horizon=None))  # raises an error if the stream was recreated
            return []
    sink = _RangeSink(progress, Completion(part, patience), server_time, take, clock, part.start, begins)
    # Low watermark for the loss check: the start of the range, if it is a time. For a start at the trim horizon, use the current time,
    # because `begins` checks for earlier losses. For a start at a sequence number, use None: the number contains its time.
    from_horizon = part.start.kind is PositionKind.TRIM_HORIZON
    since = part.since / 1000 if part.since is not None else server_time() if from_horizon else None
    calls = 0

    async def may_open() -> None:
        nonlocal calls
        calls += 1
        if calls > 1 and sink.begins is not None:
            # On a retry, check the stream before the first response, which never arrives if the stream was recreated without this shard.
            await sink.begins(part)

    try:
        subscription = stream.subscribe(part.key.shard, first_position(part), sink, Facts(since), may_open)
        if part.last is not None:
            subscription.close_at(part.last, ())
        await subscription.run()
    except _Complete:
        pass
    except KinesisEfoError as error:
        if not isinstance(error, DataLossError) or not error.causes:
            raise error.about(*part.key)  # noqa: B904 - the same error
        if fail_on_data_loss:
            # Replace the remedy: it is for streaming queries, and mentions options that batch reads reject.
            raise DataLossError(error.causes[0], remedy=_REMEDY).about(*part.key) from error.__cause__
        logger.warning("%s; continuing without it, as set by option failOnDataLoss=false", error.causes[0])
        # Also read the children that the lost shard's last event would have announced or, if they are lost too, their descendants.
        await stream.refresh(patient=True)
        listed = stream.lineage.shards
        parents = {parent for each in listed for parent in each.parents if parent not in stream.lineage}
        if gone := sorted(parent for parent in parents if part.newest is not None and parent > part.newest):
            text = "stream %s: shards %s, which are newer than the plan, are gone, and so are their unlisted ancestors"
            logger.warning(text, part.key.stream, ", ".join(gone))
        return unlisted(part, announced(listed)) if part.last is None else []
    return unlisted(part, sink.children)


async def check_planned(
    lister: Topology,
    ref: StreamRef,
    source: str,
    clock: KinesisClock,
    part: BatchRange,
    *,
    again: bool,
    fail: bool,
) -> None:
    """Check whether the stream or records of a shard's range were deleted after planning. `clock` is set by the responses to `lister`.

    Raises `StreamReplacedError` if the stream was recreated. With `fail`, raises `DataLossError` if the trim horizon has moved more than
    ten minutes into the range. In a later attempt of a task (`again`), any move is an error: all attempts must return the same rows.
    """
    replaceable = part.stream_created is not None and clock.time() - part.planned > _REPLACED_SECONDS
    trimmable = part.horizon is not None and clock.time() - part.created >= _CERTAIN_SECONDS
    if not replaceable and not trimmable:
        return
    created, retention = await explained(lister.summary(ref.stream_arn), ref, source)
    if part.stream_created not in (None, created):
        raise StreamReplacedError(
            f"shard {part.key}: {ref.stream_arn} (from {source}) was deleted and created again at {instant(created)}, after the "
            f"read was planned at {instant(part.planned)}; read again for the records of the new stream"
        )
    horizons = clock.time() - retention, clock.latest - retention
    if not trimmable or (lost := trimmed(part, *horizons, again=again)) is None:
        return
    what = (
        f"shard {part.key}: the read was planned when the trim horizon was at {instant(lost.since)}, and begins when it is at "
        f"{instant(lost.horizon)}{', in another attempt of a task' if again else ''}: any records between the two are gone (retention)"
    )
    if lost.tolerated:
        logger.warning("%s", what)
    else:
        report_loss(what, fail=fail, remedy="A start (`since`) some hours after the trim horizon gives the tasks time")


class Reading:
    """Reads the rows of ranges, at most one range per shard.

    Args:
        left_out: Called with a shard and the number of its KPL aggregates that were dropped. If None, the number is logged.
        again: Whether this is a later attempt of a Spark task.
    """

    word_seconds = WORD_SECONDS

    def __init__(
        self,
        parts: Sequence[BatchRange],
        manifest: Manifest,
        options: SourceOptions,
        clock: Clock | None = None,
        left_out: Callable[[ShardKey, int], None] | None = None,
        *,
        again: bool = False,
    ) -> None:
        self._again = again
        self._progress = {part.key: RangeProgress(part) for part in parts}
        self._manifest = manifest
        self._options = options
        self._clock = clock or SystemClock()
        self._left_out = left_out

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the ranges. Batches of several shards may interleave; the rows of each shard are in order."""
        began = self._clock.monotonic()
        loop = asyncio.new_event_loop()
        portions: asyncio.Queue[RangeEvent | None] = asyncio.Queue(_WAITING_EVENTS)
        reading = loop.create_task(self._read(portions))
        thread = threading.Thread(target=loop.run_forever, name="kinesis-efo batch", daemon=True)
        thread.start()
        try:
            while (portion := asyncio.run_coroutine_threadsafe(portions.get(), loop).result()) is not None:
                yield from self._rows(portion)
            reading.result()
            # Log this here and not in `_read`, where the rows of the last events have not been counted yet.
            for each in self._progress.values():
                logger.debug("%s: complete after %.1f s", each, self._clock.monotonic() - began)
        finally:
            asyncio.run_coroutine_threadsafe(_end(reading), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _rows(self, portion: RangeEvent) -> Iterator[pa.RecordBatch]:
        part = portion.part
        through = part.end if part.end.kind is PositionKind.AFTER else SHARD_END
        for batch in decode(
            [portion.event.payload],
            part.key,
            portion.after,
            through,
            deaggregate=self._options.deaggregate is not Deaggregation.OFF,
            hash_range=part.hash_range if part.strict else None,
            left_out=self._left_out,
        ):
            if (rows := rows_of(part, batch)).num_rows:
                self._progress[part.key].rows += rows.num_rows
                yield rows

    async def _read(self, portions: asyncio.Queue[RangeEvent | None]) -> None:
        word = asyncio.create_task(self._log_progress())
        try:
            clients = AsyncClients(self._options.aws.of(self._manifest.application), self._manifest.region)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._read_one(clients, each, portions.put)) for each in self._progress.values()
                ]
            for task in tasks:
                # Raise the error of a cancelled task: the task group ignores it, but the rows of this shard are missing.
                task.result()
        except asyncio.CancelledError:
            # The iterator over the rows was closed, so make room in the queue for the final None.
            if portions.full():
                portions.get_nowait()
            raise
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        finally:
            word.cancel()
            await portions.put(None)

    async def _read_one(
        self, clients: AsyncClients, progress: RangeProgress, take: Callable[[RangeEvent], Awaitable[None]]
    ) -> None:
        """Read a range, then its unlisted children. Each range has its own clients, and `clock` is set only by responses to this range."""
        options, source = self._options, self._manifest.source
        ref = self._manifest.streams[progress.part.key.stream]
        fail = options.fail_on_data_loss
        # Do not warn about clock skew again: planning has already warned.
        clock, listed_at = KinesisClock(self._clock, warns=False), KinesisClock(self._clock, warns=False)
        config = AioConfig(**POLLING_CONFIG, max_pool_connections=2)
        async with await clients.open("kinesis") as control, await clients.open("kinesis", config) as reader:
            listed_at.watch(control)
            listed_at.watch(reader)
            clock.watch(reader)
            transport = PollingTransport(reader, clock, _AT_TIP_SECONDS, partial(pace_of, options.shard_rate))
            limits, lister = polling_limits(KINESIS_LIMITS, options.shard_rate), Topology(control, clock)
            stream = Stream(ref, transport, lister, options.retry, source, clock, limits, fail_on_data_loss=fail)
            patient = Topology(control, listed_at, Patience(options.retry, self._clock))
            more = await read_range(
                stream,
                progress,
                lambda: clock.answered,
                take,
                self._clock,
                patience=options.retry.timeout,
                fail_on_data_loss=fail,
                begins=partial(check_planned, patient, ref, source, listed_at, again=self._again, fail=fail),
            )
        for part in more:
            logger.info("%s was not listed when the read was planned: reading it after its parent", part)
            self._progress[part.key] = RangeProgress(part)
            await self._read_one(clients, self._progress[part.key], take)

    async def _log_progress(self) -> None:
        while True:
            await self._clock.sleep(self.word_seconds)
            for each in [*self._progress.values()]:
                logger.debug("%s", each)


async def _end(reading: asyncio.Task[None]) -> None:
    """Cancel a read, which cancels its subtasks, and wait for its end. Only then cancel the remaining tasks: a subtask that is cancelled
    twice would not close its clients."""
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
