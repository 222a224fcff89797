"""A guest's side of a run that another process of its Spark program has: calls to the host, and the query behind them."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.connection import Connection
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.manifest import StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.options.sharing import of_run
from kinesis_efo.planner.guest_messages import (
    ANSWER_SECONDS,
    CALL,
    JOIN,
    LEAVE,
    AddedOffset,
    Answer,
    AskEnds,
    AskTips,
    Call,
    CheckReplay,
    Commit,
    FoundParts,
    GuestCall,
    InitialOffset,
    Join,
    Joined,
    LastRecords,
    Leave,
    Place,
    Planned,
    Poll,
    Reading,
    Resume,
    Strict,
    Told,
    WaitHeld,
    bounds_parts,
    parsed_offset,
    start_parts,
)
from kinesis_efo.planner.program import HostFile
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, ShardKey, ShardRange
from kinesis_efo.processes import Process

T = TypeVar("T")

_TRANSPORT_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.1
_KEPT_OFFSETS: Final = 4
"""As many as a host keeps."""

Offsets = Callable[[Offset], Told]


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

    def leave(self, request: Leave) -> None:
        """Tell that the query has ended."""
        self.action(LEAVE, request, Answer, _LEAVE_SECONDS)


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
        self._told: OrderedDict[int, tuple[int, Offset]] = OrderedDict()
        self._offsets = 0
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
        request = Join(reader, *process, dict(streams), of_run(options), bounds_parts(options.ends))
        joined = self._client.join(request)
        self._guest = joined.guest
        return joined

    def call(self, make: Callable[[Offsets], Call], answer: type[T]) -> T:
        """Make a call, however long it takes. A host that is paused is waited for, as its own query does.

        Args:
            make: Makes the call; offsets are told as the function says that it is given.
            answer: The type of what the call returns.

        Raises:
            HostLostError: There is no such host, or not for this guest.
            KinesisEfoError: The error of the call.
        """
        with self._lock:
            request = self._request(make)
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
                    self._told.clear()
                    request = self._request(make)
                elif found.done:
                    return msgspec.json.decode(found.result, type=answer)
                self._check()

    def leave(self) -> None:
        """Tell the host that the query has ended; if that takes long, it learns that from the end of this process."""
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            return
        try:
            self._client.leave(Leave(self._guest))
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

    def _request(self, make: Callable[[Offsets], Call]) -> GuestCall:
        self._number += 1
        return GuestCall(self._guest, self._number, make(self._tell))

    def _tell(self, offset: Offset) -> Told:
        if (known := self._told.get(id(offset))) is not None:
            self._told.move_to_end(id(offset))
            return Told(known[0], None)
        self._offsets += 1
        # The offset is kept with its number: no other object gets its id meanwhile.
        self._told[id(offset)] = self._offsets, offset
        while len(self._told) > _KEPT_OFFSETS:
            self._told.popitem(last=False)
        return Told(self._offsets, offset.to_dict())


class GuestQuery:
    """A query that lives in another process; see `QueryAccess`.

    Args:
        link: The way there.
    """

    def __init__(self, link: HostLink) -> None:
        self._link = link

    def wait_held(self, *, timeout: float) -> bool:
        return self._link.call(lambda _: WaitHeld(timeout), bool)

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        return self._link.call(lambda tell: Poll(tell(offset), max_bytes, max_records, timeout), PollReply)

    def commit(self, offset: Offset) -> None:
        self._link.call(lambda tell: Commit(tell(offset)), type(None))

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        return dict(self._link.call(lambda _: LastRecords(ranges), list[tuple[ShardKey, int]]))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        self._link.call(lambda tell: CheckReplay(tell(begin), ranges), type(None))

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        kind: Any = FoundParts | None
        found: FoundParts | None = self._link.call(lambda tell: AskEnds(tell(offset), timeout), kind)
        return None if found is None else Found(dict(found[0]), found[1], dict(found[2]))

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        return frozenset(self._link.call(lambda _: Strict(sorted(streams)), list[str]))

    def resume(self, offset: Offset) -> None:
        self._link.call(lambda tell: Resume(tell(offset)), type(None))

    def planned(self, mark: Mark) -> None:
        self._link.call(lambda _: Planned(mark), type(None))

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        kind: Any = dict[str, Any] | None
        return parsed_offset(self._link.call(lambda tell: AskTips(tell(offset), timeout), kind))


class GuestRun:
    """A run that another process has; see `RunAccess`.

    Args:
        link: The way there.
        joined: What the host has answered.

    Attributes:
        is_guest: It is.
        link: The way there.
        address: Where tasks read, or ask who reads.
        by_planner: Whether tasks have to ask who reads.
        query: The query.
    """

    def __init__(self, link: HostLink, joined: Joined) -> None:
        assert joined.address is not None
        self.is_guest: Literal[True] = True
        self.link = link
        self.address: Final = joined.address
        self.by_planner: Final = joined.by_planner
        self.query: Final = GuestQuery(link)

    def initial_offset(self, start: Start) -> Offset:
        found = parsed_offset(self.link.call(lambda _: InitialOffset(start_parts(start)), dict[str, Any]))
        assert found is not None
        return found

    def added_offset(self, start: Start, names: Collection[str]) -> Offset:
        found = parsed_offset(self.link.call(lambda _: AddedOffset(start_parts(start), list(names)), dict[str, Any]))
        assert found is not None
        return found

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        if not self.by_planner:
            return [self.address] * len(ranges)
        kind: Any = list[FetcherAddress | None]
        placed: list[FetcherAddress | None] = self.link.call(lambda _: Place(ranges, at_most), kind)
        return placed

    @property
    def reading(self) -> bool:
        """See `RunAccess`: also true if it is another query's task."""
        return self.link.call(lambda _: Reading(), bool)
