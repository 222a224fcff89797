"""The planner's service, for the fetchers of other processes and for tasks that look for one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from kinesis_efo.calls.service import Call, CallerGone, decoded
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.work import REPORT, WHERE, WORK, Report, WhereRequest, WorkRequest
from kinesis_efo.planner.cluster import Cluster


class PlannerService(FetcherService):
    """Serves one planner whose fetchers are elsewhere, and tasks of queries that read apart; see `FetcherService`.

    Args:
        cluster: Answers the fetchers of the run, and tasks.
        arguments, options: Those of `Service`.
    """

    what = "planner"

    def __init__(self, cluster: Cluster, *arguments: Any, **options: Any) -> None:
        self._cluster = cluster
        self._sessions = cluster.sessions
        super().__init__(cluster, *arguments, **options)
        cluster.home = self.address

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        answer: Coroutine[Any, Any, msgspec.Struct]
        if name == WORK:
            request = decoded(body, WorkRequest)
            try:
                return self.run(call, self._sessions.work(request))
            except CallerGone:
                self.run(None, self._dropped(request.name))
                raise
        elif name == REPORT:
            answer = self._sessions.report(decoded(body, Report))
        elif name == WHERE:
            answer = self._cluster.where(decoded(body, WhereRequest))
        else:
            return super().act(call, name, body)
        return self.run(call, answer)

    async def _dropped(self, name: str) -> None:
        self._sessions.dropped(name)
