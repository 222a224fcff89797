"""Tells the tasks of a query where to read. The service is in the planner, so it stays if the process of the run is replaced."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.service import Call, Service, decoded
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.work import WHERE, PlannerClient, WhereReply, WhereRequest

_AGAIN_SECONDS: Final = 0.1


class HostPlace(NamedTuple):
    """Where a run is.

    Attributes:
        address: The address of the run, where tasks read or ask.
        by_planner: Whether fetchers in other processes have the shards, so that the run has to be asked which fetcher has a shard.
    """

    address: FetcherAddress
    by_planner: bool


class WhereService(Service):
    """Tells tasks of one query which fetcher has a shard; see `Service`.

    Args:
        place: Returns where the run is now, None if there is none. Raises the error that has ended the query.
        secret, arguments: Passed to `Service`.
    """

    what = "planner"

    def __init__(self, place: Callable[[], HostPlace | None], secret: str, *arguments: Any) -> None:
        self._place = place
        self._run_secret = secret
        super().__init__(None, secret, *arguments)

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        return self._answer_where(call, decoded(body, WhereRequest)) if name == WHERE else super().act(call, name, body)

    def _answer_where(self, call: Call, request: WhereRequest) -> WhereReply:
        """Reply with the fetchers of the shards. If there is no run, reply that no shard has one yet, so that the task asks again."""
        give_up_at = time.monotonic() + request.wait
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            match self._place():
                case HostPlace(address, by_planner=False):
                    return WhereReply([address] * len(request.shards), 1)
                case HostPlace(address):
                    with (
                        contextlib.suppress(FetcherUnreachableError, FetcherRefusedError),
                        PlannerClient(address, self._run_secret) as client,
                    ):
                        return client.where(replace(request, wait=left))
            if not left or call.gone:
                return WhereReply([None] * len(request.shards), 1)
            time.sleep(min(left, _AGAIN_SECONDS))
