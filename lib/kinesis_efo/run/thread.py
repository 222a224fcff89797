"""Runs the event loop of a run in a thread, opens the run's AWS clients, and stops everything in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from kinesis_efo.aws import AsyncClients
from kinesis_efo.aws_errors import SignInError, credentials_remedy, describe
from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import AccessRefusedError, FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.assembly import new_event_loop, stream_opener
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.leases.table import LeaseTable, client_config
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.patience import Patience, passes
from kinesis_efo.processes import notes_directory
from kinesis_efo.run.whole_run import RunSetup, StartFetchers, WholeRun

logger = logging.getLogger(__name__)
T = TypeVar("T")

_STOP_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_KEPT_LINES: Final = 1_000


class RunThread:
    """A thread of this process with one run in its event loop. Without `start_fetchers`, the run's only fetcher is also in this thread."""

    def __init__(
        self,
        manifest: Manifest,
        options: SourceOptions,
        listening: Listening,
        secret: str,
        *,
        start_fetchers: StartFetchers | None = None,
        clock: Clock | None = None,
        limits: Limits = KINESIS_LIMITS,
    ) -> None:
        self.secret: Final = secret
        self.streams_changed: Callable[[dict[str, str]], None] = lambda _: None
        self._setup = RunSetup(manifest, options, listening, start_fetchers, secret, limits)
        self._clock = KinesisClock(clock or SystemClock())
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kinesis-efo fetcher", daemon=True)
        self._stack = AsyncExitStack()
        self._log_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stopping = threading.Lock()
        self._whole: WholeRun | None = None

    def start(self) -> None:
        """Start the thread, and the run in it. Raises the run's error if it cannot start."""
        self._thread.start()
        try:
            self.call(self._open())
        except BaseException:
            self.stop()
            raise

    @property
    def whole(self) -> WholeRun:
        """The run. Its methods must be called in this thread's event loop. Only valid after `start`."""
        assert self._whole is not None
        return self._whole

    @property
    def address(self) -> FetcherAddress:
        """The address of the fetcher, or of the run if fetchers are in other processes. Only valid after `start`."""
        return self.whole.address

    def say(self, line: str) -> None:
        """Queue a log line; the next client that makes a call receives and logs it. A full queue drops its oldest line. Thread-safe."""
        self._log_lines.append(line)

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Stop serving clients, unless `only_if_alone` is set and there are clients. Return whether the run is closed to clients."""

        async def close() -> bool:
            return self.whole.close(only_if_alone=only_if_alone)

        try:
            return self.call(close())
        except FetcherUnreachableError:
            return True

    def stop(self) -> None:
        """Release the leases, close all connections and end the thread, within bounded time. Later calls do nothing."""
        with self._stopping:
            self._stop()

    def _stop(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result(_STOP_SECONDS)
        except (TimeoutError, CancelledError):
            logger.warning("the fetcher did not stop within %.0f s; leases that it owns will expire", _STOP_SECONDS)
        except Exception:
            # Only log the error, because the other parts must be stopped, too.
            logger.exception("stopping a part of the fetcher failed; the other parts are stopped")
        if self._whole is not None:
            self._end(self._whole)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)
        if not self._thread.is_alive():
            self._loop.close()

    def _end(self, whole: WholeRun) -> None:
        # Report the last metrics only now that the leases are released, so that the next run does not wait for this report.
        try:
            whole.end_report()
        except Exception:
            logger.exception("the last metrics were not reported")
        # `shutdown` waits for running calls. Use a thread, so that a hanging call does not block this process.
        closing = threading.Thread(target=whole.service.shutdown, daemon=True)
        closing.start()
        closing.join(2)

    async def _open(self) -> None:
        setup, options, clock = self._setup, self._setup.options, self._clock
        manifest = setup.manifest
        clients = AsyncClients(options.aws.of(manifest.application), manifest.region)
        await self._wait_for_credentials(clients)
        enter = self._stack.enter_async_context
        table: LeaseStore
        if manifest.lease_table:
            dynamo = await enter(await clients.open("dynamodb", client_config(options.lease_timeout)))
            table = LeaseTable(dynamo, manifest.lease_table, declared_by=manifest.declared_by)
        else:
            table = host_table(manifest, notes_directory())
        budget = Budget(options.buffer_bytes, now=clock.monotonic)
        open_stream = await stream_opener(self._stack, clients, manifest.source, options, budget, clock, setup.limits)
        self._whole = WholeRun(setup, table, open_stream, budget, clock, self._announce_streams, self._log_lines)
        await self._whole.start(self._stack)

    def _announce_streams(self, arns: dict[str, str]) -> None:
        self.streams_changed(arns)

    async def _wait_for_credentials(self, clients: AsyncClients) -> None:
        """Load credentials; retry transient errors. Ignore most other errors, which the first AWS call reports more precisely."""
        options = self._setup.options
        role = options.aws.role_arn
        what = f"AssumeRole of {role}" if role else "AWS credentials"
        try:
            await Patience(options.retry, self._clock).call(what, clients.credentials)
        except KinesisEfoError:
            raise
        except Exception as error:
            application = f"application {self._setup.manifest.application}"
            if isinstance(error, SignInError):
                raise AccessRefusedError(f"{application}: {describe(error)}; {credentials_remedy(error)}") from error
            if passes(error):
                raise FetcherError(
                    f"{application}: no answer to {what} within kinesis-efo option 'retryTimeout': {describe(error)}. Nothing was lost: "
                    "start the query again"
                ) from error

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise stopped() from None
        return finished(future, self._thread.is_alive)


def host_table(manifest: Manifest, directory: Path) -> LeaseStore:
    """Return the file that replaces a lease table, and warn that only programs of this user on this host share it."""
    try:
        from kinesis_efo.leases.host_table import HostTable
    except ImportError as error:  # some Python builds lack SQLite
        raise FetcherError(f"without kinesis-efo option 'leaseTable', a query needs SQLite: {error}") from error
    readers = {name: ref.reader for name, ref in manifest.streams.items()}
    logger.warning(
        "there is no kinesis-efo option 'leaseTable', so only programs of this user on this host are kept from reading %s at the same time: "
        "any other program that does slows both down, but neither loses a record; `kinesis-efo top` and `lag` work on this host only",
        ", ".join(f"with {reader}" if "/consumer/" in reader else reader for reader in readers.values()),
    )
    return HostTable(readers, directory)


def finished(future: Future[T], alive: Callable[[], bool]) -> T:
    """Wait for the result of a coroutine in another thread's event loop. Raises FetcherUnreachableError once the thread is not `alive`."""
    while not wait((future,), _LOOK_SECONDS).done:
        if not alive():
            raise stopped()
    return future.result()
