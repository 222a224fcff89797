"""Limits the outstanding records, sends them to Kinesis, and completes waiting puts and flushes.

Any thread may call `put` and `flush`. One lock guards the state that these threads share with the event loop, which sends the requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from random import Random
from typing import Any

from kinesis_efo.clock import Clock
from kinesis_efo.errors import ProducerClosedError, RecordRefusedError, StreamError, WriteError
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.producer.faults import judge
from kinesis_efo.producer.metrics import Counts, ProducerMetrics, StallWatch
from kinesis_efo.producer.queue import PutRecordsRequest, RecordQueue, RequestOutcome, Result
from kinesis_efo.producer.record import Data, Epoch, PutArguments, Record, SizeLimit, Written, make_record
from kinesis_efo.producer.routing import ShardMap, StreamTraits, shard_map, warn_of_consequences
from kinesis_efo.producer.service import KinesisService
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.records.distribution import Distribution

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""Minimum seconds between two loads of the shard map, to give ListShards time to return a new shard that PutRecords already uses."""
MOST_REFRESH_SECONDS = 60.0
"""Maximum seconds between two loads of the shard map. The pause doubles after each load that has not changed the map."""
REPLACED_SECONDS = 10.0
"""Seconds for which a shard map is valid: re-creating a stream takes longer. An older map is reloaded to check where aggregates are."""
RECHECK_SECONDS = 300.0
"""Seconds between two checks of whether Kinesis distributes records regardless of keys. PutRecords responses do not show a change."""
_BATCH_BYTES = 1 << 20
"""A batch of `make_records` ends once its records have at least this many bytes."""


@dataclass(eq=False, slots=True)
class Wait:
    """A put that is waiting for capacity."""

    records: list[Record]  # The put's records that are not queued yet, in order
    since: float  # When the put began, in monotonic seconds
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Left:
    """The outstanding records: their number, and their size in bytes."""

    records: int = 0
    bytes: int = 0


class Engine:
    """The core of an open producer: queues records, and sends them on the event loop on which it was created."""

    def __init__(
        self,
        stream: str,
        service: KinesisService,
        shards: ShardMap,
        traits: StreamTraits,
        settings: ProducerSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        self._stream = stream
        self._service = service
        self._settings = settings
        self._clock = clock
        self._random = random
        self.loop = asyncio.get_running_loop()
        self._limit = SizeLimit(traits.max_record_bytes)
        if settings.max_outstanding_bytes < traits.max_record_bytes:
            self._limit = SizeLimit(
                settings.max_outstanding_bytes, "'max_outstanding_bytes' allows", "'max_outstanding_bytes'"
            )
        self._queue = RecordQueue(stream, settings, shards, self._limit.bytes, random)
        self._stall = StallWatch(settings.stall_warning, clock, self._stalled_on)
        self._counts = Counts()
        # Reentrant: a signal handler that interrupts the thread with the lock gets an error from `_check_signal` instead of a deadlock.
        self._lock = threading.RLock()
        self._puts = False
        self._left = _Left()
        self._unclosed = weakref.finalize(self, _log_unclosed, stream, os.getpid(), self._left)
        self._waits: deque[Wait] = deque()
        self._failure: StreamError | None = None
        self._closing = self._stopped = False
        self._positions = count()
        self._epoch = Epoch()
        self._flushes: deque[tuple[Epoch, Future[None]]] = deque()
        self._sent: set[Future[Written]] = set()
        self._unpumped_records = self._unpumped_bytes = 0
        self._due: set[Callable[[], None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_lock = asyncio.Lock()
        self._refresh_pause = REFRESH_SECONDS
        self._seen_at = clock.monotonic()
        retry = RetrySettings(max_ms=round(settings.backoff_max * 1000), timeout=settings.retry_timeout)
        self._patience = Patience(retry, clock, random.random)
        self._recheck: asyncio.TimerHandle | None = None
        warn_of_consequences(stream, traits, settings)
        self._look_again()

    # -- methods that any thread may call

    def check(self) -> None:
        """Raise an error if the producer does not accept records: the error that ended it, or ProducerClosedError."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._closing:
            raise self.closed_error()

    def check_end(self) -> None:
        """Raise an error if the closed producer has not written all of its records."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._left.records:
            raise ProducerClosedError(
                f"the producer for {self._stream} was closed before {self._left.records} records were acknowledged; put them again"
            )

    def closed_error(self) -> ProducerClosedError:
        """Return the error for a closed producer."""
        return ProducerClosedError(f"the producer for {self._stream} is closed; create another one")

    def _check_signal(self) -> None:
        if self._puts and self._failure is None:
            raise RuntimeError(
                f"a signal handler interrupted a put of the producer for {self._stream}, so it can neither put, flush nor close"
            )

    def make_record(
        self,
        data: Data,
        key: str | None,
        hash_key: str | int | None = None,
        *,
        position: int | None = None,
        sent: Future[Written] | None = None,
    ) -> Record | None:
        """Validate and create a record. Returns None for a record that can never be written if `fail_on_error` is off and `sent` is None.

        Args:
            position: The record's number in messages, by default its number among all records of this producer.
            sent: The future that `send` returns for this record.
        """
        self.check()
        if key is None:
            key = f"{self._random.getrandbits(64):016x}"
        try:
            record = make_record(
                data, key, hash_key, self._limit, next(self._positions) if position is None else position
            )
        except RecordRefusedError as refused:
            if self._settings.fail_on_error or sent is not None:
                raise
            with self._lock:
                self._counts.records_refused += 1
            self._log_left_out(refused)
            return None
        if sent is not None:
            sent.set_running_or_notify_cancel()  # another thread can no longer cancel the future
            record.sent = sent
            self._sent.add(sent)
        return record

    def make_records(
        self, given: Iterable[PutArguments], positions: Iterable[int] | None = None
    ) -> Iterator[list[Record]]:
        """Validate records and yield them in batches. If a record is refused, yields the records before it, then raises the error."""
        rest = iter(given)
        numbers = self._positions if positions is None else iter(positions)
        for first in rest:
            batch: list[Record] = []
            size = 0
            refused: Exception | None = None
            try:
                for one in chain((first,), islice(rest, MAX_REQUEST_RECORDS - 1)):
                    record = self.make_record(*one, position=next(numbers))
                    if record is not None:
                        batch.append(record)
                        size += record.size
                        if size >= _BATCH_BYTES:
                            break
            except Exception as error:
                refused = error
            if batch:
                yield batch
            if refused is not None:
                raise refused

    def put(self, records: Sequence[Record], waits: list[Wait]) -> None:
        """Queue records in order. If not all of them fit, append a wait for the rest to `waits`.

        The caller must call `withdraw` for the wait in a `finally` block, even if Ctrl-C interrupts this method.
        """
        with self._lock:
            self._check_signal()
            self.check()
            try:
                self._puts = True
                self._put(records, waits)
                self._puts = False
            except BaseException as error:
                # Fail the producer: if Ctrl-C has interrupted `_put`, counts may be wrong, and a flush could return too early.
                self._break(error)
                raise

    def withdraw(self, wait: Wait) -> None:
        """End a put's wait for capacity. Records of the put that are already queued remain queued."""
        with self._lock:
            if wait in self._waits:
                self._waits.remove(wait)
                self._end_wait(wait)
                self._admit_waiting()
                self._call(self._pump)

    def flush(self) -> Future[None] | None:
        """Send queued records now. Returns a future that completes once all earlier records are acknowledged; None if they already are."""
        with self._lock:
            self._check_signal()
            if self._failure is not None or self._stopped:
                self.check()
            if not self._epoch.count and not self._flushes:
                return None
            # Keep the future even if the caller is cancelled, so that the next flush also waits for these records.
            done: Future[None] = Future()
            self._flushes.append((self._epoch, done))
            self._epoch = Epoch()
            self._conclude_flushes()
            self._call(self._pump)
            return done

    def begin_closing(self) -> None:
        """Reject further records, and fail waiting puts."""
        with self._lock:
            self._check_signal()
            self._closing = True
            self._end_waits(self._failure or self.closed_error())

    def halt(self) -> None:
        """Stop sending, and fail all waiting puts and flushes, and the incomplete futures of `send`."""
        self.begin_closing()
        with self._lock:
            self._end_flushes(self.closed_error())
            self._stopped = True
            sent = [*self._sent]
        self._end_sent(sent, self._failure or self.closed_error())

    @property
    def full(self) -> bool:
        """Whether enough records to fill a request have been queued since requests were last sent."""
        return self._unpumped_records >= MAX_REQUEST_RECORDS or self._unpumped_bytes >= MAX_REQUEST_BYTES

    @property
    def metrics(self) -> ProducerMetrics:
        """The current counters and gauges."""
        with self._lock:
            waiting = sum(self._clock.monotonic() - wait.since for wait in self._waits)
            return self._counts.snapshot(self._left.records, self._left.bytes, waiting)

    # -- methods for the event loop's thread

    def give_up(self, why: str) -> None:
        """Fail the producer although records are outstanding. `why` is the reason, for the message."""
        with self._lock:
            self._fail(WriteError(f"the producer for {self._stream} gave up: {why}"))

    async def stop(self) -> None:
        """Stop the engine without waiting for outstanding records, and log how many there were."""
        self.halt()
        self._unclosed.detach()
        for handle in (self._timer, self._recheck):
            if handle is not None:
                handle.cancel()
        self._stall.stop()
        running = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._left.records:
            logger.warning(
                "producer for %s closed with %d records (%d bytes) that were put and not acknowledged",
                self._stream,
                self._left.records,
                self._left.bytes,
            )

    # -- helpers, called with the lock held

    def _put(self, records: Sequence[Record], waits: list[Wait]) -> None:
        now = self._clock.monotonic()
        for record in records:
            record.put_at = now
        admitted = 0 if self._waits else self._admit(records)
        if admitted < len(records):
            waits.append(Wait(list(records[admitted:]), now))
            self._waits.append(waits[-1])
            self._counts.waits += 1
        if waits or self.full:
            self._call(self._pump)
        elif self._queue.in_flight < self._settings.max_in_flight and self._is_later(self._settings.linger):
            self._call(self._linger)

    def _admit(self, records: Sequence[Record]) -> int:
        """Queue records in order until the limit for outstanding records or bytes is reached. Returns how many were queued."""
        room = self._settings.max_outstanding_records - self._left.records
        bytes_left = self._settings.max_outstanding_bytes - self._left.bytes
        admitted = size = 0
        for record in records:
            if admitted == room or size + record.size > bytes_left:
                break
            record.epoch = self._epoch
            admitted += 1
            size += record.size
        self._queue.add(records[:admitted])
        self._epoch.count += admitted
        self._left.records += admitted
        self._left.bytes += size
        self._unpumped_records += admitted
        self._unpumped_bytes += size
        return admitted

    def _admit_waiting(self) -> None:
        while self._waits:
            wait = self._waits[0]
            # Admit one record of each waiting put in turn, so that a small put does not wait for a large one.
            admitted = self._admit(wait.records if len(self._waits) == 1 else wait.records[:1])
            if not admitted:
                break
            del wait.records[:admitted]
            self._waits.rotate(-1)
            if not wait.records:
                self._end_wait(self._waits.pop())

    def _end_wait(self, wait: Wait, error: StreamError | None = None) -> None:
        self._counts.seconds_waited += self._clock.monotonic() - wait.since
        _end(wait.done, error)

    def _end_waits(self, error: StreamError) -> None:
        while self._waits:
            self._end_wait(self._waits[0], error)
            self._waits.popleft()

    def _conclude_flushes(self) -> None:
        # Complete the future before removing it: if Ctrl-C came between `popleft` and `_end`, the flush would wait forever.
        while self._flushes and not self._flushes[0][0].count:
            _end(self._flushes[0][1])
            self._flushes.popleft()

    def _end_flushes(self, error: StreamError) -> None:
        # Fail these futures but retain the entries: after an interrupted abort, a later flush must still wait for their records.
        for _, done in self._flushes:
            _end(done, error)

    def _eager(self) -> bool:
        return bool(self._flushes or self._waits)

    def _call(self, step: Callable[[], None]) -> None:
        """Schedule a function on the event loop's thread, unless it is already scheduled."""
        if step not in self._due:
            self._due.add(step)
            self.loop.call_soon_threadsafe(step)

    def _linger(self) -> None:
        with self._lock:
            self._due.discard(self._linger)
            if not self._stopped and self._is_later(self._settings.linger):
                self._set_timer(self._settings.linger)

    def _is_later(self, seconds: float) -> bool:
        """Whether the timer for the next request is not set, or fires in more than `seconds`."""
        return self._timer is None or self._timer.when() > self.loop.time() + seconds

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self._pump)

    def _pump(self) -> None:
        with self._lock:
            self._due.discard(self._pump)
            self._set_timer(None)
            if self._failure is None and not self._stopped:
                try:
                    self._send_due()
                except Exception as error:
                    self._break(error)

    def _send_due(self) -> None:
        self._unpumped_records = self._unpumped_bytes = 0
        now = self._clock.monotonic()
        eager = self._eager()
        if eager:
            self._stall.start()
        while self._queue.in_flight < self._settings.max_in_flight:
            request = self._queue.next_request(now, eager=eager)
            if request is None:
                break
            self._counts.requests += 1
            task = self.loop.create_task(self._send(request))
            self._tasks.add(task)
            task.add_done_callback(self._sent_or_cancelled)
        if self._queue.in_flight < self._settings.max_in_flight:
            due = self._queue.due_at(eager=eager)
            self._set_timer(None if due is None else due - now)

    def _conclude(self, settled: RequestOutcome) -> None:
        now = self._clock.monotonic()
        if settled.acknowledged:
            self._counts.records_written += len(settled.acknowledged)
            self._counts.bytes_written += sum([record.size for record in settled.acknowledged])
            self._counts.latency.add([now - record.put_at for record in settled.acknowledged])
            self._release(settled.acknowledged)
        self._counts.retries.update(settled.retried)
        if settled.refused and self._settings.fail_on_error:
            self._fail(settled.refused[0][1])
        elif settled.refused:
            self._counts.records_refused += len(settled.refused)
            self._release([record for record, _ in settled.refused])
        if settled.failure is not None:
            self._fail(settled.failure)
        self._admit_waiting()
        self._conclude_flushes()

    def _take_sent(self, settled: RequestOutcome) -> list[tuple[Future[Written], StreamError | None, Written | None]]:
        """Remove and return the futures of `send` that this outcome completes, so that a later failure or close does not fail them."""
        found: list[tuple[Future[Written], StreamError | None, Written | None]] = []
        for parcel, result in settled.placed:
            place = Written(result.shard or "", result.sequence_number or "")
            found += [(record.sent, None, place) for record in parcel.records if record.sent is not None]
        found += [(record.sent, error, None) for record, error in settled.refused if record.sent is not None]
        found = [each for each in found if each[0] in self._sent]
        self._sent.difference_update([written for written, _, _ in found])
        return found

    def _release(self, records: list[Record]) -> None:
        for epoch, leaving in Counter([record.epoch for record in records]).items():
            if epoch is not None:
                epoch.count -= leaving
        self._left.records -= len(records)
        self._left.bytes -= sum([record.size for record in records])

    def _fail(self, failure: StreamError, cause: BaseException | None = None) -> None:
        if self._failure is not None:
            return
        failure.__cause__ = cause
        self._failure = failure.about(self._stream)
        # Fail the futures of `send` before the futures of flushes: when a flush raises an error, all futures of `send` have failed.
        self.loop.call_soon_threadsafe(self._end_sent, [*self._sent], failure)
        self.loop.call_soon_threadsafe(self._log_failure, failure, self._left.records)
        self._sent = set()
        self._end_waits(failure)
        self._end_flushes(failure)

    def _break(self, cause: BaseException) -> None:
        text = f"the producer for {self._stream} failed: {type(cause).__name__}: {cause}"
        self._fail(WriteError(text), cause)

    # -- tasks on the event loop

    async def _send(self, request: PutRecordsRequest) -> None:
        try:
            unknown = False
            try:
                results = await self._service.put_records(request.parcels, keyed=request.keyed)
            except Exception as error:
                settle = partial(self._queue.fault, request, judge(error))
            else:
                unknown = await self._learn(request, results)
                settle = partial(self._queue.settle, request, results)
            with self._lock:
                settled = settle(self._clock.monotonic())
                sent = self._take_sent(settled) if self._sent else []
                self._conclude(settled)
            for written, refused, place in sent:
                _end(written, refused, place)
            self._report(settled)
            if settled.misrouted and not unknown:
                self._refresh_soon()
        except StreamError as error:
            with self._lock:
                self._fail(error)
        except Exception as error:
            with self._lock:
                if not self._stopped:
                    self._break(error)
        self._pump()

    def _sent_or_cancelled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # If all tasks of the loop are cancelled, as on SIGTERM, nothing is sent any more: later flushes must fail, not wait forever.
        with self._lock:
            if task.cancelled() and not self._stopped:
                self._break(asyncio.CancelledError())

    async def _learn(self, request: PutRecordsRequest, results: Sequence[Result]) -> bool:
        """Reload the shard map if it may lack a shard to which an aggregate was written. Returns whether the map has changed."""
        if not request.aggregated or self._knows(request, results):
            return False
        async with self._refresh_lock:
            if self._knows(request, results):
                return True
            asked_at = self._clock.monotonic()
            try:
                # Retry until ListShards responds. Do not resend the aggregates without its response: that could write their records twice.
                listed = await self._patience.call(f"ListShards of stream {self._stream!r}", self._service.shards)
            except Exception as error:
                what = f"stream {self._stream} cannot be written to, because ListShards fails"
                raise judge(error, "kinesis:ListShards").error(what) from error
            known = self._queue.shards
            self._adopt(shards := ShardMap(listed, known.distribution), asked_at)
            return not shards.is_like(known)

    def _knows(self, request: PutRecordsRequest, results: Sequence[Result]) -> bool:
        """Whether the shard map has all shards in `results`, and was confirmed recently enough to rule out a re-created stream."""
        if self._clock.monotonic() - self._seen_at > REPLACED_SECONDS:
            return False
        self._seen_at = max(self._seen_at, request.sent_at)
        return all(shard is None or self._queue.shards.knows(shard) for shard in {result.shard for result in results})

    def _adopt(self, shards: ShardMap, asked_at: float) -> None:
        self._seen_at = asked_at
        if not shards.is_older_than(self._queue.shards):
            with self._lock:
                self._queue.adopt(shards)

    async def _refresh(self) -> None:
        known, asked_at = self._queue.shards, self._clock.monotonic()
        listed = await self._service.shards() if known.predicts else None
        shards = known if listed is None else ShardMap(listed, known.distribution)
        news = not shards.is_like(known)
        if not news or known.distribution is not Distribution.KEYED:
            # If the shards are unchanged, check the distribution strategy. Otherwise skip this call: AWS allows 20 per second per account.
            traits = await self._service.traits()
            shards = await shard_map(traits, self._service.shards, listed)
            news = not shards.is_like(known)
            warn_of_consequences(self._stream, traits, self._settings)
        # Back off if the shard map has not changed: a stale map is then not the cause of records in unexpected shards.
        self._refresh_pause = REFRESH_SECONDS if news else min(2 * self._refresh_pause, MOST_REFRESH_SECONDS)
        self._adopt(shards, asked_at)
        self._look_again()

    def _refresh_soon(self) -> None:
        if self._refreshing is None and not self._stopped and self._failure is None:
            self._refreshing = self.loop.create_task(self._refresh_later())

    async def _refresh_later(self) -> None:
        try:
            try:
                async with self._refresh_lock:
                    await self._refresh()
                self._pump()
            except Exception as error:
                logger.warning(
                    "the shard map of %s cannot be refreshed: %s; keeping the old one for now", self._stream, error
                )
                self._look_again()
            await asyncio.sleep(self._refresh_pause)
        finally:
            self._refreshing = None

    def _look_again(self) -> None:
        """If Kinesis distributes records regardless of keys, schedule a check of whether it still does, in `RECHECK_SECONDS`."""
        if self._recheck is not None:
            self._recheck.cancel()
        if not self._queue.shards.predicts and not self._stopped:
            self._recheck = self.loop.call_later(RECHECK_SECONDS, self._refresh_soon)

    def _stalled_on(self) -> str | None:
        if not self._eager() or not self._left.records:
            return None
        return f"producer for {self._stream}: {self._left.records} records ({self._left.bytes} bytes) are outstanding"

    # -- logging, without the lock: a log handler may write to this producer

    def _end_sent(self, sent: Iterable[Future[Written]], error: StreamError) -> None:
        """Fail futures of `send`. Called without the lock, because their callbacks may call the producer."""
        for written in sent:
            _end(written, error)

    def _report(self, settled: RequestOutcome) -> None:
        if settled.acknowledged:
            self._stall.progress()
        if settled.retried:
            self._stall.fault = next(iter(settled.retried))
        if settled.stuck:
            logger.warning("%s", settled.stuck)
        if not self._settings.fail_on_error:
            for _, error in settled.refused:
                self._log_left_out(error)

    def _log_left_out(self, error: StreamError) -> None:
        logger.error("not written to stream %s (fail_on_error is off): %s", self._stream, error)

    def _log_failure(self, failure: StreamError, records: int) -> None:
        self._stall.stop()
        logger.error("producer for %s failed with %d records outstanding: %s", self._stream, records, failure)


def _log_unclosed(stream: str, pid: int, left: _Left) -> None:
    """Log the records that are lost if an unclosed engine is garbage-collected or its process ends. Does nothing in a forked process."""
    if left.records and os.getpid() == pid:
        logger.error(
            "the producer for %s was not closed: %d records (%d bytes) that were put and not acknowledged are lost",
            stream,
            left.records,
            left.bytes,
        )


def _end(future: Future[Any], error: StreamError | None = None, result: object = None) -> None:
    with suppress(InvalidStateError):  # another thread may have completed it
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
