"""The client of the planner's service, for fetchers of other processes and for tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinesis_efo.fetcher.connection import Connection
from kinesis_efo.fetcher.work import (
    REPORT,
    WHERE,
    WORK,
    Report,
    ReportReply,
    WhereReply,
    WhereRequest,
    Work,
    WorkRequest,
)
from kinesis_efo.positions import ShardRange

_ANSWER_SECONDS: Final = 10.0


class PlannerClient(Connection):
    """One connection to the planner of a run; see `Connection`."""

    service = "planner"

    def work(self, request: WorkRequest) -> Work:
        """Ask what to do."""
        return self.action(WORK, request, Work, request.wait + _ANSWER_SECONDS)

    def report(self, report: Report) -> ReportReply:
        """Tell what has arrived."""
        return self.action(REPORT, report, ReportReply, _ANSWER_SECONDS)

    def where(self, ranges: Sequence[ShardRange], wait: float, query: str = "") -> WhereReply:
        """Ask who reads some ranges now.

        Args:
            ranges: The ranges.
            wait: Seconds to wait until all of their shards are read by somebody.
            query: The name of the query among those of its run.
        """
        return self.ask_where(WhereRequest.of(ranges, wait, query))

    def ask_where(self, request: WhereRequest) -> WhereReply:
        """Ask who reads some ranges now, as a task has asked."""
        return self.action(WHERE, request, WhereReply, request.wait + _ANSWER_SECONDS)
