"""A real fetcher and its client, without Spark: does what the stream reader and its tasks do."""

import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from secrets import token_urlsafe
from typing import Any, NamedTuple, TypeVar

from kinesis_efo.aws import SyncClients
from kinesis_efo.calls.address import Listening
from kinesis_efo.clock import Clock
from kinesis_efo.decisions.planning import PollReply
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import RetrySettings, SourceOptions
from kinesis_efo.positions import Offset, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.access import Begin, Call
from kinesis_efo.run.query import Query
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo.run.thread import RunThread
from kinesis_efo.run.whole_run import StartFetchers
from kinesis_efo.tasks.client import FetcherClient
from tests.support.planned import finish, planned
from tests.support.world import World

T = TypeVar("T")
QUICK = Limits(between_calls=0.02, after_success=0.02, full=1.0)
NO_LIMIT = 1 << 60
LOOPBACK_ONLY = Listening()


class Row(NamedTuple):
    """The columns of a row that tests check."""

    stream: str
    shard: str
    sequence: int
    key: str | None
    data: bytes


class LocalRun(RunThread):
    """A run in this process, and one query of it, without the process that Spark keeps for it.

    Attributes:
        planner: Plans for the query; only after `start`.
    """

    def start(self) -> None:
        super().start()
        self.planner = self.call(self._planner())

    async def _planner(self) -> QueryPlanner:
        return self.whole.new_query("", self._setup.manifest.streams, self._setup.options)

    def ask(self, call: Call[T]) -> T:
        """Make a call to the query."""
        answer: T = self.call(self.planner.answer(call))
        return answer


class QueryCalls:
    """Calls a query from other threads than its own.

    Args:
        runtime: The run, in whose event loop the query lives.
        query: The query; None: the runtime's own.
    """

    def __init__(self, runtime: LocalRun, query: Query | None = None) -> None:
        self._runtime = runtime
        self._query = query or runtime.planner.query

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        return self._run(self._query.poll(offset, max_bytes, max_records, timeout))

    def commit(self, offset: Offset) -> None:
        async def commit() -> None:
            finish(self._query, offset)

        self._run(commit())

    def repeats(self, wanted: ShardRange) -> None:
        """Tell the run of a range that a micro-batch in Spark's log has, if it does not know the shard."""

        async def begin() -> None:
            progress = self._query.progress
            known = progress.finished or Offset({})
            if wanted.key not in known:
                end = Offset({**(progress.reach or known), wanted.key: wanted.through})
                self._query.begin(Offset({**known, wanted.key: wanted.after}), end)

        self._run(begin())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runtime.call(work)


def first_offset(runtime: LocalRun) -> Offset:
    """Where a new query begins."""
    while (found := runtime.ask(Begin(new=True, wait=1.0))) is None:
        pass
    return found


class Reading:
    """A query without Spark: a fetcher's runtime, its client, and the query's offset.

    Attributes:
        calls: Calls to the query.
        rows: The rows read so far.
        batches: Start and end of every micro-batch.
    """

    def __init__(
        self, runtime: LocalRun, client: FetcherClient, offset: Offset, calls: QueryCalls | None = None
    ) -> None:
        self.runtime = runtime
        self.calls = calls or QueryCalls(runtime)
        self.client = client
        self.offset = offset
        self.rows: list[Row] = []
        self.batches: list[tuple[Offset, Offset]] = []

    def poll(self, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT, timeout: float = 0.2) -> Offset:
        """Plan the next micro-batch; returns its end."""
        reply = self.calls.poll(self.offset, max_bytes=max_bytes, max_records=max_records, timeout=timeout)
        return planned(self.offset, reply)

    def commit(self) -> None:
        """Note that everything up to the offset is processed."""
        self.calls.commit(self.offset)

    def read(self, wanted: ShardRange, client: FetcherClient | None = None) -> list[Row]:
        """Read the rows of a range."""
        self.calls.repeats(wanted)
        rows = []
        for batch in chain.from_iterable(
            decode(payloads, *asked[:3], deaggregate=True) for asked, payloads in (client or self.client).get([wanted])
        ):
            rows += [
                Row(r["stream"], r["shardId"], int(r["sequenceNumber"]), r["partitionKey"], r["data"])
                for r in batch.to_pylist()
            ]
        return rows

    def batch(self, commit: bool = True, **limits: Any) -> list[Row]:
        """Run one micro-batch as Spark does: commit the one before, plan it, and read it; returns its rows."""
        if commit and self.batches:
            self.commit()
        end = self.poll(**limits)
        rows = [row for wanted in self.offset.ranges_to(end) for row in self.read(wanted)]
        self.batches.append((self.offset, end))
        self.offset = end
        self.rows += rows
        return rows

    def until(self, rows: int, seconds: float = 60.0, **limits: Any) -> list[Row]:
        """Run micro-batches until a number of rows was read in all."""
        deadline = time.monotonic() + seconds
        while len(self.rows) < rows:
            assert time.monotonic() < deadline, f"{len(self.rows)} of {rows} rows after {seconds} s"
            self.batch(**limits)
        return self.rows


def prepare(
    world: World,
    *,
    limits: Limits = QUICK,
    clock: Clock | None = None,
    listening: Listening = LOOPBACK_ONLY,
    start_fetchers: StartFetchers | None = None,
    retry: RetrySettings | None = None,
    **options: str,
) -> LocalRun:
    """A runtime that is not started. `retry`: other settings than the defaults."""
    text = {**world.options, "startingPosition": "TRIM_HORIZON", "leaseTimeout": "1s", **options}
    parsed = SourceOptions.parse(text)
    parsed = replace(parsed, retry=retry or parsed.retry)
    manifest = resolve_manifest(parsed, SyncClients(parsed.aws).client)
    return LocalRun(
        manifest, parsed, listening, token_urlsafe(32), start_fetchers=start_fetchers, clock=clock, limits=limits
    )


@contextmanager
def reading(world: World, *, at: Offset | None = None, **settings: Any) -> Iterator[Reading]:
    """Read a world with a started fetcher, from an offset, or from the start that the options give; see `prepare`."""
    runtime = prepare(world, **settings)
    runtime.start()
    try:
        with FetcherClient(runtime.address, runtime.secret) as client:
            yield Reading(runtime, client, at or first_offset(runtime))
    finally:
        runtime.stop()


@contextmanager
def beside(first: Reading, name: str, at: Offset) -> Iterator[Reading]:
    """Another query on the run of a first one, with an offset of its own."""
    runtime = first.runtime

    async def join() -> Query:
        return Query(runtime.whole.run, name=name)

    query = runtime.call(join())
    try:
        with FetcherClient(runtime.address, runtime.secret, query=name) as client:
            yield Reading(runtime, client, at, QueryCalls(runtime, query))
    finally:
        runtime.call(query.leave())
