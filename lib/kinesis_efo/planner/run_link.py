"""A client's connection to its run in another process."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, TypeVar

import msgspec

from kinesis_efo.calls.connection import Connection
from kinesis_efo.errors import FetcherError, FetcherRefusedError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import RunFile
from kinesis_efo.positions import Mark
from kinesis_efo.processes import Process, read_stat
from kinesis_efo.run.access import Call, answer_type
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
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TRANSPORT_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
_AGAIN_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 10.0
"""Seconds without a reply until the first warning. During a long call, a run replies every `ANSWER_SECONDS`."""
_WORD_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 1.0
_STATES: Final = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "in uninterruptible sleep",
    "S": "sleeping",
    "R": "running",
}


class RunLostError(Exception):
    """The run has ended, is ending, or has dropped this client."""


class Silence:
    """Measures for how long a run's process has not replied. Warns after 10 seconds; after another `patience` seconds, `check` fails.

    `tick` is called about every half second, and adds at most one second. If more time has passed, this process was suspended, probably
    with the whole machine, so that it could not receive a reply.
    """

    def __init__(self, patience: float, streams: str = "") -> None:
        self._most = _SILENT_SECONDS + patience
        self._streams = streams
        self._awaited: int | None = None
        self._seconds = 0.0
        self._word_at = _SILENT_SECONDS
        self._ticked_at = time.monotonic()

    def expect(self, pid: int) -> None:
        """Start measuring: a reply is now expected from process `pid` (0 if it is unknown which process has to reply)."""
        if self._awaited is None:
            self._seconds, self._word_at = 0.0, _SILENT_SECONDS
        self._awaited = pid

    def reset(self) -> None:
        """Stop measuring the silence: the expected reply was received."""
        self._awaited = None

    def tick(self) -> None:
        """Add the time since the last call to the silence, and warn if due."""
        before, self._ticked_at = self._ticked_at, time.monotonic()
        if self._awaited is None:
            return
        self._seconds += min(self._ticked_at - before, _STEP_SECONDS)
        if self._seconds >= self._word_at:
            self._word_at += _WORD_SECONDS
            logger.warning("%s", str(self))

    def check(self) -> None:
        """Raise FetcherError if the expected reply has been missing for too long."""
        if self._awaited is not None and self._seconds >= self._most:
            raise FetcherError(f"{self}. Nothing was lost: restart the query after that")

    def __str__(self) -> str:
        pid, seconds = self._awaited, self._seconds
        if not pid:
            return f"another source of this Spark program has been starting or ending the run of {self._streams} for {seconds:.0f} s"
        stat = read_stat(pid)
        state = "" if stat is None else f", state {stat.state}: {_STATES.get(stat.state, 'see proc_pid_stat(5)')}"
        return (
            f"the process that fetches {self._streams} (pid {pid}{state}) has not answered for {seconds:.0f} s. If it or its container is "
            "stopped, continue it; otherwise end it with SIGKILL, and another process replaces it"
        )


class RunConnection(Connection):
    """The connection of a planner or driver to a run. See `Connection` for the arguments."""

    service = "run"

    def join(self, request: Join) -> JoinReply:
        """Request to become a client of the run."""
        return self.action(JOIN, request, JoinReply, _TRANSPORT_SECONDS)

    def ask(self, request: QueryCall) -> CallReply:
        """Make a call, or request the result of a call that is still running."""
        return self.action(CALL, request, CallReply, ANSWER_SECONDS + _TRANSPORT_SECONDS)

    def leave(self, request: Leave) -> CallReply:
        """Report that a client's query has ended."""
        return self.action(LEAVE, request, CallReply, _LEAVE_SECONDS)

    def finished(self, report: FinishedBatches) -> None:
        """Report finished micro-batches. Only the driver calls this."""
        self.action(FINISHED, report, CallReply, _LEAVE_SECONDS)


class RunLink:
    """Makes the calls of one client to its run, one after another. Thread-safe.

    Args:
        check: Called while there is no reply; raises an error to give up.
        silence: Measures how long replies take.
    """

    ending_seconds = 10.0
    """Maximum seconds for which `query.stop()` waits until a run without queries has released its leases and ended."""

    def __init__(
        self,
        file: RunFile,
        connection: RunConnection,
        check: Callable[[], None],
        sleep: Callable[[float], object],
        silence: Silence | None = None,
    ) -> None:
        self._silence = silence or Silence(inf)
        self.file = file
        self._connection = connection
        self._check = check
        self._sleep = sleep
        self._number = self._heard = 0
        self.offsets = OffsetsOfLink(0)
        self._lock = threading.Lock()
        self.joined = JoinReply()  # The reply to `join`

    def join(
        self, reader: str, process: Process, streams: Mapping[str, StreamRef], options: SourceOptions
    ) -> JoinReply:
        """Request to become a client of the run. If the reply lacks a client name, the run has rejected the request.

        `reader` is the name of the query. A second request with the same name replaces the first, whose reply may have been lost. Raises
        FetcherUnreachableError or FetcherRefusedError if the run has ended or does not respond.
        """
        request = Join(reader, *process, dict(streams), dict(options.given))
        self._silence.expect(self.file.entry.pid)
        self.joined = self._connection.join(request)
        if self.joined.client or self.joined.faults:
            self._silence.reset()
        return self.joined

    def ask(self, call: Call[T]) -> T:
        """Make a call, and wait for its result without a time limit. Raises RunLostError if the run has ended or dropped this client."""
        with self._lock:
            request = self._request(call)
            while True:
                self._silence.expect(self.file.entry.pid)
                try:
                    found = self._connection.ask(msgspec.structs.replace(request, heard=self._heard))
                except (FetcherUnreachableError, FetcherRefusedError) as error:
                    if not self.file.lives:
                        self._silence.reset()
                        raise RunLostError from error
                    self._check()
                    self._sleep(_AGAIN_SECONDS)
                    continue
                except KinesisEfoError:
                    self._silence.reset()  # an error is a reply, too
                    raise
                self._silence.reset()
                self._heard += len(found.said)
                sys.stderr.writelines(found.said)
                if not found.known:
                    raise RunLostError
                if found.again:
                    self.offsets.clear()
                    request = self._request(call)
                elif found.done:
                    answer: T = self.offsets.decode(found.result, answer_type(call))
                    return answer
                self._check()

    def leave(self, planned: Mark | None) -> None:
        """Report that the query has ended, with the mark of its last micro-batch in Spark's log (`planned`). If the run ends too, wait for
        its end. Ignores errors: the run also detects dead clients."""
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            return
        try:
            answer = self._connection.leave(Leave(self.joined.client, self._heard, planned))
            sys.stderr.writelines(answer.said)
            give_up_at = time.monotonic() + self.ending_seconds if answer.done else 0.0
            while time.monotonic() < give_up_at and self.file.lives:
                self._sleep(_LOOK_SECONDS)
        except (FetcherUnreachableError, FetcherRefusedError):
            pass  # the run has already ended, or does not respond
        finally:
            self._close()
            self._lock.release()

    def close(self) -> None:
        """Close the connection to a lost run."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._connection.close()
        self.file.close()

    def _request(self, call: Call[Any]) -> QueryCall:
        self._number += 1
        return QueryCall(self.joined.client, self._number, self.offsets.encode(call))
