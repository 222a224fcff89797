"""Handles the calls of a run's clients and owns the query of each client, in the run's event loop.

A client is a planner: the Python process that Spark starts for a query's source. If it dies, its query is removed in about a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from kinesis_efo.calls.service import decoded
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import differences, of_run
from kinesis_efo.positions import Mark
from kinesis_efo.processes import Process
from kinesis_efo.run.access import AnyCall, Begin, Call
from kinesis_efo.run.messages import (
    ANSWER_SECONDS,
    CALL,
    FINISHED,
    JOIN,
    LEAVE,
    CallReply,
    FinishedBatches,
    Join,
    JoinReply,
    Leave,
    OffsetsOfLink,
    QueryCall,
    UnknownOffset,
)
from kinesis_efo.run.query_planner import QueryPlanner

if TYPE_CHECKING:
    from kinesis_efo.run.whole_run import WholeRun

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_LATE_SECONDS: Final = 60.0
"""For this many seconds after a query has left this run, or moved to it from a dead run, ignore driver reports with an unknown Spark run
id: they may be about another query with a copy of the same checkpoint that has also just left or has not joined yet."""


class _Client:
    def __init__(self, reader: str, process: Process, planner: QueryPlanner, ready: asyncio.Task[None]) -> None:
        self.reader = reader  # The name of the client's query
        self.process = process
        self.planner = planner
        self.ready = ready  # The task that opens the query's streams that are new to the run
        self.number = 0  # The number of the client's last call
        self.spark_run = ""  # Spark's run id (`runId`) of the query; empty if unknown
        self.calling: asyncio.Task[msgspec.Raw] | None = None  # The task that executes the last call
        self.log_lines: list[str] = []  # Log lines sent in replies, until the client confirms their receipt
        self.lines_received = 0  # How many log lines the client has confirmed
        self.offsets = OffsetsOfLink(1)

    def drop_received(self, lines: int) -> None:
        """Drop the log lines that the client has received. `lines` is their total number since the client joined."""
        del self.log_lines[: max(0, lines - self.lines_received)]
        self.lines_received = max(self.lines_received, lines)


class Clients:
    """Handles the calls of one run's clients. It lives in the run's event loop and is not thread-safe.

    `log_lines` collects log lines of the run. The next client that makes a call receives and logs them.
    """

    answer_seconds = ANSWER_SECONDS

    def __init__(self, run: WholeRun, log_lines: deque[str]) -> None:
        self._log_lines = log_lines
        self._run = run
        self._clients: dict[str, _Client] = {}
        self._closed = False
        self._watching: asyncio.Task[None] | None = None
        self._past: set[str] = set()  # Spark run ids of queries that no longer use the run
        self._left_at: dict[str | None, float] = {}  # When a query last left this run or moved to it, by checkpoint

    def __len__(self) -> int:
        return len(self._clients)

    async def answer(self, kind: str, body: bytes) -> msgspec.Struct | None:
        """Return the reply to the message `body` of type `kind`; None if clients do not send this type."""
        if kind == JOIN:
            return await self._join(decoded(body, Join))
        if kind == CALL:
            return await self._answer(decoded(body, QueryCall))
        if kind == FINISHED:
            await self._finished(decoded(body, FinishedBatches))
            return CallReply(known=False)
        if kind == LEAVE:
            leave = decoded(body, Leave)
            if (client := self._clients.get(leave.client)) is not None:
                client.drop_received(leave.heard)
                if leave.planned is not None:
                    client.planner.query.record_logged(leave.planned)
            await self._drop(leave.client)
            return CallReply(not self._clients, known=False, said=self._drain_log())
        return None

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Stop accepting clients and serving the current clients. These then join another run or start one.

        With `only_if_alone`, does nothing while there are clients. Returns whether the run is closed to clients now.
        """
        if not (only_if_alone and self._clients):
            self._closed = True
        return self._closed

    async def stop(self) -> None:
        """Stop serving clients. Their queries remain in the run: the lease rows must not advance past the slowest query's position."""
        self._closed = True
        tasks = [
            self._watching,
            *(task for client in self._clients.values() for task in (client.ready, client.calling)),
        ]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- joining and leaving the run

    async def _join(self, request: Join) -> JoinReply:
        # A reader that received no reply to `Join` sends it again. Drop the first request's client, for which `Leave` is never sent.
        for name in [name for name, client in self._clients.items() if client.reader == request.reader]:
            await self._drop(name)
        if self._closed:
            return JoinReply()
        streams = request.streams
        options = SourceOptions.parse(request.options)
        faults = [*self._run.stream_faults(streams), *differences(of_run(self._run.options), of_run(options))]
        if faults:
            return JoinReply(faults=faults)
        name = uuid4().hex
        ready = self._run.extend(streams)
        ready.add_done_callback(_retrieve_error)
        planner = self._run.new_query(request.reader, frozenset(streams), options)
        self._clients[name] = _Client(request.reader, Process(request.pid, request.started), planner, ready)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="clients")
        if len(self._clients) > 1:
            logger.info("process %d of this program reads %s, too: it shares this run", request.pid, ", ".join(streams))
        return JoinReply(name, self._run.address, self._run.planner_address is not None, self._run.certificate)

    async def _watch(self) -> None:
        while self._clients:
            await self._run.clock.sleep(_LOOK_SECONDS)
            # Iterate over a copy, because clients may leave while `_drop` waits.
            for name, client in [each for each in self._clients.items() if not each[1].process.lives()]:
                logger.debug("process %d, which shared this run, has ended", client.process.pid)
                await self._drop(name)

    async def _drop(self, name: str) -> None:
        if (client := self._clients.get(name)) is None:
            return
        try:
            for task in (client.calling, client.ready):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await client.planner.query.leave()
        except Exception:
            logger.exception("removing a query from its run failed")
        finally:
            # Remove the client last: the run ends with its last client, and must not end while a query is leaving.
            self._clients.pop(name, None)
            self._log_lines.extendleft(reversed(client.log_lines))
            if client.spark_run:
                self._past.add(client.spark_run)
            else:
                self._left_at[client.planner.query.progress.checkpoint] = self._run.clock.monotonic()
            if not self._clients:
                self._run.emptied.set()

    async def _finished(self, finished: FinishedBatches) -> None:
        for client in list(self._clients.values()):
            marks = [mark for mark in finished.marks if self._is_of(client, mark, finished.run)]
            with contextlib.suppress(KinesisEfoError):  # ignore errors: the query's next call raises them, too
                await client.planner.finished(marks, finished.query, alone=finished.alone)

    def _is_of(self, client: _Client, mark: Mark, run: str) -> bool:
        """Whether a driver's report is for this client. False if it may be about another query, which uses a copy of the same checkpoint.

        Ignoring a report is harmless: Spark's request for the next micro-batch also shows that the previous one is finished.
        """
        same = [each for each in self._clients.values() if each.planner.query.progress.checkpoint == mark.checkpoint]
        if client not in same:
            return True
        known = [each for each in same if each.spark_run == run]
        is_late = self._run.clock.monotonic() - self._left_at.get(mark.checkpoint, -inf) < _LATE_SECONDS
        if not known and run not in self._past and not is_late:
            known = [each for each in same if not each.spark_run]
        if known == [client]:
            client.spark_run = run
        return known == [client]

    # -- calls of joined clients

    async def _answer(self, request: QueryCall) -> CallReply:
        client = self._clients.get(request.client)
        if client is None or self._closed:
            return CallReply(known=False)
        # Start only new calls. A repeated request, or one that was delayed in a closed connection, must not execute its call again.
        if client.calling is None or client.number < request.number:
            try:
                call = client.offsets.decode(request.call, AnyCall)
            except UnknownOffset:
                return CallReply(again=True)
            except msgspec.MsgspecError as error:
                raise FetcherError(f"not a call: {error}") from None
            before, client.number = client.calling, request.number
            client.calling = asyncio.create_task(self._after(before, client, call), name="call of a client")
            client.calling.add_done_callback(_retrieve_error)
        calling = client.calling
        await asyncio.wait({calling}, timeout=self.answer_seconds)
        if self._closed or request.client not in self._clients:
            return CallReply(known=False)
        client.drop_received(request.heard)
        client.log_lines += self._drain_log()
        if not calling.done():
            return CallReply(said=client.log_lines[:])
        try:
            return CallReply(done=True, result=calling.result(), said=client.log_lines[:])
        except FetcherUnreachableError as error:
            # Change the type: for a client, a `FetcherUnreachableError` means that the run does not respond.
            raise FetcherError(str(error)) from error

    def _drain_log(self) -> list[str]:
        lines = []
        while self._log_lines:
            lines.append(self._log_lines.popleft())
        return lines

    async def _after(self, before: asyncio.Task[msgspec.Raw] | None, client: _Client, call: Call[Any]) -> msgspec.Raw:
        """Execute a call once the client's previous call has ended."""
        if before is not None:
            await asyncio.wait({before})
        # Shield the task that opens streams: other calls need it if this call is cancelled.
        await asyncio.shield(client.ready)
        if isinstance(call, Begin) and call.kept is not None and call.kept.mark is not None:
            self._left_at[call.kept.mark.checkpoint] = self._run.clock.monotonic()
        return client.offsets.encode(await client.planner.answer(call))


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task as retrieved, so that asyncio does not log it: the client receives it with the reply."""
    if not task.cancelled():
        task.exception()
