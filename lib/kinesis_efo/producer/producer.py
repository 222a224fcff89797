"""The producer for asyncio: opens the service, runs the engine and reports metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from types import TracebackType
from typing import NoReturn, Self

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.credentials import SdkSession
from kinesis_efo.errors import KinesisEfoError, ProducerClosedError, StreamError
from kinesis_efo.metrics import MetricsSettings, report
from kinesis_efo.options import AwsSettings
from kinesis_efo.processes import Home
from kinesis_efo.producer.engine import Engine, Wait
from kinesis_efo.producer.faults import judge
from kinesis_efo.producer.metrics import ProducerMetrics, producer_collector
from kinesis_efo.producer.record import Data, PutArguments, Record, Written
from kinesis_efo.producer.routing import shard_map
from kinesis_efo.producer.service import KinesisService, connect
from kinesis_efo.producer.settings import ProducerSettings

logger = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[KinesisService]]


class AsyncProducer:
    """Writes records to one stream from asyncio. An async context manager, bound to one event loop. The arguments are those of `Producer`.

    Close it before its loop ends. Otherwise, outstanding records are lost, and only the log shows how many.

    Example:
        >>> async def copy(lines):
        ...     async with AsyncProducer("orders") as producer:
        ...         for line in lines:
        ...             await producer.put(line)
        ...         await producer.flush()
    """

    def __init__(
        self,
        stream: str,
        *,
        settings: ProducerSettings | None = None,
        aws: AwsSettings | None = None,
        metrics: MetricsSettings | None = None,
        session: SdkSession | None = None,
    ) -> None:
        self.stream = stream
        self._session = session
        self.settings = settings or ProducerSettings()
        self._aws = aws or AwsSettings()
        self._metrics_settings = metrics or MetricsSettings()
        self._end_report: Callable[[], None] = lambda: None
        # Tests replace the next three attributes.
        self._clock: Clock = SystemClock()
        self._random = Random()
        self._connect: Connect = self._connect_kinesis
        self._stack = AsyncExitStack()
        self._engine: Engine | None = None
        self._closed = False
        self.home: Home | None = None

    async def open(self) -> Self:
        """Connect and load the shard map, like `Producer.open`. Entering the context does this."""
        if self._engine is not None:
            raise ProducerClosedError(f"the producer for {self.stream} was opened before; create another one")
        self.home = self.home or Home.here()
        try:
            service = await self._stack.enter_async_context(self._connect())
            traits = await service.traits()
            shards = await shard_map(traits, service.shards)
        except BaseException as error:
            await self._stack.aclose()
            if isinstance(error, KinesisEfoError) or not isinstance(error, Exception):
                raise
            opened = f"stream {self.stream} cannot be opened for writing"
            raise judge(error, "kinesis:ListShards").error(opened).about(self.stream) from error
        engine = Engine(self.stream, service, shards, traits, self.settings, self._clock, self._random)
        self._engine = engine
        # Use a weak reference, so that an abandoned engine is garbage-collected, which logs its unwritten records.
        known = weakref.ref(engine)
        self._end_report = report(
            producer_collector(self.stream, lambda: ProducerMetrics() if (it := known()) is None else it.metrics),
            self._metrics_settings,
        )
        return self

    async def close(self) -> None:
        """Write all records, then disconnect, like `Producer.close`. Leaving the context does this."""
        if self._engine is None:
            return
        engine = self._engine_here()
        if not self._closed:
            engine.begin_closing()
            try:
                await self.flush()
            finally:
                await self.abort()
        engine.check_end()

    async def abort(self) -> None:
        """Disconnect without waiting for outstanding records, and log how many there were."""
        if self._closed or self._engine is None:
            return
        engine = self._engine_here()
        self._closed = True
        try:
            await engine.stop()
        finally:
            await self._stack.aclose()
            await asyncio.to_thread(self._end_report)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.home is not None and self.home.left:
            return
        if error is None:
            await self.close()
        elif isinstance(error, Exception | SystemExit | GeneratorExit):
            # Write the records that were put before the error. If that fails, too, log its error, and raise the block's error.
            try:
                await self.close()
            except StreamError as failure:
                if not isinstance(error, Exception):
                    raise  # otherwise `sys.exit(0)` in the program would report success
                if failure is not error:
                    logger.error(
                        "producer for %s failed when it was closed after another error: %s", self.stream, failure
                    )
        else:
            await self.abort()

    async def put(
        self, data: Data, partition_key: str | None = None, explicit_hash_key: str | int | None = None
    ) -> None:
        """Queue a record like `Producer.put`; wait while too much is outstanding. The record may be queued even if this is cancelled."""
        record = self._engine_here().make_record(data, partition_key, explicit_hash_key)
        if record is not None:
            await self._queue((record,))

    async def send(
        self, data: Data, partition_key: str | None = None, explicit_hash_key: str | int | None = None
    ) -> asyncio.Future[Written]:
        """Queue a record like `put`, and return a future with its shard and sequence number."""
        written = Future[Written]()
        record = self._engine_here().make_record(data, partition_key, explicit_hash_key, sent=written)
        assert record is not None, "a record whose result is awaited raises an error"
        await self._queue((record,))
        return asyncio.wrap_future(written)

    async def put_many(self, records: Iterable[PutArguments]) -> None:
        """Queue records in order, like `Producer.put_many`."""
        for batch in self._engine_here().make_records(records):
            await self._queue(batch)

    async def flush(self) -> None:
        """Wait until Kinesis has acknowledged all records that were put before. Raises like `Producer.flush`."""
        done = self._engine_here().flush()
        if done is not None:
            await asyncio.wrap_future(done)

    @property
    def metrics(self) -> ProducerMetrics:
        """The current counters and gauges."""
        return self.engine.metrics if self._engine is not None else ProducerMetrics()

    @property
    def opened(self) -> bool:
        """Whether the producer was ever opened; still true after `close`."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The engine, which `Producer` also uses. Raises `ProducerClosedError` before `open` and in a forked process."""
        if self._engine is None:
            raise ProducerClosedError(f"the producer for {self.stream} is not open: enter its context or call open()")
        if self.home is not None and self.home.left:
            raise ProducerClosedError(
                f"the producer for {self.stream} was opened {self.home}; it does not work in the forked process {os.getpid()}: "
                "open another one there"
            )
        return self._engine

    def __reduce__(self) -> NoReturn:
        opened = f" (this one was opened {self.home})" if self.home else ""
        raise ProducerClosedError(
            f"the producer for {self.stream} cannot be pickled{opened}; open one where it is used"
        )

    async def _queue(self, records: Sequence[Record]) -> None:
        engine = self._engine_here()
        waits: list[Wait] = []
        try:
            engine.put(records, waits)
            for wait in waits:
                await asyncio.wrap_future(wait.done)
        finally:
            for wait in waits:
                engine.withdraw(wait)
        if not waits and engine.full:
            # Yield to the event loop, which sends the requests: a caller that only puts records would never do so.
            await asyncio.sleep(0)

    def _engine_here(self) -> Engine:
        if (engine := self.engine).loop is not asyncio.get_running_loop():
            raise ProducerClosedError(
                f"the producer for {self.stream} was opened {self.home} and belongs to the event loop that ran there; open another "
                "one, or use Producer"
            )
        return engine

    def _connect_kinesis(self) -> AbstractAsyncContextManager[KinesisService]:
        return connect(self.stream, self._aws, self.settings.max_in_flight + 1, self._session)
