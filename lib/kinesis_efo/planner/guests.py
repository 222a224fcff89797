"""The guests of a run: queries of other processes of the same Spark program, which live here, in the run's event loop.

A guest's process is looked at once a second: the queries of one that is gone are taken out of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import Certificate
from kinesis_efo.clock import Clock
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.sharing import differences, of_run
from kinesis_efo.planner.access import AnyCall, Call
from kinesis_efo.planner.guest_messages import (
    ANSWER_SECONDS,
    CALL,
    FINISHED,
    JOIN,
    LEAVE,
    Answer,
    Finished,
    GuestCall,
    Join,
    Joined,
    Leave,
    OffsetsOfLink,
    UnknownOffset,
)
from kinesis_efo.planner.query_planner import QueryPlanner
from kinesis_efo.processes import Process

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class Host(Protocol):
    """What guests need of the run's process: `PlannerRuntime`. Every method runs in the run's event loop."""

    @property
    def options(self) -> SourceOptions:
        """The options of the query that the run began with."""

    @property
    def clock(self) -> Clock:
        """Time."""

    @property
    def emptied(self) -> threading.Event:
        """Set when the last guest has left."""

    @property
    def planner(self) -> QueryPlanner | None:
        """Plans for the query of its own process; None if it has none."""

    @property
    def address(self) -> FetcherAddress:
        """Where tasks read, or ask who reads."""

    @property
    def certificate(self) -> Certificate | None:
        """Encrypts what its service sends by TCP; None: nothing does."""

    @property
    def planner_address(self) -> FetcherAddress | None:
        """Where tasks ask who reads a shard; None if that never changes."""

    def stream_faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        """Why a query that reads some streams cannot share the run."""

    def extend(self, streams: Mapping[str, StreamRef]) -> asyncio.Task[None]:
        """Let streams be read that the run does not read yet. Others of the program see them at once, the task is done once they are open."""

    def new_query(self, name: str, streams: Collection[str], options: SourceOptions) -> QueryPlanner:
        """Plans for one more query of the run; its tasks give its name."""


class _Guest:
    """One guest.

    Attributes:
        reader: Names its query.
        process: Its process.
        planner: Plans for its query.
        ready: Opens what the run did not read before.
        number: The number of its last call.
        calling: That call.
        offsets: The offsets that it has told, and was told.
    """

    def __init__(self, reader: str, process: Process, planner: QueryPlanner, ready: asyncio.Task[None]) -> None:
        self.reader = reader
        self.process = process
        self.planner = planner
        self.ready = ready
        self.number = 0
        self.calling: asyncio.Task[msgspec.Raw] | None = None
        self.offsets = OffsetsOfLink(1)


class Guests:
    """Answers the guests of one run. It lives in the run's event loop and is not thread-safe.

    Args:
        host: The run's process.
        said: Lines that the next guest that calls is to write for this process.
    """

    def __init__(self, host: Host, said: deque[str]) -> None:
        self._said = said
        self._host = host
        self._guests: dict[str, _Guest] = {}
        self._closed = False
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._guests)

    async def answer(self, kind: str, body: bytes) -> msgspec.Struct | None:
        """Answer a message; None if it is none of a guest.

        Args:
            kind: The type of the message.
            body: The message.

        Raises:
            KinesisEfoError: The error of the call.
        """
        match kind:
            case str(name) if name == JOIN:
                return await self._join(_decoded(body, Join))
            case str(name) if name == CALL:
                return await self._answer(_decoded(body, GuestCall))
            case str(name) if name == FINISHED:
                await self._finished(_decoded(body, Finished))
                return Answer(known=False)
            case str(name) if name == LEAVE:
                await self._drop(_decoded(body, Leave).guest)
                return Answer(self._host.planner is None and not self._guests, known=False, said=self._told())
        return None

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Take no more guests, and answer those that are there no more: they look for another host.

        Args:
            only_if_alone: Do nothing if there are guests.

        Returns:
            Whether it is closed.
        """
        if not (only_if_alone and self._guests):
            self._closed = True
        return self._closed

    async def stop(self) -> None:
        """Let all guests go. Their queries end with the run: one that left before it would no longer hold back its checkpoints."""
        self._closed = True
        tasks = [self._watching, *(task for guest in self._guests.values() for task in (guest.ready, guest.calling))]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- coming and going

    async def _join(self, request: Join) -> Joined:
        # An answer may have been lost: nobody would ever end the query of that guest.
        for name in [name for name, guest in self._guests.items() if guest.reader == request.reader]:
            await self._drop(name)
        if self._closed:
            return Joined()
        streams = request.streams
        options = SourceOptions.parse(request.options)
        faults = [*self._host.stream_faults(streams), *differences(of_run(self._host.options), of_run(options))]
        if faults:
            return Joined(faults=faults)
        name = uuid4().hex
        ready = self._host.extend(streams)
        ready.add_done_callback(_heard)
        planner = self._host.new_query(request.reader, frozenset(streams), options)
        self._guests[name] = _Guest(request.reader, Process(request.pid, request.started), planner, ready)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="guests")
        logger.info(
            "process %d of this Spark program reads %s, too: its query shares this run", request.pid, ", ".join(streams)
        )
        return Joined(name, self._host.address, self._host.planner_address is not None, self._host.certificate)

    async def _watch(self) -> None:
        while self._guests:
            await self._host.clock.sleep(_LOOK_SECONDS)
            for name in [name for name, guest in self._guests.items() if not guest.process.lives()]:
                logger.info("process %d, which shared this run, is gone", self._guests[name].process.pid)
                await self._drop(name)

    async def _drop(self, name: str) -> None:
        if (guest := self._guests.get(name)) is None:
            return
        try:
            for task in (guest.calling, guest.ready):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await guest.planner.query.leave()
        except Exception:
            logger.exception("a query did not leave its run in order")
        finally:
            # Only now: the run must not end while a query leaves it.
            self._guests.pop(name, None)
            if not self._guests:
                self._host.emptied.set()

    async def _finished(self, told: Finished) -> None:
        planners = [guest.planner for guest in self._guests.values()]
        for planner in planners if self._host.planner is None else [self._host.planner, *planners]:
            with contextlib.suppress(KinesisEfoError):  # one that has failed learns that by its own calls
                await planner.finished(told.marks, told.query)

    # -- calls

    async def _answer(self, request: GuestCall) -> Answer:
        guest = self._guests.get(request.guest)
        if guest is None or self._closed:
            return Answer(known=False)
        if guest.calling is None or guest.number != request.number:
            try:
                call = guest.offsets.decode(request.call, AnyCall)
            except UnknownOffset:
                return Answer(again=True)
            except msgspec.MsgspecError as error:
                raise FetcherError(f"not a call: {error}") from None
            before, guest.number = guest.calling, request.number
            guest.calling = asyncio.create_task(self._after(before, guest, call), name="call of a guest")
            guest.calling.add_done_callback(_heard)
        calling = guest.calling
        await asyncio.wait({calling}, timeout=ANSWER_SECONDS)
        if self._closed or request.guest not in self._guests:
            return Answer(known=False)
        if not calling.done():
            return Answer()
        try:
            return Answer(done=True, result=calling.result(), said=self._told())
        except FetcherUnreachableError as error:
            # To the guest, the type says that this process is not reached.
            raise FetcherError(str(error)) from error

    def _told(self) -> list[str]:
        lines = []
        while self._said:
            lines.append(self._said.popleft())
        return lines

    async def _after(self, before: asyncio.Task[msgspec.Raw] | None, guest: _Guest, call: Call[Any]) -> msgspec.Raw:
        """Make a call once the one before is over, which its caller may not have waited for: calls of a query follow each other."""
        if before is not None:
            await asyncio.wait({before})
        # Not cut off with this call: others may wait for it, too.
        await asyncio.shield(guest.ready)
        return guest.offsets.encode(await guest.planner.answer(call))


def _decoded(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise FetcherError(f"not a {kind.__name__}: {error}") from None


def _heard(task: asyncio.Task[Any]) -> None:
    """Whoever asks for its result gets its error; if nobody does, nobody has to know."""
    if not task.cancelled():
        task.exception()
