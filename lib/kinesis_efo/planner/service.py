"""The planner's service, for the fetchers of other processes and for tasks that look for one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.serving import Call, CallerGone, More, StatusDesk, decoded
from kinesis_efo.fetcher.work import REPORT, WHERE, WORK, Report, WhereRequest, WorkRequest
from kinesis_efo.planner.cluster import Cluster

if TYPE_CHECKING:
    from kinesis_efo.fetcher.certificate import Certificate


class PlannerService(FetcherService):
    """Serves one planner whose fetchers are elsewhere, and tasks of queries that read apart; see `FetcherService`.

    Args:
        cluster: Answers the fetchers of the run, and tasks.
        loop: The event loop that it lives in.
        secret: The secret of the run; a call without it is refused.
        listening: Where to listen.
        certificate: Encrypts what is served; None: nothing does.
        desk: Answers tools; None: nobody does.
        more: Answers other messages; see `Service`.
    """

    what = "planner"

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        secret: str,
        listening: Listening,
        certificate: Certificate | None = None,
        desk: StatusDesk | None = None,
        more: More | None = None,
    ) -> None:
        self._cluster = cluster
        self._sessions = cluster.sessions
        super().__init__(cluster, loop, secret, listening, certificate, desk, more)
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
