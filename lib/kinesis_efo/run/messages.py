"""The messages between a run and its clients.

A client numbers its calls. If a call takes long or its reply is lost, the client repeats the message with the same number; the run
executes the call only once.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any, Final

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import Certificate
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Mark, Offset, Position, ShardKey

JOIN: Final = "join"
CALL: Final = "call"
LEAVE: Final = "leave"
FINISHED: Final = "finished"

ANSWER_SECONDS: Final = 2.0
"""After this many seconds without a result, the run replies that the call is still running."""

_KEPT_OFFSETS: Final = 4
"""How many offsets each process stores. A stream reader uses two at a time: the start and the end of a micro-batch."""


class Join(msgspec.Struct, frozen=True):
    """The request of a process to become a client of the run."""

    reader: str  # Unique name of the query's reader. A repeated request with this name replaces the client of the first request
    pid: int  # Together with `started`, identifies the process; see `Process`
    started: str
    streams: dict[str, StreamRef]
    options: dict[str, str]


class JoinReply(msgspec.Struct, frozen=True):
    """The reply to `Join`."""

    client: str = ""  # The name that the run gives the client; empty if the run rejects it
    address: FetcherAddress | None = None  # Where tasks read records or, with `by_planner`, request fetcher addresses
    by_planner: bool = False  # Whether fetchers are in other processes, so that tasks must request their addresses
    certificate: Certificate | None = None  # The TLS certificate of the run's and the client's services, if any
    faults: list[str] = []  # Reasons why the query cannot share the run


class QueryCall(msgspec.Struct, frozen=True):
    """A client's message with a call from the module `access`, encoded by `OffsetsOfLink`. A repeated message has the same `number`."""

    client: str
    number: int
    call: msgspec.Raw
    heard: int = 0  # How many of the run's log lines the client has received


class Leave(msgspec.Struct, frozen=True):
    """A client's report that its query has ended."""

    client: str
    heard: int = 0  # How many of the run's log lines the client has received so far
    planned: Mark | None = None  # The mark of the query's last micro-batch in Spark's log


class FinishedBatches(msgspec.Struct, frozen=True):
    """The driver's report that Spark has finished the micro-batches whose end offsets have these marks."""

    marks: list[Mark]
    query: str | None  # The query's name in Spark
    alone: bool = False  # Whether the query has a single source
    run: str = ""  # Spark's run id (`runId`) of the query


class CallReply(msgspec.Struct, frozen=True):
    """The reply to a client's message."""

    done: bool = False  # Whether the call is done. In the reply to `Leave`: whether the last client has left, so that the run ends
    result: msgspec.Raw = msgspec.Raw(b"null")  # The call's result, encoded by `OffsetsOfLink`
    known: bool = True  # False if the client never joined this run or was removed, or if the run is ending
    again: bool = False  # The run has dropped an offset: send the call again with full offsets and a new number
    said: list[str] = []  # Log lines of the run. The client logs them, since the run's own output may be closed


class _OffsetChanges(msgspec.Struct, frozen=True, array_like=True):
    """An offset: the shards that have `moved` or `left` since the offset with number `base`. Without a base, `moved` has all shards."""

    number: int
    base: int | None
    moved: list[tuple[ShardKey, Position, int | None]]  # With the position's number minus that of the last record
    left: list[ShardKey]
    lasts: list[tuple[ShardKey, int]]  # Last records of shards that have not moved
    mark: Mark | None
    horizons: dict[str, float] = {}
    created: dict[str, int] = {}
    until: list[tuple[ShardKey, float]] | None = None  # None if unchanged since `base`


class UnknownOffset(Exception):
    """Raised if a message refers to an offset that this process no longer has."""


class OffsetsOfLink:
    """Stores the offsets that two processes have sent each other, so that messages only contain an offset's number, or its changes.

    Each process numbers the offsets that it sends in steps of two, starting with `first`: 0 in one process, 1 in the other.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._offsets: OrderedDict[int, Offset] = OrderedDict()
        self._received: int | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def clear(self) -> None:
        """Drop all offsets. The next offset is sent with all its shards."""
        self._offsets.clear()

    def encode(self, message: Any) -> msgspec.Raw:
        """Encode a message with a number in place of each offset. Offsets that the other process does not have are prepended."""
        diff: list[_OffsetChanges] = []
        body = msgspec.json.encode(message, enc_hook=partial(self._encode_offset, diff))
        return msgspec.Raw(msgspec.json.encode((diff, msgspec.Raw(body))))

    def decode(self, data: msgspec.Raw, kind: Any) -> Any:
        """Decode a message. An offset that was received before is returned as the same object, which is cheap to compare.

        Raises UnknownOffset if the other process must send its offsets in full, and msgspec.MsgspecError for an invalid message.
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
        changes, numbers = offset.changes_since(base), offset.lasts
        moved = [(key, at, at.value - numbers[key] if key in numbers else None) for key, at in changes.items()]
        lasts = [(key, last) for key, last in numbers.items() if key not in changes]
        left = [] if base is None else [key for key in base if key not in offset]
        since = None if base is None else self._received
        until = None if base is not None and base.until == offset.until else list(offset.until.items())
        facts = dict(offset.horizons), dict(offset.created), until
        diff.append(_OffsetChanges(number, since, moved, left, lasts, offset.mark, *facts))
        return number

    def _add_offset(self, diff: _OffsetChanges) -> None:
        positions, until = {}, dict(diff.until or ())
        lasts = dict(diff.lasts) | {key: at.value - less for key, at, less in diff.moved if less is not None}
        if diff.base is not None:
            if (base := self._offsets.get(diff.base)) is None:
                raise UnknownOffset
            positions = dict(base.items())
            for key in diff.left:
                del positions[key]
            until = dict(base.until) if diff.until is None else until
        positions.update((key, at) for key, at, _ in diff.moved)
        self._store(diff.number, Offset(positions, lasts, diff.mark, diff.horizons, diff.created, until))

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
