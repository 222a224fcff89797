"""The producer for asyncio: bounded, with back-pressure, and silent about nothing.

The outbox decides, the room bounds, the service carries; this module connects them on one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from types import TracebackType
from typing import Self

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer.errors import ProducerClosedError, RecordRefusedError, WriteError, judge
from kinesis_efo.producer.metrics import Counts, ProducerMetrics
from kinesis_efo.producer.outbox import Outbox, Settled
from kinesis_efo.producer.record import Epoch, Record, SizeLimit, make_record
from kinesis_efo.producer.request import Request
from kinesis_efo.producer.room import Room, Use, Waiter
from kinesis_efo.producer.routing import ShardMap
from kinesis_efo.producer.service import Service, connect
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.producer.stall import StallWatch

log = logging.getLogger(__name__)

Data = bytes | bytearray | memoryview | str
Connect = Callable[[], AbstractAsyncContextManager[Service]]
REFRESH_SECONDS = 1.0


class Producer:
    """Writes records to one stream. An async context manager; for one event loop.

    Delivery is at least once: a request whose answer is lost is sent again. Nothing is dropped for its age, and nothing
    counts as written before Kinesis has acknowledged it.

    Args:
        stream: Name or ARN. The role needs `kinesis:PutRecords` and `kinesis:ListShards` on it, and
            `kinesis:DescribeStreamSummary` where it takes records above 1 MiB.
        settings: Bounds, batching, order, aggregation, patience.
        aws: Region, endpoint and role.
        clock: Times; passed in for tests.
        random: Jitter; passed in for tests.
        connect: Opens the service; passed in for tests.

    Example:
        >>> async def copy(lines):
        ...     async with Producer("orders") as producer:
        ...         for line in lines:
        ...             await producer.put(line, partition_key=line[:8])
        ...         await producer.flush()
    """

    def __init__(
        self,
        stream: str,
        *,
        settings: ProducerSettings | None = None,
        aws: AwsSettings | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.stream = stream
        self.settings = settings or ProducerSettings()
        self._aws = aws or AwsSettings()
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._connect = connect or self._connect_kinesis
        self._stack = AsyncExitStack()
        self._counts = Counts()
        self._failure: WriteError | None = None
        self._opened = self._closed = False
        self._positions = itertools.count()
        self._epoch = Epoch()
        self._flushes: deque[tuple[Epoch, asyncio.Future[None]]] = deque()
        self._unpumped_records = self._unpumped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect and load the shard map. Entering the context does this.

        Raises:
            ConfigurationError: The stream's name or ARN is not one, or no region is known.
            WriteError: The stream does not exist, or credentials or policy refuse it.
        """
        if self._opened:
            raise ProducerClosedError(f"the producer for {self.stream} was opened before; make another one")
        self._loop = asyncio.get_running_loop()
        try:
            self._service = await self._stack.enter_async_context(self._connect())
            shards = ShardMap(await self._service.shards())
            stream_limit = await self._service.max_record_bytes()
        except KinesisEfoError:
            await self._stack.aclose()
            raise
        except Exception as error:
            await self._stack.aclose()
            fault = judge(error, "kinesis:ListShards")
            remedy = f". To do: {fault.remedy}" if fault.remedy else ""
            raise fault.kind(f"stream {self.stream} cannot be opened for writing: {fault.text}{remedy}") from error
        except BaseException:
            await self._stack.aclose()
            raise
        # Half of the room is common; what exceeds that could wait for ever.
        half = self.settings.max_outstanding_bytes // 2
        self._limit = SizeLimit(stream_limit)
        if half < stream_limit:
            self._limit = SizeLimit(half, "are half of 'max_outstanding_bytes'", "'max_outstanding_bytes'")
        self._outbox = Outbox(self.stream, self.settings, shards, self._limit.bytes, self._random)
        self._room = Room(
            self.settings.max_outstanding_records,
            self.settings.max_outstanding_bytes,
            len(shards.open_shards),
            self._clock.monotonic,
        )
        self._stall = StallWatch(self.settings.stall_warning, self._clock, self._loop, self._stalled_on)
        self._opened = True
        return self

    async def close(self) -> None:
        """Write everything, then disconnect. Leaving the context does this. Does nothing when closed.

        Raises:
            WriteError: As `flush`; the producer is closed all the same.
        """
        if self._closed or not self._opened:
            return
        try:
            await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Disconnect without waiting for what is outstanding; says in the log how much that was."""
        if self._closed or not self._opened:
            return
        self._closed = True
        self._disarm()
        self._room.close()
        self._stall.stop()
        pending = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._room.records:
            log.warning(
                "producer for %s closed with %d records (%d bytes) that were put and not acknowledged",
                self.stream,
                self._room.records,
                self._room.bytes,
            )
        for _, done in self._flushes:
            if not done.done():
                done.set_exception(self._closed_error())
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            # What was put before the error is still written; the error itself goes first.
            try:
                await self.close()
            except WriteError as failure:
                if failure is not error:
                    log.error(
                        "producer for %s failed while it was closed after another error: %s", self.stream, failure
                    )
        else:
            await self.abort()

    # -- writing ---------------------------------------------------------------------------------------------------

    async def put(self, data: Data, partition_key: str, explicit_hash_key: str | int | None = None) -> None:
        """Hand over a record; waits while too much is outstanding. It is written once a later `flush` or `close` returns.

        A put that is cancelled while it waits may have handed over its record.

        Args:
            data: The record; text is written as UTF-8.
            partition_key: 1 to 256 characters; decides on the shard, and on order with `ordered`.
            explicit_hash_key: 0 to 2**128-1; decides on the shard instead.

        Raises:
            RecordRefusedError: The record can never be written. Others are not affected.
            WriteError: An earlier record could not be written; everything unacknowledged is not claimed.
        """
        record = self.make_record(data, partition_key, explicit_hash_key)
        if record is None:
            return
        if self._room.try_enter(record.shard, record.size):
            self.accept(record)
        else:
            await self._wait_for_room(record)
        if self.pump_if_full():
            # A caller that only puts would keep the loop from sending.
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Return when everything that was put before is acknowledged.

        Raises:
            WriteError: The first failure; what is not acknowledged is not claimed.
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

    @property
    def metrics(self) -> ProducerMetrics:
        """Counters and gauges, now."""
        if not self._opened:
            return ProducerMetrics()
        room = self._room
        return self._counts.snapshot(room.records, room.bytes, room.waits, room.seconds_waited)

    # -- for the blocking facade -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what keeps the producer from taking records."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._closed or not self._opened:
            raise self._closed_error()

    def make_record(self, data: Data, partition_key: str, explicit_hash_key: str | int | None) -> Record | None:
        """A checked record with its predicted shard; None where it is refused and refusals are only counted."""
        self.check()
        position = next(self._positions)
        try:
            record = make_record(data, partition_key, explicit_hash_key, self._limit, position)
        except RecordRefusedError as refused:
            if self.settings.fail_on_error:
                raise
            self._leave_out(refused)
            return None
        record.position = position
        record.put_at = self._clock.monotonic()
        record.shard = self._outbox.shards.shard_of(record.hash)
        return record

    @property
    def room(self) -> Room:
        """The bound on what is outstanding."""
        return self._room

    def accept(self, record: Record) -> None:
        """Take a record that has its room. On the loop's thread."""
        record.epoch = self._epoch
        self._epoch.count += 1
        self._outbox.add(record)
        self._unpumped_records += 1
        self._unpumped_bytes += record.size
        if self._timer is None:
            self._arm(self.settings.linger)

    def pump(self) -> None:
        """Send what is to be sent now, and see to it that the rest is not forgotten. On the loop's thread."""
        if self._failure is not None or self._closed:
            return
        self._unpumped_records = self._unpumped_bytes = 0
        eager = self._eager()
        while self._outbox.in_flight < self.settings.max_in_flight:
            request = self._outbox.next_request(self._clock.monotonic(), eager=eager)
            if request is None:
                break
            task = self._loop.create_task(self._send(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._disarm()
        if self._outbox.in_flight < self.settings.max_in_flight:
            due = self._outbox.due_at(eager=eager)
            if due is not None:
                self._arm(due - self._clock.monotonic())

    def pump_if_full(self) -> bool:
        """Send if a request's worth was put since the last time. On the loop's thread."""
        full = self._unpumped_records >= MAX_REQUEST_RECORDS or self._unpumped_bytes >= MAX_REQUEST_BYTES
        if full:
            self.pump()
        return full

    def press(self) -> None:
        """Somebody waits from now on: send what there is, and watch for a stall. On the loop's thread."""
        self._stall.start()
        self.pump()

    def give_up(self, why: str) -> None:
        """Fail with what is outstanding. On the loop's thread."""
        self._fail(WriteError(f"the producer for {self.stream} gave up: {why}"))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _connect_kinesis(self) -> AbstractAsyncContextManager[Service]:
        return connect(self.stream, self._aws, self.settings.max_in_flight + 1)

    def _closed_error(self) -> ProducerClosedError:
        state = "closed" if self._closed else "not open: enter its context or call open()"
        return ProducerClosedError(f"the producer for {self.stream} is {state}")

    def _eager(self) -> bool:
        return bool(self._flushes) or self._room.waiting

    def _arm(self, delay: float) -> None:
        self._timer = self._loop.call_later(max(0.0, delay), self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    async def _wait_for_room(self, record: Record) -> None:
        woken = self._loop.create_future()

        def wake(waiter: Waiter) -> None:
            # Taken at once, not when the coroutine runs again: those that put later stay behind.
            if waiter.admitted:
                self.accept(record)
            if not woken.done():
                woken.set_result(None)

        waiter = self._room.enter(record.shard, record.size, wake)
        self.press()
        try:
            await woken
        except asyncio.CancelledError:
            if not waiter.admitted:
                self._room.forget(waiter)
            raise
        if not waiter.admitted:
            self.check()
            raise self._closed_error()

    async def _send(self, request: Request) -> None:
        self._counts.requests += 1
        try:
            try:
                results = await self._service.put_records(request.parcels)
            except Exception as error:
                settled = self._outbox.fault(request, judge(error), self._clock.monotonic())
            else:
                fell = {
                    result.shard
                    for parcel, result in zip(request.parcels, results, strict=True)
                    if result.shard and len(parcel.records) > 1
                }
                if not all(map(self._outbox.shards.knows, fell)):
                    await self._refresh()
                settled = self._outbox.settle(request, results, self._clock.monotonic())
            self._conclude(settled)
        except Exception as error:
            self._fail(WriteError(f"the producer for {self.stream} failed: {type(error).__name__}: {error}"), error)
        self.pump()

    def _conclude(self, settled: Settled) -> None:
        now = self._clock.monotonic()
        if settled.acknowledged:
            self._stall.progress()
            self._counts.records_written += len(settled.acknowledged)
            add_latency = self._counts.latency.add
            for record in settled.acknowledged:
                self._counts.bytes_written += record.size
                add_latency(now - record.put_at)
            self._release(settled.acknowledged)
        if settled.retried:
            self._counts.retries.update(settled.retried)
            self._stall.fault = next(iter(settled.retried))
        if settled.misrouted and self._refreshing is None:
            self._refreshing = self._loop.create_task(self._refresh_later())
        if settled.refused and not self.settings.fail_on_error:
            for _, error in settled.refused:
                self._leave_out(error)
            self._release([record for record, _ in settled.refused])
        elif settled.refused:
            self._fail(settled.refused[0][1])
        if settled.failure is not None:
            self._fail(settled.failure)
        self._conclude_flushes()

    def _release(self, records: list[Record]) -> None:
        uses: dict[str, Use] = {}
        for record in records:
            use = uses.get(record.shard)
            if use is None:
                use = uses[record.shard] = Use()
            use.records += 1
            use.bytes += record.size
            if record.epoch is not None:
                record.epoch.count -= 1
        self._room.leave(uses)

    def _conclude_flushes(self) -> None:
        while self._flushes and not self._flushes[0][0].count:
            _, done = self._flushes.popleft()
            if not done.done():
                done.set_result(None)

    def _leave_out(self, error: WriteError) -> None:
        self._counts.records_refused += 1
        log.error("left out of stream %s (fail_on_error is off): %s", self.stream, error)

    def _fail(self, failure: WriteError, cause: Exception | None = None) -> None:
        if self._failure is not None:
            return
        failure.__cause__ = cause
        self._failure = failure
        log.error("producer for %s failed with %d records outstanding: %s", self.stream, self._room.records, failure)
        self._disarm()
        self._stall.stop()
        self._room.close()
        flushes, self._flushes = self._flushes, deque()
        for _, done in flushes:
            if not done.done():
                done.set_exception(failure)

    async def _refresh(self) -> None:
        shards = ShardMap(await self._service.shards())
        self._outbox.adopt(shards)
        self._room.divide(len(shards.open_shards))

    async def _refresh_later(self) -> None:
        try:
            await self._refresh()
            self.pump()
            # ListShards may be behind the answers that name a new shard: not more often than this.
            await asyncio.sleep(REFRESH_SECONDS)
        except Exception as error:
            log.warning("the shard map of %s cannot be refreshed, going on with the old one: %s", self.stream, error)
            await asyncio.sleep(REFRESH_SECONDS)
        finally:
            self._refreshing = None

    def _stalled_on(self) -> str | None:
        if not self._eager() or not self._room.records:
            return None
        return f"producer for {self.stream}: {self._room.records} records ({self._room.bytes} bytes) are outstanding"
