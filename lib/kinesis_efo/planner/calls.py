"""Calls to the planner, which lives in an event loop of this process, for the stream reader's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.messages import PollReply
from kinesis_efo.marks import Mark
from kinesis_efo.planner.planner import Planner
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, ShardKey, ShardRange

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0


def finished(future: concurrent.futures.Future[T], alive: Callable[[], bool]) -> T:
    """The result of a call into an event loop of another thread.

    Args:
        future: The call.
        alive: Whether the loop runs: a stopped event loop never completes its futures.

    Raises:
        FetcherUnreachableError: The loop was stopped.
    """
    while not concurrent.futures.wait((future,), _LOOK_SECONDS).done:
        if not alive():
            raise stopped()
    return future.result()


class PlannerCalls:
    """Calls a planner from other threads than its own.

    Args:
        planner: The planner.
        loop: The event loop that it lives in.
        alive: Whether the loop runs.
    """

    def __init__(self, planner: Planner, loop: asyncio.AbstractEventLoop, alive: Callable[[], bool]) -> None:
        self._planner = planner
        self._loop = loop
        self._alive = alive

    def wait_held(self, *, timeout: float) -> bool:
        """Wait until every stream of the query may be read; see `Planner.wait_held`.

        Raises:
            KinesisEfoError: As `poll`.
        """
        return self._run(self._planner.wait_held(timeout))

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        """Ask how far the next micro-batch may go; see `Planner.poll`.

        Raises:
            KinesisEfoError: Reading failed for good, or the fetcher has stopped.
        """
        return self._run(self._planner.poll(offset, max_bytes, max_records, timeout))

    def commit(self, offset: Offset) -> None:
        """Note that Spark will not ask for anything up to an offset again."""
        self._run(self._planner.commit(offset))

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """The last records of ranges that are buffered; see `Planner.last_records`."""
        return self._run(self._planner.last_records(ranges))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        """Look for what is gone of ranges that Spark reads first after a start; see `Planner.check_replay`.

        Raises:
            KinesisEfoError: Records are gone, and losses fail the query; or as `poll`.
        """
        self._run(self._planner.check_replay(begin, ranges))

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        """Where the query is to end, as far as that is known; see `Planner.ends`."""
        return self._run(self._planner.ends(offset, timeout))

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        """Those of some streams of which KPL aggregates may be left out; see `Planner.strict`.

        Raises:
            KinesisEfoError: As `poll`.
        """
        return self._run(self._planner.strict(streams))

    def resume(self, offset: Offset) -> None:
        """Tell from where the query goes on; see `Planner.resume`."""
        self._run(self._planner.resume(offset))

    def planned(self, mark: Mark) -> None:
        """Tell which micro-batch Spark's log has; see `Planner.planned`."""
        self._planner.planned(mark)

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        """Where the query is to end; see `Planner.tips`."""
        return self._run(self._planner.tips(offset, timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise stopped() from None
        try:
            return finished(future, self._alive)
        except concurrent.futures.CancelledError:
            raise stopped() from None
        except KinesisEfoError:
            raise
        except Exception as error:
            raise FetcherError(f"the fetcher failed: {type(error).__name__}: {error}") from error
