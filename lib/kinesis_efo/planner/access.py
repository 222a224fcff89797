"""What a stream reader asks of its run and of its query, wherever these are: in this process, or in another one of the program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.marks import Mark
from kinesis_efo.options import Start
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, ShardKey, ShardRange


class QueryAccess(Protocol):
    """The calls to a query; see `Query` for what they do.

    Each raises a `KinesisEfoError`: reading failed for good, or the query has ended.
    """

    def wait_held(self, *, timeout: float) -> bool:
        """Wait until every stream of the query may be read."""

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        """Ask how far the next micro-batch may go."""

    def commit(self, offset: Offset) -> None:
        """Note that Spark will not ask for anything up to an offset again."""

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """The last records of ranges that are buffered."""

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        """Look for what is gone of ranges that Spark reads first after a start."""

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        """Where the query is to end, as far as that is known."""

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        """Those of some streams of which KPL aggregates may be left out."""

    def resume(self, offset: Offset) -> None:
        """Tell from where the query goes on."""

    def planned(self, mark: Mark) -> None:
        """Tell which micro-batch Spark's log has."""

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        """Where the query is to end that reads what is there in one micro-batch."""


class RunAccess(Protocol):
    """The run of a stream reader's query: `PlannerRuntime`, or `SharedRun`."""

    @property
    def secret(self) -> str:
        """What tasks have to know."""

    @property
    def query_name(self) -> str:
        """What tasks tell whose they are."""

    def start(self) -> None:
        """Find or begin the run."""

    def initial_offset(self, start: Start) -> Offset:
        """The position of each shard from which a new query begins."""

    def added_offset(self, start: Start, names: Collection[str]) -> Offset:
        """The position of each shard from which streams begin that an older query reads now, too."""

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        """Who reads the shards of some ranges, which are about to be read; None: nobody yet."""

    @property
    def planner_address(self) -> FetcherAddress | None:
        """Where tasks ask who reads a shard; None if that never changes."""

    @property
    def query(self) -> QueryAccess:
        """The query."""

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment."""

    def stop(self) -> None:
        """End the query, and the run if nobody else needs it. May be called again."""
