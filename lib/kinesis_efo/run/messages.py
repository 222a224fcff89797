"""The messages between a run and its clients.

A client numbers its calls. It repeats a call with the same number if that takes long or the reply was lost; the run executes it only once.
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
"""After this many seconds without a result, the run replies that the call is still running."""

_KEPT_OFFSETS: Final = 4
"""A reader uses two offsets at a time: start and end of a micro-batch, whose end is the start of the next."""


class Join(msgspec.Struct, frozen=True):
    """A process requests to become a client of the run."""

    reader: str  # The name of its query; a second request with the same name replaces the first client
    pid: int  # Identifies the process, together with `started`; see `Process`
    started: str
    streams: dict[str, StreamRef]  # The query's streams
    options: dict[str, str]  # The query's options


class JoinReply(msgspec.Struct, frozen=True):
    """The reply to `Join`."""

    client: str = ""  # Empty if the run rejects the client
    address: FetcherAddress | None = None  # Where tasks read shards
    by_planner: bool = False  # Fetchers are in other processes; tasks get their addresses at `address`
    certificate: Certificate | None = None  # For the services of run and client; None without TLS
    faults: list[str] = []  # Why the query cannot share the run


class QueryCall(msgspec.Struct, frozen=True):
    """A call of a client, with its number. `call` is one of the calls in `access`, encoded by `OffsetsOfLink`."""

    client: str
    number: int
    call: msgspec.Raw
    heard: int = 0  # How many of the run's log lines the client has received


class Leave(msgspec.Struct, frozen=True):
    """A client reports that its query has ended."""

    client: str
    heard: int = 0  # As in `QueryCall`


class FinishedBatches(msgspec.Struct, frozen=True):
    """The driver reports the marks of micro-batches that Spark has finished."""

    marks: list[Mark]
    query: str | None  # The query's name in Spark
    alone: bool = False  # The query has a single source
    run: str = ""  # Spark's id of the run of the query


class CallReply(msgspec.Struct, frozen=True):
    """The reply to a client's message."""

    done: bool = False  # The call is done; for `Leave`: the run ends with its last client
    result: msgspec.Raw = msgspec.Raw(b"null")  # The call's result, encoded by `OffsetsOfLink`
    known: bool = True  # The run has this client
    again: bool = False  # The run lacks an offset: send the call again with whole offsets and a new number
    said: list[str] = []  # Log lines for the client to write: the driver may have closed the run's output


class _OffsetChanges(msgspec.Struct, frozen=True, array_like=True):
    """An offset in a message: the shards that `moved` or `left` since offset number `base`, or all shards if that is None."""

    number: int
    base: int | None
    moved: list[tuple[ShardKey, Position]]
    left: list[ShardKey]
    lasts: list[tuple[ShardKey, int]]
    mark: Mark | None
    horizons: dict[str, float] = {}
    created: dict[str, int] = {}


class UnknownOffset(Exception):
    """A message refers to an offset that this process no longer has."""


class OffsetsOfLink:
    """The offsets that two processes have sent each other. Each is sent once, as changes to an earlier one, for short messages.

    The processes number their offsets in steps of two. One begins with `first` 0, the other with 1.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._offsets: OrderedDict[int, Offset] = OrderedDict()
        self._received: int | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def clear(self) -> None:
        """Drop all offsets. The next ones are sent whole."""
        self._offsets.clear()

    def encode(self, message: Any) -> msgspec.Raw:
        """Encode a message with a number in place of each offset, and prepend the offsets that the other process lacks."""
        diff: list[_OffsetChanges] = []
        body = msgspec.json.encode(message, enc_hook=partial(self._encode_offset, diff))
        return msgspec.Raw(msgspec.json.encode((diff, msgspec.Raw(body))))

    def decode(self, data: msgspec.Raw, kind: Any) -> Any:
        """Decode a message. An offset that was sent before is the same object again, which is cheap to compare.

        Raises UnknownOffset if the other process must send its offsets whole, msgspec.MsgspecError for an invalid message.
        """
        diff, body = msgspec.json.decode(data, type=tuple[list[_OffsetChanges], msgspec.Raw])
        for each in diff:
            self._add_offset(each)
        return msgspec.json.decode(body, type=kind, dec_hook=self._decode_number)

    def _encode_offset(self, diff: list[_OffsetChanges], offset: Any) -> int:
        if not isinstance(offset, Offset):
            raise NotImplementedError
        for number, known in self._offsets.items():
            if known is offset:
                self._store(number, known)
                return number
        base = self._offsets.get(self._received) if self._received is not None else None
        number, self._next = self._next, self._next + 2
        self._store(number, offset)
        moved, lasts = list(offset.changes_since(base).items()), list(offset.lasts.items())
        left = [] if base is None else [key for key in base if key not in offset]
        since = None if base is None else self._received
        facts = dict(offset.horizons), dict(offset.created)
        diff.append(_OffsetChanges(number, since, moved, left, lasts, offset.mark, *facts))
        return number

    def _add_offset(self, diff: _OffsetChanges) -> None:
        positions = {}
        if diff.base is not None:
            if (base := self._offsets.get(diff.base)) is None:
                raise UnknownOffset
            positions = dict(base)
            for key in diff.left:
                del positions[key]
        positions.update(diff.moved)
        self._store(diff.number, Offset(positions, dict(diff.lasts), diff.mark, diff.horizons, diff.created))

    def _decode_number(self, _kind: type[Any], number: Any) -> Offset:
        if (offset := self._offsets.get(number)) is None:
            raise UnknownOffset
        self._received = number
        self._store(number, offset)
        return offset

    def _store(self, number: int, offset: Offset) -> None:
        self._offsets[number] = offset
        self._offsets.move_to_end(number)
        while len(self._offsets) > _KEPT_OFFSETS:
            self._offsets.popitem(last=False)
