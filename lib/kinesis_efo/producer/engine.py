"""Sends the accumulator's requests to Kinesis, with timers, flushes and failures. Runs on one event loop.

It connects the accumulator (what to send), the capacity (how much) and the service (the calls).
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
from kinesis_efo.producer.accumulator import RecordAccumulator, RequestOutcome
from kinesis_efo.producer.capacity import Capacity, usage_of
from kinesis_efo.producer.faults import judge
from kinesis_efo.producer.metrics import Counts, ProducerMetrics, StallWatch
from kinesis_efo.producer.record import Data, Epoch, PutArguments, Record, SizeLimit, make_record
from kinesis_efo.producer.routing import ShardMap, StreamTraits, shard_map, warn_of_consequences
from kinesis_efo.producer.service import Service
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.producer.shard_queue import PutRecordsRequest
from kinesis_efo.records.distribution import Distribution

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""Minimum seconds between two loads of the shard map, because ListShards may lag behind responses that name a new shard."""
MOST_REFRESH_SECONDS = 60.0
"""Maximum seconds between two loads: the pause doubles while the loaded shard map stays the same."""
RECHECK_SECONDS = 300.0
"""Seconds between two checks whether Kinesis still distributes the records of a stream itself, because no response shows that."""
_BATCH_BYTES = 1 << 20
"""Maximum bytes of a batch of `make_records`; only its last record may exceed them."""


class Engine:
    """Runs an open producer on the event loop on which it is created. `stream` is the stream's name or ARN, for messages."""

    def __init__(
        self,
        stream: str,
        service: Service,
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
        self.loop = self._loop = asyncio.get_running_loop()
        # Half of the capacity is common to all shards. A record that is larger than this half could wait for ever.
        half = settings.max_outstanding_bytes // 2
        stream_limit = traits.max_record_bytes
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
        self._closing = self._stopped = False
        self._unwritten = 0
        self._positions = count()
        self._epoch = Epoch()
        self._flushes: deque[tuple[Epoch, asyncio.Future[None]]] = deque()
        self._unpumped_records = self._unpumped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_pause = REFRESH_SECONDS
        self._recheck: asyncio.TimerHandle | None = None
        warn_of_consequences(stream, traits, settings)
        self._look_again()

    # -- from any thread

    def check(self) -> None:
        """Raise the producer's failure, or ProducerClosedError; return if it accepts records."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._closing:
            raise self.closed_error()

    def check_end(self, unsent: int = 0) -> None:
        """Raise an error if this closed producer has not written all records. `unsent` are records that it never received."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._unwritten + unsent:
            raise ProducerClosedError(
                f"the producer for {self._stream} was closed before {self._unwritten + unsent} records were acknowledged; put them again"
            )

    def closed_error(self) -> ProducerClosedError:
        """Make the error for a closed producer."""
        return ProducerClosedError(f"the producer for {self._stream} is closed; create another one")

    def make_record(self, given: PutArguments) -> Record | None:
        """Check a record and predict its shard; None if it can never be written and `fail_on_error` is off."""
        self.check()
        record = self._checked(next(self._positions), *given)
        if record is not None:
            record.put_at = self._clock.monotonic()
            record.shard = self._accumulator.shards.shard_of(record.hash)
        return record

    def make_records(
        self, given: Iterable[PutArguments], positions: Iterable[int] | None = None
    ) -> Iterator[list[Record]]:
        """Do the same as `make_record`, in batches. If a record is refused, the records before it are yielded before the error.

        `positions` are the numbers of the records, for messages; None: counted over all records of this producer.
        """
        rest = iter(given)
        numbers = self._positions if positions is None else iter(positions)
        for first in rest:
            self.check()
            batch: list[Record] = []
            size = 0
            refused: Exception | None = None
            try:
                for one in chain((first,), islice(rest, MAX_REQUEST_RECORDS - 1)):
                    record = self._checked(next(numbers), *one)
                    if record is not None:
                        batch.append(record)
                        size += record.size
                        if size >= _BATCH_BYTES:
                            break
            except Exception as error:
                refused = error
            now, shard_of = self._clock.monotonic(), self._accumulator.shards.shard_of
            for record in batch:
                record.put_at = now
                record.shard = shard_of(record.hash)
            if batch:
                yield batch
            if refused is not None:
                raise refused

    def _checked(
        self, position: int, data: Data, partition_key: str | None, explicit_hash_key: str | int | None = None
    ) -> Record | None:
        key = f"{self._random.getrandbits(64):016x}" if partition_key is None else partition_key
        try:
            return make_record(data, key, explicit_hash_key, self._limit, position)
        except RecordRefusedError as refused:
            if self._settings.fail_on_error:
                raise
            self._leave_out(refused)
            return None

    @property
    def metrics(self) -> ProducerMetrics:
        """The current counters and gauges."""
        return self._counts.snapshot(self.capacity)

    # -- on the loop's thread

    def accept(self, records: Sequence[Record]) -> None:
        """Queue records for which capacity was acquired."""
        for record in records:
            record.epoch = self._epoch
        self._epoch.count += len(records)
        self._unwritten += len(records)
        self._accumulator.add(records)
        self._unpumped_records += len(records)
        self._unpumped_bytes += sum([record.size for record in records])
        if self._timer is None:
            self._arm(self._settings.linger)

    def pump(self) -> None:
        """Send all requests that are due, and set the timer for the rest."""
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
        """Pump if enough records for a full request were put since the last pump; returns whether it did."""
        full = self._unpumped_records >= MAX_REQUEST_RECORDS or self._unpumped_bytes >= MAX_REQUEST_BYTES
        if full:
            self.pump()
        return full

    def expedite(self) -> None:
        """Send without lingering and watch for a stall, because a caller waits from now on."""
        self._stall.start()
        self.pump()

    def give_up(self, why: str) -> None:
        """Fail the producer although records are outstanding; `why` is the reason, for messages."""
        self._fail(WriteError(f"the producer for {self._stream} gave up: {why}"))

    def begin_closing(self) -> None:
        """Refuse further records, also those whose puts wait for capacity."""
        self._closing = True
        self.capacity.close()

    async def flush(self) -> None:
        """Wait until Kinesis has acknowledged all records that were put before, or raise the producer's failure."""
        if self._failure is not None or self._stopped:
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
            # If this flush was cancelled, its epoch stays, so that the next flush waits for its records, too.
            done.cancel()

    def halt(self) -> None:
        """Send nothing more, and end flushes that wait."""
        self._stopped = True
        self.begin_closing()
        self._disarm()
        if self._recheck is not None:
            self._recheck.cancel()
        self._stall.stop()
        self._end_flushes(self.closed_error())

    async def stop(self) -> None:
        """End without waiting for outstanding records, and log how many there were."""
        self.halt()
        running = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._unwritten:
            logger.warning(
                "producer for %s closed with %d records (%d bytes) that were put and not acknowledged",
                self._stream,
                self._unwritten,
                self.capacity.bytes,
            )

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

    async def _send(self, request: PutRecordsRequest) -> None:
        self._counts.requests += 1
        try:
            try:
                results = await self._service.put_records(request.parcels, keyed=request.keyed)
            except Exception as error:
                settled = self._accumulator.fault(request, judge(error), self._clock.monotonic())
            else:
                # Readers compare an aggregate with the hash range of the shard that has it, so that range must be known here.
                actual = {result.shard for result in results} if self._settings.aggregate else set()
                unknown = not all(shard is None or self._accumulator.shards.knows(shard) for shard in actual)
                if unknown:
                    try:
                        await self._refresh()
                    except Exception as error:
                        # Settle the request anyway, because its records were written, and would be sent again otherwise.
                        logger.warning("the shard map of %s cannot be refreshed: %s", self._stream, error)
                settled = self._accumulator.settle(request, results, self._clock.monotonic())
                settled.misrouted &= not unknown
            self._conclude(settled)
        except Exception as error:
            self._fail(WriteError(f"the producer for {self._stream} failed: {type(error).__name__}: {error}"), error)
        self.pump()

    def _conclude(self, settled: RequestOutcome) -> None:
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
        if settled.misrouted:
            self._refresh_soon()
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
        self._unwritten -= len(records)
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
        known = self._accumulator.shards
        listed = await self._service.shards() if known.predicts else None
        shards = known if listed is None else ShardMap(listed, known.distribution)
        news = not shards.is_like(known)
        if not news or known.distribution is not Distribution.KEYED:
            # Get the traits, because there was no reshard. After a reshard, do not, because an account has only 20 such calls a second.
            traits = await self._service.traits()
            shards = await shard_map(traits, self._service.shards, listed)
            news = not shards.is_like(known)
            warn_of_consequences(self._stream, traits, self._settings)
        # If records go to other shards although the map is right, frequent refreshes would not help.
        self._refresh_pause = REFRESH_SECONDS if news else min(2 * self._refresh_pause, MOST_REFRESH_SECONDS)
        self._accumulator.adopt(shards)
        self.capacity.divide(len(shards.open_shards))
        self._look_again()

    def _refresh_soon(self) -> None:
        if self._refreshing is None and not self._stopped and self._failure is None:
            self._refreshing = self._loop.create_task(self._refresh_later())

    async def _refresh_later(self) -> None:
        try:
            await self._refresh()
            self.pump()
        except Exception as error:
            logger.warning(
                "the shard map of %s cannot be refreshed: %s; keeping the old one for now", self._stream, error
            )
            self._look_again()
        try:
            await asyncio.sleep(self._refresh_pause)
        finally:
            self._refreshing = None

    def _look_again(self) -> None:
        """Schedule a check whether Kinesis still distributes the stream's records itself, because no response shows that."""
        if self._recheck is not None:
            self._recheck.cancel()
        if not self._accumulator.shards.predicts and not self._stopped:
            self._recheck = self._loop.call_later(RECHECK_SECONDS, self._refresh_soon)

    def _stalled_on(self) -> str | None:
        if not self._eager() or not self.capacity.records:
            return None
        return f"producer for {self._stream}: {self.capacity.records} records ({self.capacity.bytes} bytes) are outstanding"
