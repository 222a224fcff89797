"""A run that the queries of one Spark program share: this process begins it, or is the guest of the one that has.

If the host is gone, its guests go on by themselves: one of them begins the run anew, and the others become its guests. Tasks notice
nothing but a pause: they ask where to read, and go on there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.assembly import certificate_for
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.manifest import Manifest
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.planner.access import QueryAccess
from kinesis_efo.planner.joining import Joining, OwnRun
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, ShardKey, ShardRange

# What a guest needs is imported by guests: most queries are alone in their program.
if TYPE_CHECKING:
    from kinesis_efo.planner.guest import GuestRun
    from kinesis_efo.planner.where_service import HostPlace, WhereService

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSING_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5


class SharedRun:
    """The run of one stream reader; see `RunAccess`.

    Args:
        program: Finds the runs of this Spark program.
        manifest: The application, with the streams to read.
        options: The options of the query.
        listening: Where to listen for tasks.
        begin: Makes a run of this process that others may share, with a secret or a new one, and the name of its query.
        spark_waits: Whether Spark waits for what this process still has to say.
        hand_over_output: Called before this process stays for its guests although Spark needs it no more, with what takes the
            lines that it would write.
    """

    def __init__(
        self,
        program: Program,
        manifest: Manifest,
        options: SourceOptions,
        listening: Listening,
        begin: Callable[[str | None, str], OwnRun],
        spark_waits: Callable[[], bool],
        hand_over_output: Callable[[Callable[[str], None]], None],
    ) -> None:
        self._options = options
        self._listening = listening
        self._spark_waits = spark_waits
        self._hand_over_output = hand_over_output
        self._jvm = os.getppid()
        self._joining = Joining(program, manifest, options, begin, self._check)
        self._run: OwnRun | GuestRun | None = None
        self._where: WhereService | None = None
        self._error: KinesisEfoError | None = None
        self._left = threading.Event()
        self._hurry = threading.Event()
        self._attaching = threading.RLock()
        self._stopping = threading.RLock()
        self.query: Final = SharedQuery(self)

    # -- what the stream reader asks

    def start(self) -> None:
        """Join the run of this program that reads the streams, or begin one.

        Raises:
            KinesisEfoError: As `Joining.run`.
        """
        with self._attaching:
            self._run = self._joining.run()
        if self._run.is_guest:
            self._be_guest()

    def initial_offset(self, start: Start) -> Offset:
        return self.call(lambda run: run.initial_offset(start))

    def added_offset(self, start: Start, names: Collection[str]) -> Offset:
        return self.call(lambda run: run.added_offset(start, names))

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        return self.call(lambda run: run.place(ranges, at_most))

    @property
    def planner_address(self) -> FetcherAddress | None:
        if self._where is not None:
            return self._where.address
        run = self._run
        return None if run is None or run.is_guest else run.planner_address

    @property
    def secret(self) -> str:
        return self._joining.secret

    @property
    def query_name(self) -> str:
        return self._joining.query_name

    @property
    def reading(self) -> bool:
        """See `RunAccess`. Tasks of other queries count, too."""
        # Of a run that has ended, nobody reads.
        with contextlib.suppress(KinesisEfoError):
            return self.call(lambda run: run.reading)
        return False

    def stop(self) -> None:
        """End the query. A host stays for its guests, until the last one has left or the program has ended."""
        if self._spark_waits():
            # Its answer is an error, which Spark gets once this returns: the guests have to find another host.
            self._hurry.set()
        self._left.set()
        with self._stopping:
            with self._attaching:  # whoever is just beginning a run has to say so first
                run = self._run
            if run is not None and run.is_guest:
                run.link.leave()
            elif run is not None:
                self._stop_hosting(run)
            if self._where is not None:
                # A call under way must not block the end.
                closing = threading.Thread(target=self._where.shutdown, daemon=True)
                closing.start()
                closing.join(_CLOSING_SECONDS)
                self._where = None
            self._run = None

    # -- inside

    def call(self, ask: Callable[[OwnRun | GuestRun], T]) -> T:
        """Make a call to the run; if its host is gone, to the one that takes its place.

        Raises:
            KinesisEfoError: The error of the call, or this query has ended.
        """
        while True:
            run = self._run
            if self._error is not None:
                raise self._error
            if run is None or self._left.is_set():
                raise stopped()
            if not run.is_guest:
                self._joining.keep_file()
                return ask(run)
            from kinesis_efo.planner.guest import HostLostError

            try:
                return ask(run)
            except HostLostError:
                self._attach_again(run)

    def _check(self) -> None:
        if self._left.is_set() or os.getppid() != self._jvm:
            raise stopped()

    def _attach_again(self, lost: GuestRun) -> None:
        from kinesis_efo.planner.guest import HostLostError

        with self._attaching:
            if self._run is not lost:
                return  # another thread has done it
            logger.warning(
                "the process that fetched for this query has ended: another one of this Spark program goes on"
            )
            run = self._run = self._joining.replace(lost)
            with contextlib.suppress(HostLostError):  # the next one is told, then
                self.query.tell_again(run.query)

    # -- as the host

    def _stop_hosting(self, runtime: OwnRun) -> None:
        """End the run once nobody needs it, or at once if somebody waits for this process."""
        if not runtime.close(only_if_alone=True):
            runtime.leave()
            if not self._hurry.is_set():
                self._hand_over_output(runtime.say)
                logger.info(
                    "this query has ended; its process stays for others of its Spark program, which share its run"
                )
            while not runtime.close(only_if_alone=True):
                self._joining.keep_file()
                if self._hurry.wait(_LOOK_SECONDS) or os.getppid() != self._jvm:
                    runtime.close()
        runtime.stop()
        self._joining.close()

    # -- as a guest

    def _be_guest(self) -> None:
        """See that tasks of this query learn who reads their shards, and that the run goes on even while Spark asks for nothing."""
        from kinesis_efo.planner.where_service import WhereService

        listening = self._listening
        if listening.loopback_only:
            # Ports are chosen for firewalls, of which there are none.
            listening = replace(listening, ports=range(1))
        try:
            certificate = certificate_for(self._options, listening, SystemClock())
            self._where = WhereService(self._place, self._joining.secret, listening, certificate)
        except FetcherError as error:
            logger.warning(
                "if the process ends that fetches for this query, tasks that read from it fail, and Spark tries them again: %s",
                error,
            )
        threading.Thread(target=self._watch, name="kinesis-efo guest", daemon=True).start()

    def _watch(self) -> None:
        while not self._left.wait(_LOOK_SECONDS):
            run = self._run
            if run is None or not run.is_guest:
                return
            if not run.link.file.host_lives:
                try:
                    self._attach_again(run)
                except FetcherUnreachableError:
                    return  # this query has ended
                except KinesisEfoError as error:
                    self._error = error
                    return
                except Exception as error:
                    self._error = FetcherError(f"the run could not be taken over: {type(error).__name__}: {error}")
                    logger.exception("the run could not be taken over")
                    return

    def _place(self) -> HostPlace | None:
        """Where the host is at this moment."""
        from kinesis_efo.planner.where_service import HostPlace

        if self._error is not None:
            raise self._error
        run = self._run
        if run is None or self._left.is_set():
            return None
        if run.is_guest:
            return HostPlace(run.address, run.by_planner) if run.link.file.host_lives else None
        return HostPlace(run.address, run.planner_address is not None)


class SharedQuery:
    """The query of a shared run; see `QueryAccess`.

    Args:
        shared: The run.
    """

    def __init__(self, shared: SharedRun) -> None:
        self._shared = shared
        self._mark: Mark | None = None
        self._resumed: Offset | None = None
        self._begins: Offset | None = None

    def tell_again(self, query: QueryAccess) -> None:
        """Tell the run what its predecessor knew of this query beside offsets, which every call carries."""
        if self._mark is not None:
            query.planned(self._mark)
        if self._resumed is not None:
            query.resume(self._resumed)
        if self._begins is not None:
            # It polls once its tasks are done, which may be reading from there. Until then the run must keep what they need.
            query.check_replay(self._begins, ())

    def wait_held(self, *, timeout: float) -> bool:
        return self._shared.call(lambda run: run.query.wait_held(timeout=timeout))

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        self._begins = offset
        reply = self._shared.call(
            lambda run: run.query.poll(offset, max_bytes=max_bytes, max_records=max_records, timeout=timeout)
        )
        self._resumed = None
        return reply

    def commit(self, offset: Offset) -> None:
        self._shared.call(lambda run: run.query.commit(offset))

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        return self._shared.call(lambda run: run.query.last_records(ranges))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        self._begins = begin
        self._shared.call(lambda run: run.query.check_replay(begin, ranges))

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        return self._shared.call(lambda run: run.query.ends(offset, timeout=timeout))

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        return self._shared.call(lambda run: run.query.strict(streams))

    def resume(self, offset: Offset) -> None:
        self._resumed = offset
        self._shared.call(lambda run: run.query.resume(offset))

    def planned(self, mark: Mark) -> None:
        self._mark = mark
        with contextlib.suppress(FetcherUnreachableError):  # Spark finishes a micro-batch of a query that has ended
            self._shared.call(lambda run: run.query.planned(mark))

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        return self._shared.call(lambda run: run.query.tips(offset, timeout=timeout))
