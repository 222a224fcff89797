"""Calls to a query, which lives in an event loop of this process, for the stream reader's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.marks import Mark
from kinesis_efo.planner.query import Query
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


class QueryCalls:
    """Calls a query from other threads than its own.

    Args:
        query: The query.
        loop: The event loop that it lives in.
        alive: Whether the loop runs.
    """

    def __init__(self, query: Query, loop: asyncio.AbstractEventLoop, alive: Callable[[], bool]) -> None:
        self._query = query
        self._loop = loop
        self._alive = alive

    def wait_held(self, *, timeout: float) -> bool:
        """Wait until every stream of the query may be read; see `Query.wait_held`.

        Raises:
            KinesisEfoError: As `poll`.
        """
        return self._run(self._query.wait_held(timeout))

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        """Ask how far the next micro-batch may go; see `Query.poll`.

        Raises:
            KinesisEfoError: Reading failed for good, or the fetcher has stopped.
        """
        return self._run(self._query.poll(offset, max_bytes, max_records, timeout))

    def commit(self, offset: Offset) -> None:
        """Note that Spark will not ask for anything up to an offset again."""
        self._run(self._query.commit(offset))

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """The last records of ranges that are buffered; see `Query.last_records`."""
        return self._run(self._query.last_records(ranges))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        """Look for what is gone of ranges that Spark reads first after a start; see `Query.check_replay`.

        Raises:
            KinesisEfoError: Records are gone, and losses fail the query; or as `poll`.
        """
        self._run(self._query.check_replay(begin, ranges))

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        """Where the query is to end, as far as that is known; see `Query.ends`."""
        return self._run(self._query.ends(offset, timeout))

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        """Those of some streams of which KPL aggregates may be left out; see `Query.strict`.

        Raises:
            KinesisEfoError: As `poll`.
        """
        return self._run(self._query.strict(streams))

    def resume(self, offset: Offset) -> None:
        """Tell from where the query goes on; see `Query.resume`."""
        self._run(self._query.resume(offset))

    def planned(self, mark: Mark) -> None:
        """Tell which micro-batch Spark's log has; see `Query.planned`."""
        self._query.planned(mark)

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        """Where the query is to end; see `Query.tips`."""
        return self._run(self._query.tips(offset, timeout))

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
