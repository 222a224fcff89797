"""A guest's side of a run that another process of its Spark program has: calls to the host, and the query behind them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from kinesis_efo.calls.connection import Connection
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import Call, answer_type
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
)
from kinesis_efo.planner.program import HostFile
from kinesis_efo.processes import Process

T = TypeVar("T")

_TRANSPORT_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 2.0
_ENDING_SECONDS: Final = 10.0
"""A run that nobody needs any more releases its leases in this time. Who asks a query to end expects that."""
_LOOK_SECONDS: Final = 0.02
_AGAIN_SECONDS: Final = 0.1


class HostLostError(Exception):
    """The host has ended, is ending, or does not know this guest any more."""


class HostClient(Connection):
    """One connection to the host of a run; see `Connection`."""

    service = "host of the run"

    def join(self, request: Join) -> Joined:
        """Ask to be a guest."""
        return self.action(JOIN, request, Joined, _TRANSPORT_SECONDS)

    def ask(self, request: GuestCall) -> Answer:
        """Make a call, or ask again for one that took long."""
        return self.action(CALL, request, Answer, ANSWER_SECONDS + _TRANSPORT_SECONDS)

    def leave(self, request: Leave) -> Answer:
        """Tell that the query has ended."""
        return self.action(LEAVE, request, Answer, _LEAVE_SECONDS)

    def finished(self, told: Finished) -> None:
        """Tell which micro-batches Spark has finished; for the driver."""
        self.action(FINISHED, told, Answer, _LEAVE_SECONDS)


class HostLink:
    """The way of one guest to its host. Its calls follow one another; it may be used by several threads.

    Args:
        file: The host's file.
        client: A connection to it.
        check: Called while there is no answer; raises to give up.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self, file: HostFile, client: HostClient, check: Callable[[], None], sleep: Callable[[float], object]
    ) -> None:
        self.file = file
        self._client = client
        self._check = check
        self._sleep = sleep
        self._guest = ""
        self._number = 0
        self.offsets = OffsetsOfLink(0)
        self._lock = threading.Lock()

    def join(self, reader: str, process: Process, streams: Mapping[str, StreamRef], options: SourceOptions) -> Joined:
        """Ask to be a guest; without a name in the answer, this process is none.

        Args:
            reader: Names the query. Who asks again, because an answer was lost, is one guest all the same.
            process: This process.
            streams: What the query reads, by logical name.
            options: The options of the query.

        Raises:
            FetcherUnreachableError, FetcherRefusedError: There is no host, or it does not answer.
        """
        request = Join(reader, *process, dict(streams), dict(options.given))
        joined = self._client.join(request)
        self._guest = joined.guest
        return joined

    def ask(self, call: Call[T]) -> T:
        """Make a call, however long it takes. A host that is paused is waited for, as its own query does.

        Raises:
            HostLostError: There is no such host, or not for this guest.
            KinesisEfoError: The error of the call.
        """
        with self._lock:
            request = self._request(call)
            while True:
                try:
                    found = self._client.ask(request)
                except (FetcherUnreachableError, FetcherRefusedError) as error:
                    if not self.file.host_lives:
                        raise HostLostError from error
                    self._check()
                    self._sleep(_AGAIN_SECONDS)
                    continue
                sys.stderr.writelines(found.said)
                if not found.known:
                    raise HostLostError
                if found.again:
                    self.offsets.clear()
                    request = self._request(call)
                elif found.done:
                    answer: T = self.offsets.decode(found.result, answer_type(call))
                    return answer
                self._check()

    def leave(self) -> None:
        """Tell the host that the query has ended; if that takes long, it learns that from the end of this process."""
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            return
        try:
            answer = self._client.leave(Leave(self._guest))
            sys.stderr.writelines(answer.said)
            give_up_at = time.monotonic() + _ENDING_SECONDS if answer.done else 0.0
            while time.monotonic() < give_up_at and self.file.host_lives:
                self._sleep(_LOOK_SECONDS)
        except (FetcherUnreachableError, FetcherRefusedError):
            pass  # it has ended, too
        finally:
            self._close()
            self._lock.release()

    def close(self) -> None:
        """Close the connection to a host that is lost."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._client.close()
        self.file.close()

    def _request(self, call: Call[Any]) -> GuestCall:
        self._number += 1
        return GuestCall(self._guest, self._number, self.offsets.encode(call))


class GuestRun:
    """A run that another process has.

    Args:
        link: The way there.
        joined: What the host has answered.

    Attributes:
        is_guest: It is.
        link: The way there.
        address: Where tasks read, or ask who reads.
        by_planner: Whether tasks have to ask who reads.
        certificate: What encrypts the run's services; None: nothing does.
    """

    def __init__(self, link: HostLink, joined: Joined) -> None:
        assert joined.address is not None
        self.is_guest: Literal[True] = True
        self.link = link
        self.address: Final = joined.address
        self.by_planner: Final = joined.by_planner
        self.certificate: Final = joined.certificate

    def ask(self, call: Call[T]) -> T:
        """Make a call; see `HostLink.ask`."""
        return self.link.ask(call)
