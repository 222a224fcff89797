"""The planner's Arrow Flight service, for the fetchers of other processes and for tasks that look for one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from pyarrow import flight

from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.serving import More, StatusDesk, decoded
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

    def act(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """See `Service`."""
        body = action.body.to_pybytes()
        answer: Coroutine[Any, Any, msgspec.Struct]
        match action.type:
            case str(name) if name == WORK:
                request = decoded(body, WorkRequest)
                try:
                    work = self.run(context, self._sessions.work(request))
                except flight.FlightCancelledError:
                    self.run(None, self._dropped(request.name))
                    raise
                return [flight.Result(msgspec.json.encode(work))]
            case str(name) if name == REPORT:
                answer = self._sessions.report(decoded(body, Report))
            case str(name) if name == WHERE:
                answer = self._cluster.where(decoded(body, WhereRequest))
            case _:
                return super().act(context, action)
        return [flight.Result(msgspec.json.encode(self.run(context, answer)))]

    async def _dropped(self, name: str) -> None:
        self._sessions.dropped(name)
