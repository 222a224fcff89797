"""Tells the tasks of a guest who reads their shards now: the host of their run may change while they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from pyarrow import flight

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.messages import pack_error
from kinesis_efo.fetcher.serving import Service, decoded
from kinesis_efo.fetcher.work import WHERE, WhereReply, WhereRequest

if TYPE_CHECKING:
    from kinesis_efo.fetcher.certificate import Certificate


class WhereService(Service):
    """Answers tasks of one query; see `Service`.

    Args:
        where: Answers, in a thread of its own for each call.
        secret: The secret of the run; a call without it is refused.
        listening: Where to listen.
        certificate: Encrypts what is served; None: nothing does.
    """

    what = "planner"

    def __init__(
        self,
        where: Callable[[WhereRequest], WhereReply],
        secret: str,
        listening: Listening,
        certificate: Certificate | None = None,
    ) -> None:
        self._where = where
        super().__init__(None, secret, listening, certificate)

    def act(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """See `Service`."""
        if action.type != WHERE:
            return super().act(context, action)
        try:
            reply = self._where(decoded(action.body.to_pybytes(), WhereRequest))
        except KinesisEfoError as error:
            raise flight.FlightServerError(str(error), extra_info=pack_error(error)) from error
        return [flight.Result(msgspec.json.encode(reply))]
