"""Carries records from the accumulator to Kinesis: pumps, timers, flushes. Belongs to one event loop.

The accumulator decides, the capacity bounds, the service carries; this module connects them. What may be called from any thread
says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from random import Random

from kinesis_efo.clock import Clock
from kinesis_efo.errors import ProducerClosedError, RecordRefusedError, StreamError, WriteError
from kinesis_efo.producer.accumulator import RecordAccumulator, Settled
from kinesis_efo.producer.capacity import Capacity, usage_of
from kinesis_efo.producer.faults import judge
from kinesis_efo.producer.metrics import Counts, ProducerMetrics
from kinesis_efo.producer.record import Data, Epoch, Given, Record, SizeLimit, make_record
from kinesis_efo.producer.request import Request
from kinesis_efo.producer.routing import ShardMap
from kinesis_efo.producer.service import Service
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.producer.stall import StallWatch

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""The shard map is asked for at most this often: ListShards may be behind the answers that name a new shard."""
_CHUNK_BYTES = 1 << 20
"""Of records that are made and wait for capacity; more only by the last one."""


class Engine:
    """What runs while a producer is open. Made on its event loop.

    Args:
        stream: Name or ARN, for messages.
        service: Kinesis.
        shards: The shard map.
        stream_limit: The stream's largest record in bytes.
        settings: How to behave.
        clock: Times.
        random: Jitter.
    """

    def __init__(
        self,
        stream: str,
        service: Service,
        shards: ShardMap,
        stream_limit: int,
        settings: ProducerSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        self._stream = stream
        self._service = service
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Half of the capacity is common to all shards; a record above that could wait for ever.
        half = settings.max_outstanding_bytes // 2
        self._limit = SizeLimit(stream_limit)
        if half < stream_limit:
            self._limit = SizeLimit(half, "are half of 'max_outstanding_bytes'", "'max_outstanding_bytes'")
        self._accumulator = RecordAccumulator(stream, settings, shards, self._limit.bytes, random)
        self.capacity = Capacity(
            settings.max_outstanding_records, settings.max_outstanding_bytes, len(shards.open_shards), clock.monotonic
        )
        self._stall = StallWatch(settings.stall_warning, clock, self._loop, self._stalled_on)
        self._counts = Counts()
        self._failure: StreamError | None = None
        self._stopped = False
        self._positions = count()
        self._epoch = Epoch()
        self._flushes: deque[tuple[Epoch, asyncio.Future[None]]] = deque()
        self._unpumped_records = self._unpumped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None

    # -- from any thread

    def check(self) -> None:
        """Raise what keeps the producer from taking records."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._stopped:
            raise ProducerClosedError(f"the producer for {self._stream} is closed")

    def make_record(self, given: Given) -> Record | None:
        """A checked record with its predicted shard; None where it is refused and refusals are only counted."""
        self.check()
        record = self._checked(*given)
        if record is not None:
            record.put_at = self._clock.monotonic()
            record.shard = self._accumulator.shards.shard_of(record.hash)
        return record

    def make_records(self, given: Iterable[Given]) -> Iterator[list[Record]]:
        """As `make_record`, in lists that are handed over at once. Those before one that is refused are handed over too."""
        rest = iter(given)
        for first in rest:
            self.check()
            made: list[Record] = []
            size = 0
            refused: Exception | None = None
            try:
                for one in chain((first,), islice(rest, MAX_REQUEST_RECORDS - 1)):
                    record = self._checked(*one)
                    if record is not None:
                        made.append(record)
                        size += record.size
                        if size >= _CHUNK_BYTES:
                            break
            except Exception as error:
                refused = error
            now, shard_of = self._clock.monotonic(), self._accumulator.shards.shard_of
            for record in made:
                record.put_at = now
                record.shard = shard_of(record.hash)
            if made:
                yield made
            if refused is not None:
                raise refused

    def _checked(self, data: Data, partition_key: str, explicit_hash_key: str | int | None = None) -> Record | None:
        try:
            return make_record(data, partition_key, explicit_hash_key, self._limit, next(self._positions))
        except RecordRefusedError as refused:
            if self._settings.fail_on_error:
                raise
            self._leave_out(refused)
            return None

    @property
    def metrics(self) -> ProducerMetrics:
        """Counters and gauges, now."""
        capacity = self.capacity
        return self._counts.snapshot(capacity.records, capacity.bytes, capacity.waits, capacity.seconds_waited)

    # -- on the loop's thread

    def accept(self, records: Sequence[Record]) -> None:
        """Take records that capacity was acquired for."""
        for record in records:
            record.epoch = self._epoch
        self._epoch.count += len(records)
        self._accumulator.add(records)
        self._unpumped_records += len(records)
        self._unpumped_bytes += sum([record.size for record in records])
        if self._timer is None:
            self._arm(self._settings.linger)

    def pump(self) -> None:
        """Send what is to be sent now, and see to it that the rest is not forgotten."""
        if self._failure is not None or self._stopped:
            return
        self._unpumped_records = self._unpumped_bytes = 0
        eager = self._eager()
        while self._accumulator.in_flight < self._settings.max_in_flight:
            request = self._accumulator.next_request(self._clock.monotonic(), eager=eager)
            if request is None:
                break
            task = self._loop.create_task(self._send(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._disarm()
        if self._accumulator.in_flight < self._settings.max_in_flight:
            due = self._accumulator.due_at(eager=eager)
            if due is not None:
                self._arm(due - self._clock.monotonic())

    def pump_if_full(self) -> bool:
        """Send if a request's worth was put since the last time."""
        full = self._unpumped_records >= MAX_REQUEST_RECORDS or self._unpumped_bytes >= MAX_REQUEST_BYTES
        if full:
            self.pump()
        return full

    def press(self) -> None:
        """Somebody waits from now on: send what there is, and watch for a stall."""
        self._stall.start()
        self.pump()

    def give_up(self, why: str) -> None:
        """Fail with what is outstanding."""
        self._fail(WriteError(f"the producer for {self._stream} gave up: {why}"))

    async def flush(self) -> None:
        """Return when everything that was put before is acknowledged.

        Raises:
            StreamError: The first failure; what is not acknowledged is not claimed.
        """
        self.check()
        epoch, self._epoch = self._epoch, Epoch()
        if not epoch.count and not self._flushes:
            return
        done = self._loop.create_future()
        self._flushes.append((epoch, done))
        self._stall.start()
        try:
            self._conclude_flushes()
            self.pump()
            await done
        finally:
            # The epoch stays: the next flush waits for its records too.
            done.cancel()

    async def stop(self) -> None:
        """End without waiting for what is outstanding; says in the log how much that was."""
        self._stopped = True
        self._disarm()
        self._stall.stop()
        self.capacity.close()
        running = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.capacity.records:
            logger.warning(
                "producer for %s closed with %d records (%d bytes) that were put and not acknowledged",
                self._stream,
                self.capacity.records,
                self.capacity.bytes,
            )
        self._end_flushes(ProducerClosedError(f"the producer for {self._stream} is closed"))

    # -- parts

    def _eager(self) -> bool:
        return bool(self._flushes) or self.capacity.waiting

    def _arm(self, delay: float) -> None:
        self._timer = self._loop.call_later(max(0.0, delay), self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    async def _send(self, request: Request) -> None:
        self._counts.requests += 1
        try:
            try:
                results = await self._service.put_records(request.parcels)
            except Exception as error:
                settled = self._accumulator.fault(request, judge(error), self._clock.monotonic())
            else:
                # An aggregate counts only where readers take it, which the map of the answer tells, not of the prediction.
                fell = {result.shard for result in results} if self._settings.aggregate else set()
                unknown = not all(shard is None or self._accumulator.shards.knows(shard) for shard in fell)
                if unknown:
                    await self._refresh()
                settled = self._accumulator.settle(request, results, self._clock.monotonic())
                settled.misrouted &= not unknown
            self._conclude(settled)
        except Exception as error:
            self._fail(WriteError(f"the producer for {self._stream} failed: {type(error).__name__}: {error}"), error)
        self.pump()

    def _conclude(self, settled: Settled) -> None:
        now = self._clock.monotonic()
        if settled.acknowledged:
            self._stall.progress()
            self._counts.records_written += len(settled.acknowledged)
            self._counts.bytes_written += sum([record.size for record in settled.acknowledged])
            self._counts.latency.add([now - record.put_at for record in settled.acknowledged])
            self._release(settled.acknowledged)
        if settled.retried:
            self._counts.retries.update(settled.retried)
            self._stall.fault = next(iter(settled.retried))
        if settled.misrouted and self._refreshing is None:
            self._refreshing = self._loop.create_task(self._refresh_later())
        if settled.refused and not self._settings.fail_on_error:
            for _, error in settled.refused:
                self._leave_out(error)
            self._release([record for record, _ in settled.refused])
        elif settled.refused:
            self._fail(settled.refused[0][1])
        if settled.failure is not None:
            self._fail(settled.failure)
        self._conclude_flushes()

    def _release(self, records: list[Record]) -> None:
        for epoch, leaving in Counter([record.epoch for record in records]).items():
            if epoch is not None:
                epoch.count -= leaving
        self.capacity.release(usage_of(records))

    def _conclude_flushes(self) -> None:
        while self._flushes and not self._flushes[0][0].count:
            _, done = self._flushes.popleft()
            if not done.done():
                done.set_result(None)

    def _end_flushes(self, error: StreamError) -> None:
        flushes, self._flushes = self._flushes, deque()
        for _, done in flushes:
            if not done.done():
                done.set_exception(error)

    def _leave_out(self, error: StreamError) -> None:
        self._counts.records_refused += 1
        logger.error("left out of stream %s (fail_on_error is off): %s", self._stream, error)

    def _fail(self, failure: StreamError, cause: Exception | None = None) -> None:
        if self._failure is not None:
            return
        failure.__cause__ = cause
        self._failure = failure
        logger.error(
            "producer for %s failed with %d records outstanding: %s", self._stream, self.capacity.records, failure
        )
        self._disarm()
        self._stall.stop()
        self.capacity.close()
        self._end_flushes(failure)

    async def _refresh(self) -> None:
        shards = ShardMap(await self._service.shards())
        self._accumulator.adopt(shards)
        self.capacity.divide(len(shards.open_shards))

    async def _refresh_later(self) -> None:
        try:
            await self._refresh()
            self.pump()
            # ListShards may be behind the answers that name a new shard: not more often than this.
            await asyncio.sleep(REFRESH_SECONDS)
        except Exception as error:
            logger.warning(
                "the shard map of %s cannot be refreshed, going on with the old one: %s", self._stream, error
            )
            await asyncio.sleep(REFRESH_SECONDS)
        finally:
            self._refreshing = None

    def _stalled_on(self) -> str | None:
        if not self._eager() or not self.capacity.records:
            return None
        return f"producer for {self._stream}: {self.capacity.records} records ({self.capacity.bytes} bytes) are outstanding"
