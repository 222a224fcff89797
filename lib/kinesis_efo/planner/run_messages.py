"""The messages between a run and its clients: the processes of its queries.

The client calls. Each call to a query has a number: one that takes long is asked for again by its number, and so is one
whose answer was lost. It runs once, and to its end, as it would in the query's own process.
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
"""Longest time until the run answers that a call is not done yet."""

_KEPT_OFFSETS: Final = 4
"""A reader plans from one offset to the next, and commits the one before."""


class Join(msgspec.Struct, frozen=True):
    """A process asks to be a client of the run.

    Attributes:
        reader: Names its query, so that one who asks again takes the place of himself.
        pid: Its process id.
        started: When it started.
        streams: What its query reads, by logical name.
        options: The options of its query, as they were given.
    """

    reader: str
    pid: int
    started: str
    streams: dict[str, StreamRef]
    options: dict[str, str]


class Joined(msgspec.Struct, frozen=True):
    """The answer to a process that asks to be a client.

    Attributes:
        client: Its name from now on; empty if it is refused.
        address: Where tasks read its shards, or ask who does.
        by_planner: Whether tasks have to ask the planner who reads a shard.
        certificate: Encrypts the run's services, and the client's, which belong to the same user. None: nothing is encrypted.
        faults: Why its query cannot share the run.
    """

    client: str = ""
    address: FetcherAddress | None = None
    by_planner: bool = False
    certificate: Certificate | None = None
    faults: list[str] = []


class QueryCall(msgspec.Struct, frozen=True):
    """A call of a client.

    Attributes:
        client: Its name.
        number: The number of the call.
        call: The call; see `access`.
    """

    client: str
    number: int
    call: msgspec.Raw


class Leave(msgspec.Struct, frozen=True):
    """A client's query has ended."""

    client: str


class Finished(msgspec.Struct, frozen=True):
    """Spark has finished micro-batches, in its driver's words.

    Attributes:
        marks: The marks of their ends.
        query: The name of their query; None if it has none.
    """

    marks: list[Mark]
    query: str | None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a call of a client.

    Attributes:
        done: Whether the call is done. After a leave: whether the run ends, because that was its last client.
        result: What it has returned then, in the form of its own.
        known: Whether the run has this client.
        again: Whether it lacks an offset that the call names: tell it, with another number.
        said: Log lines of the run, which the client writes: the driver may have closed the run's own output.
    """

    done: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    known: bool = True
    again: bool = False
    said: list[str] = []


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """An offset in a message, as changes to an earlier one.

    Attributes:
        number: Its number.
        base: The number of the one that it is told by; None: by none.
        moved: The shards with another position than there.
        left: The shards that it does not name, and the other does.
        lasts: Its last records.
        mark: Its mark.
    """

    number: int
    base: int | None
    moved: list[tuple[ShardKey, Position]]
    left: list[ShardKey]
    lasts: list[tuple[ShardKey, int]]
    mark: Mark | None


class UnknownOffset(Exception):
    """A message names an offset by a number that is not kept here."""


class OffsetsOfLink:
    """The offsets that two processes have told each other. Each is told once, by what has changed: there may be thousands of shards.

    Args:
        first: The number of the first one that this process tells; 0 and 1, for the two count in steps of two.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._known: OrderedDict[int, Offset] = OrderedDict()
        self._heard: int | None = None

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget them: each is sent whole again."""
        self._known.clear()

    def encode(self, message: Any) -> msgspec.Raw:
        """A message with its offsets, of which it has the numbers itself."""
        told: list[_Told] = []
        body = msgspec.json.encode(message, enc_hook=partial(self._tell, told))
        return msgspec.Raw(msgspec.json.encode((told, msgspec.Raw(body))))

    def decode(self, data: msgspec.Raw, kind: Any) -> Any:
        """What `encode` of the other process made. Offsets that were told before are the same objects, which is cheap to recognize.

        Raises:
            UnknownOffset: The other process has to tell all offsets anew.
            msgspec.MsgspecError: It is something else.
        """
        told, body = msgspec.json.decode(data, type=tuple[list[_Told], msgspec.Raw])
        for each in told:
            self._hear(each)
        return msgspec.json.decode(body, type=kind, dec_hook=self._named)

    def _tell(self, told: list[_Told], offset: Any) -> int:
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
        told.append(_Told(number, None if base is None else self._heard, moved, left, lasts, offset.mark))
        return number

    def _hear(self, told: _Told) -> None:
        positions = {}
        if told.base is not None:
            if (base := self._known.get(told.base)) is None:
                raise UnknownOffset
            positions = dict(base)
            for key in told.left:
                del positions[key]
        positions.update(told.moved)
        self._keep(told.number, Offset(positions, dict(told.lasts), told.mark))

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
