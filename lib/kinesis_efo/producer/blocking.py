"""The producer for code without asyncio: runs the asyncio producer on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from kinesis_efo.credentials import SdkSession
from kinesis_efo.errors import ProducerClosedError, StreamError
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import AwsSettings
from kinesis_efo.processes import Home
from kinesis_efo.producer.engine import Wait
from kinesis_efo.producer.metrics import ProducerMetrics
from kinesis_efo.producer.producer import AsyncProducer
from kinesis_efo.producer.record import Data, PutArguments, Record, Written
from kinesis_efo.producer.settings import ProducerSettings

T = TypeVar("T")
logger = logging.getLogger(__name__)

EXIT_SECONDS = 60.0
"""Maximum seconds for which an unclosed producer delays the end of the process."""


_NOT_ASYNC = "kinesis_efo.Producer is for threads since 0.3, not for asyncio: use kinesis_efo.AsyncProducer"


class Producer:
    """Writes records to one stream, from any number of threads. A context manager.

    It delivers at least once: a request whose response was lost is sent again. It never drops a record because of its age, and counts a
    record as written only after Kinesis has acknowledged it. Close it after use. A producer that is still open when the process ends is
    closed then, but only the log shows whether its records were written.

    Args:
        stream: Name or ARN. The role needs `kinesis:PutRecords` and `kinesis:ListShards` on it, and
            `kinesis:DescribeStreamSummary` to aggregate or to write records above 1 MiB.
        settings: Bounds, batching, order, aggregation and retries.
        aws: Region, endpoint and role.
        metrics: Where to send metrics.
        session: A botocore or boto3 session (or, for `AsyncProducer`, an aiobotocore session) that provides credentials and region.

    Example:
        >>> def copy(lines):
        ...     with Producer("orders") as producer:
        ...         for line in lines:
        ...             producer.put(line)
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
        self._producer = AsyncProducer(stream, settings=settings, aws=aws, metrics=metrics, session=session)
        # Reentrant: a signal handler may close the producer while the thread that it interrupts is closing it.
        self._end_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: Future[None] | None = None

    def open(self) -> Self:
        """Connect and load the shard map. Entering the context does this.

        Raises:
            ConfigurationError: The stream's name or ARN is not valid, or no region is configured.
            StreamError: The stream does not exist, or access to it is denied.
        """
        if self._thread is not None:
            raise ProducerClosedError(f"the producer for {self._producer.stream} was opened before; create another one")
        self._producer.home = Home.here()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_run_loop, args=(started,), name="kinesis-efo-producer", daemon=True)
        self._thread.start()
        self._loop = started.result()
        try:
            self._start(self._producer.open).result()
        except BaseException:
            self._end_loop()
            raise
        atexit.register(self._close_at_exit)
        if (processes := sys.modules.get("multiprocessing.process")) and processes.parent_process() is not None:
            # Close from a thread at exit: child processes of multiprocessing skip exit handlers, but wait for their threads.
            threading.Thread(target=self._close_after_main, name="kinesis-efo-producer-close").start()
        return self

    def put(self, data: Data, partition_key: str | None = None, explicit_hash_key: str | int | None = None) -> None:
        """Queue a record; block while too much is outstanding. The record is written once a later `flush` or `close` returns.

        Args:
            data: The record; text is encoded as UTF-8.
            partition_key: 1 to 256 characters; selects the shard. Random if None. With `ordered`, records with the same key are
                written in order.
            explicit_hash_key: 0 to 2**128-1; selects the shard instead of the partition key.

        Raises:
            RecordRefusedError: The record can never be written. Other records are not affected.
            StreamError: An earlier record could not be written; unacknowledged records may not have been written.
        """
        record = self._producer.engine.make_record(data, partition_key, explicit_hash_key)
        if record is not None:
            self._queue((record,))

    def send(
        self, data: Data, partition_key: str | None = None, explicit_hash_key: str | int | None = None
    ) -> Future[Written]:
        """Queue a record like `put`, and return a future with its shard and sequence number. Uses more CPU than `put`.

        The future fails if the record is not written. Its callbacks run on the producer's thread: they must return soon and must not
        wait for the producer. In a forked process, getting its result raises `ProducerClosedError`.
        """
        written = _WrittenFuture(self._producer)
        record = self._producer.engine.make_record(data, partition_key, explicit_hash_key, sent=written)
        assert record is not None, "a record whose result is awaited raises an error"
        self._queue((record,))
        return written

    def put_many(self, records: Iterable[PutArguments], positions: Iterable[int] | None = None) -> None:
        """Queue records in order, using less CPU time per record than `put`. Iterates over `records` only as fast as there is capacity.

        Args:
            records: `(data, partition_key)` or `(data, partition_key, explicit_hash_key)` each.
            positions: The number of each record in error messages; by default, its number among all records of this producer.

        Raises:
            RecordRefusedError: A record can never be written. Only the records before it are queued.
            StreamError: As for `put`.
        """
        for batch in self._producer.engine.make_records(records, positions):
            self._queue(batch)

    def flush(self) -> None:
        """Wait until Kinesis has acknowledged all records that were put before.

        Raises:
            StreamError: The first failure; unacknowledged records may not have been written.
        """
        self._check_thread()
        done = self._producer.engine.flush()
        if done is not None:
            done.result()

    def close(self) -> None:
        """Write all records, then disconnect. Leaving the context does this. Puts that are still waiting, and later puts, raise an error.

        Raises:
            StreamError: As for `flush`. The producer is closed even then, and each later call raises the error again.
        """
        self._finish(self._producer.close, check=True)

    def abort(self) -> None:
        """Disconnect without waiting for outstanding records, and log how many there were."""
        if self._producer.opened:
            # If another thread is waiting in `close`, make it fail, because the outstanding records are not written anymore.
            self._producer.engine.halt()
        self._finish(self._producer.abort, check=False)

    @property
    def metrics(self) -> ProducerMetrics:
        """The current counters and gauges."""
        return self._producer.metrics

    async def __aenter__(self) -> NoReturn:
        raise TypeError(_NOT_ASYNC)

    async def __aexit__(self, *_: object) -> None:
        """Required by `async with`, but never called: `__aenter__` raises an error that names `AsyncProducer`."""

    def __await__(self) -> NoReturn:
        raise TypeError(_NOT_ASYNC)  # raised for `await Producer(...).open()`

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._elsewhere:
            self._finish(lambda: self._producer.__aexit__(kind, error, trace), check=False)

    def __reduce__(self) -> NoReturn:
        self._producer.__reduce__()

    @property
    def _elsewhere(self) -> bool:
        return self._producer.home is not None and self._producer.home.left

    def _start(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(function(), self._loop)

    def _finish(self, end: Callable[[], Coroutine[Any, Any, None]], *, check: bool) -> None:
        if self._thread is None or not self._producer.opened:
            return
        self._check_thread()
        engine = self._producer.engine
        with self._end_lock:
            if self._thread.is_alive():
                atexit.unregister(self._close_at_exit)
                try:
                    # If a signal handler has interrupted another call of this method, only wait: the loop may already be stopping.
                    if self._ending is not None:
                        wait([self._ending])
                    else:
                        self._ending = self._start(end)
                        self._ending.result()
                finally:
                    # Stop the engine even if `end` was interrupted: without the loop, a later flush would wait forever.
                    engine.halt()
                    self._end_loop()
        if check:
            engine.check_end()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError as error:
            logger.debug("the loop is closed already: %s", error)
        self._thread.join()

    def _queue(self, records: Sequence[Record]) -> None:
        engine = self._producer.engine
        waits: list[Wait] = []
        try:
            engine.put(records, waits)
            for wait in waits:
                self._check_thread()
                wait.done.result()
        finally:
            for wait in waits:
                engine.withdraw(wait)

    def _check_thread(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop runs on this thread
        if running is self._loop:
            raise RuntimeError(
                "a callback of a future of `send` must not wait for the producer, on whose thread it runs"
            )

    def _close_after_main(self) -> None:
        threading.main_thread().join()
        self._close_at_exit()

    def _close_at_exit(self) -> None:
        if self._elsewhere:
            return
        if not self.metrics.outstanding_records:
            self.abort()
            return
        logger.warning("the producer for %s was not closed; writing its outstanding records now", self._producer.stream)
        engine = self._producer.engine
        why = f"the process ends, and writing took longer than {EXIT_SECONDS:g} s; close the producer before"
        engine.loop.call_soon_threadsafe(engine.loop.call_later, EXIT_SECONDS, engine.give_up, why)
        try:
            self.close()
        except StreamError as error:
            logger.error("some records were not written at the end of the process: %s", error)


class _WrittenFuture(Future[Written]):
    """The future that `send` returns. In a forked process, waiting for it raises `ProducerClosedError`."""

    def __init__(self, producer: AsyncProducer) -> None:
        super().__init__()
        self._producer = producer

    def result(self, timeout: float | None = None) -> Written:
        _ = self._producer.engine
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        _ = self._producer.engine
        return super().exception(timeout)


class _Executor(ThreadPoolExecutor):
    """The event loop's default executor. When Python exits, thread pools reject work; this executor then runs it in the caller's thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[T] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:
                done.set_exception(error)
            return done


def _run_loop(started: Future[asyncio.AbstractEventLoop]) -> None:
    # At the end of the process, Python cannot start the thread that joins the executor's workers: suppress this error.
    with contextlib.suppress(RuntimeError), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(_Executor(max_workers=4, thread_name_prefix="kinesis-efo-producer"))
        loop.call_soon(started.set_result, loop)
        loop.run_forever()
