"""The messages between a run and its clients.

A client numbers its calls and repeats one with the same number if it takes long or its reply was lost; the run does it only once.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any, Final

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import Certificate
from kinesis_efo.manifest import StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.positions import Offset, Position, ShardKey

JOIN: Final = "join"
CALL: Final = "call"
LEAVE: Final = "leave"
FINISHED: Final = "finished"

ANSWER_SECONDS: Final = 2.0
"""If a call takes longer than this, the run replies that it is not done yet."""

_KEPT_OFFSETS: Final = 4
"""A reader uses two offsets at a time: the start and the end of a micro-batch. The next one begins at its end."""


class Join(msgspec.Struct, frozen=True):
    """A process asks to be a client of the run.

    `reader` is the name of its query; a second request with the same name replaces the first client. `streams` and `options` are those of
    the query, and `pid` and `started` identify the process, as in `Process`.
    """

    reader: str
    pid: int
    started: str
    streams: dict[str, StreamRef]
    options: dict[str, str]


class JoinReply(msgspec.Struct, frozen=True):
    """The reply to `Join`. `client` is empty if the run refuses the client, and `faults` says why the query cannot share the run.

    Tasks read shards at `address`. If `by_planner` is true, they ask there for the fetcher of a shard, because the fetchers are in other
    processes. `certificate` is for the services of the run and the client; None if they do not use TLS.
    """

    client: str = ""
    address: FetcherAddress | None = None
    by_planner: bool = False
    certificate: Certificate | None = None
    faults: list[str] = []


class QueryCall(msgspec.Struct, frozen=True):
    """A call of a client, with its number. `call` is one of the calls in `access`, encoded by `OffsetsOfLink`."""

    client: str
    number: int
    call: msgspec.Raw


class Leave(msgspec.Struct, frozen=True):
    """A client tells the run that its query has ended."""

    client: str


class FinishedBatches(msgspec.Struct, frozen=True):
    """The driver reports micro-batches that Spark has finished, by the marks of their ends. `alone`: if `query` has no other source.

    `run` is Spark's id of the run of the query.
    """

    marks: list[Mark]
    query: str | None
    alone: bool = False
    run: str = ""


class CallReply(msgspec.Struct, frozen=True):
    """The reply to a client's message. `result` is that of the call, as `OffsetsOfLink` encodes it; `known`: the run has this client.

    `done`: the call is done; for `Leave`, the run ends with its last client. `again`: send the call with whole offsets and a new number:
    the run does not know one of its offsets. `said` are log lines for the client to write, as the driver may have closed the run's output.
    """

    done: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    known: bool = True
    again: bool = False
    said: list[str] = []


class _OffsetChanges(msgspec.Struct, frozen=True, array_like=True):
    """An offset in a message: the shards that `moved` or `left` since the offset number `base`, or all if `base` is None."""

    number: int
    base: int | None
    moved: list[tuple[ShardKey, Position]]
    left: list[ShardKey]
    lasts: list[tuple[ShardKey, int]]
    mark: Mark | None
    horizons: dict[str, float] = {}
    created: dict[str, int] = {}


class UnknownOffset(Exception):
    """A message refers to an offset that this process has not kept."""


class OffsetsOfLink:
    """The offsets that two processes have sent each other. Each is sent once, as changes to an earlier one, to keep messages short.

    The processes number their offsets in steps of two. One begins with `first` 0, the other with 1.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._known: OrderedDict[int, Offset] = OrderedDict()
        self._heard: int | None = None

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all offsets; the next ones are sent whole."""
        self._known.clear()

    def encode(self, message: Any) -> msgspec.Raw:
        """Encode a message with a number in place of each offset, together with the offsets that the other process does not have."""
        told: list[_OffsetChanges] = []
        body = msgspec.json.encode(message, enc_hook=partial(self._tell, told))
        return msgspec.Raw(msgspec.json.encode((told, msgspec.Raw(body))))

    def decode(self, data: msgspec.Raw, kind: Any) -> Any:
        """Decode a message. An offset that was sent before is the same object again, which is cheap to compare.

        Raises UnknownOffset if the other process has to send its offsets whole, msgspec.MsgspecError if the message is invalid.
        """
        told, body = msgspec.json.decode(data, type=tuple[list[_OffsetChanges], msgspec.Raw])
        for each in told:
            self._hear(each)
        return msgspec.json.decode(body, type=kind, dec_hook=self._named)

    def _tell(self, told: list[_OffsetChanges], offset: Any) -> int:
        if not isinstance(offset, Offset):
            raise NotImplementedError
        for number, known in self._known.items():
            if known is offset:
                self._keep(number, known)
                return number
        base = self._known.get(self._heard) if self._heard is not None else None
        number, self._next = self._next, self._next + 2
        self._keep(number, offset)
        moved, lasts = list(offset.changes_since(base).items()), list(offset.lasts.items())
        left = [] if base is None else [key for key in base if key not in offset]
        since = None if base is None else self._heard
        facts = dict(offset.horizons), dict(offset.created)
        told.append(_OffsetChanges(number, since, moved, left, lasts, offset.mark, *facts))
        return number

    def _hear(self, told: _OffsetChanges) -> None:
        positions = {}
        if told.base is not None:
            if (base := self._known.get(told.base)) is None:
                raise UnknownOffset
            positions = dict(base)
            for key in told.left:
                del positions[key]
        positions.update(told.moved)
        self._keep(told.number, Offset(positions, dict(told.lasts), told.mark, told.horizons, told.created))

    def _named(self, _kind: type[Any], number: Any) -> Offset:
        if (offset := self._known.get(number)) is None:
            raise UnknownOffset
        self._heard = number
        self._keep(number, offset)
        return offset

    def _keep(self, number: int, offset: Offset) -> None:
        self._known[number] = offset
        self._known.move_to_end(number)
        while len(self._known) > _KEPT_OFFSETS:
            self._known.popitem(last=False)
