"""A run that the queries of one Spark program share: this process begins it, or is the guest of the one that has.

If the host is gone, its guests go on by themselves: one of them begins the run anew, and the others become its guests. Tasks notice
nothing but a pause: they ask where to read, and go on there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import (
    ConfigurationError,
    FetcherError,
    FetcherRefusedError,
    FetcherUnreachableError,
    KinesisEfoError,
    OptionsError,
)
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.assembly import certificate_for
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.manifest import Manifest
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.planner.access import RunAccess
from kinesis_efo.planner.program import HostFile, OwnFile, Program, RunEntry
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, ShardKey, ShardRange
from kinesis_efo.processes import Process

# What a guest needs is imported by guests: most queries are alone in their program.
if TYPE_CHECKING:
    from kinesis_efo.planner.guest import GuestRun
    from kinesis_efo.planner.where_service import HostPlace, WhereService

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSING_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.1
_TOUCH_SECONDS: Final = 3600.0
"""Whoever cleans up a directory for temporary files leaves those alone that are younger than some days."""


class OwnRun(RunAccess, Protocol):
    """A run of this process, which others may share: `PlannerRuntime`."""

    streams_changed: Callable[[dict[str, str]], None]
    """Called, in any thread, with the ARNs of the streams that it reads, by logical name, if guests read more than it did."""

    @property
    def is_guest(self) -> Literal[False]:
        """It is not."""

    @property
    def address(self) -> FetcherAddress:
        """Where its service is."""

    def say(self, line: str) -> None:
        """Let a guest write a line for this process; in any thread."""

    def leave(self) -> None:
        """End the query, but not the run: its guests may go on."""

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Take no more guests; see `Guests.close`."""


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
        self.secret = ""
        self._program = program
        self._manifest = manifest
        self._options = options
        self._listening = listening
        self._begin = begin
        self._spark_waits = spark_waits
        self._hand_over_output = hand_over_output
        # The same in each run that it comes to: its tasks go on.
        self.query_name: Final = secrets.token_hex(8)
        self._me = Process.of(os.getpid())
        self._jvm = os.getppid()
        self._streams = {name: ref.stream_arn for name, ref in manifest.streams.items()}
        self._joinable = dict(self._streams)
        self._run: OwnRun | GuestRun | None = None
        self._file: OwnFile | None = None
        self._where: WhereService | None = None
        self._error: KinesisEfoError | None = None
        self._mark: Mark | None = None
        self._resumed: Offset | None = None
        self._begins: Offset | None = None
        self._touch_at = 0.0
        self._left = threading.Event()
        self._hurry = threading.Event()
        self._attaching = threading.RLock()
        self._stopping = threading.RLock()
        self._query = SharedQuery(self)

    # -- what the stream reader asks

    def start(self) -> None:
        """Join the run of this program that reads the streams, or begin one.

        Raises:
            OptionsError: There is one, and options of this query are others than the run's.
            ConfigurationError: There are two that each read some of the streams.
            KinesisEfoError: As `PlannerRuntime.start`.
        """
        with self._attaching:
            self._attach()
        if self._run is not None and self._run.is_guest:
            self._be_guest()

    def initial_offset(self, start: Start) -> Offset:
        """See `RunAccess`."""
        return self.call(lambda run: run.initial_offset(start))

    def added_offset(self, start: Start, names: Collection[str]) -> Offset:
        """See `RunAccess`."""
        return self.call(lambda run: run.added_offset(start, names))

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        """See `RunAccess`."""
        return self.call(lambda run: run.place(ranges, at_most))

    @property
    def planner_address(self) -> FetcherAddress | None:
        """See `RunAccess`."""
        if self._where is not None:
            return self._where.address
        run = self._run
        return None if run is None or run.is_guest else run.planner_address

    @property
    def query(self) -> SharedQuery:
        """See `RunAccess`."""
        return self._query

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
                self._keep_file()
                return ask(run)
            from kinesis_efo.planner.guest import HostLostError

            try:
                return ask(run)
            except HostLostError:
                self._attach_again(run)

    def told_mark(self, mark: Mark) -> None:
        """Take note of what a run that takes this one's place has to know, too."""
        self._mark = mark

    def told_resume(self, offset: Offset | None) -> None:
        """Take note of where the query goes on, until it has polled."""
        self._resumed = offset

    def told_begin(self, offset: Offset) -> None:
        """Take note of where the micro-batch begins that Spark reads, or plans: its tasks may be reading from there."""
        self._begins = offset

    def _check(self) -> None:
        if self._left.is_set() or os.getppid() != self._jvm:
            raise stopped()

    def _attach(self) -> None:
        """Join a run, or begin one."""
        give_up_at = time.monotonic() + self._options.patience
        while True:
            self._check()
            with self._program.deciding(self._check):
                if self._decided():
                    return
            # It is just ending, or paused.
            if time.monotonic() >= give_up_at:
                raise FetcherError(
                    f"another source of this Spark program has had the run of {', '.join(self._streams)} for {self._options.patience:.0f} s, "
                    "and does not answer: its process is paused or overloaded"
                )
            time.sleep(_AGAIN_SECONDS)

    def _decided(self) -> bool:
        """Join a run, or begin one; False if there is one that cannot be joined."""
        with contextlib.ExitStack() as stack:
            found = self._program.runs()
            for run in found:
                stack.callback(run.close)
            runs = [run for run in found if run.entry.overlaps(self._joinable)]
            if len(runs) > 1:
                raise ConfigurationError(self._between(runs))
            if not runs:
                self._host()
            elif not self._joined(runs[0]):
                return False
            else:
                stack.pop_all()
                for run in found:
                    if run is not runs[0]:
                        run.close()
            return True

    def _host(self) -> None:
        secret = self.secret
        with contextlib.suppress(OSError):  # others find no run of this process, then
            secret = self._program.secret(secret)
        runtime = self._begin(secret or None, self.query_name)
        # Others wait meanwhile: a start that waits for AWS must not go on for a query that has ended.
        begun = threading.Event()
        threading.Thread(target=self._guard, args=(runtime, begun), name="kinesis-efo start", daemon=True).start()
        try:
            runtime.start()
        finally:
            begun.set()
        self.secret = runtime.secret
        try:
            self._file = self._program.begin(RunEntry(runtime.address, runtime.secret, self._streams))
        except OSError as error:
            logger.warning("other queries of this Spark program cannot find this run: %s", error)
        else:
            runtime.streams_changed = self._tell_streams
        self._run = runtime

    def _keep_file(self) -> None:
        if self._file is not None and time.monotonic() >= self._touch_at:
            self._touch_at = time.monotonic() + _TOUCH_SECONDS
            self._file.touch()

    def _guard(self, runtime: OwnRun, begun: threading.Event) -> None:
        while not begun.wait(_LOOK_SECONDS):
            try:
                self._check()
            except KinesisEfoError:
                runtime.stop()
                return

    def _joined(self, file: HostFile) -> bool:
        from kinesis_efo.planner.guest import GuestRun, HostClient, HostLink

        client = HostClient(file.entry.address, file.entry.secret)
        link = HostLink(file, client, self._check, time.sleep)
        joined = None
        try:
            joined = link.join(self.query_name, self._me, self._manifest.streams, self._options)
        except (FetcherUnreachableError, FetcherRefusedError) as error:
            logger.debug("no answer from the host of this program's run: %s", error)
        if joined is not None and joined.faults:
            client.close()
            raise OptionsError(joined.faults)
        if joined is None or not joined.guest:
            client.close()
            return False
        self.secret = file.entry.secret
        self._run = GuestRun(link, joined)
        return True

    def _between(self, runs: Sequence[HostFile]) -> str:
        read = "; ".join(", ".join(sorted(run.entry.streams)) for run in runs)
        return (
            f"this query reads {', '.join(sorted(self._streams))}, but other queries of this Spark program read {read}, each by itself: a query "
            "can share one run only. Start the query that reads the most streams first, or let each query read its streams alone"
        )

    def _tell_streams(self, streams: dict[str, str]) -> None:
        run = self._run
        if self._file is not None and run is not None and not run.is_guest:
            self._file.write(RunEntry(run.address, self.secret, streams))

    def _attach_again(self, lost: GuestRun) -> None:
        with self._attaching:
            if self._run is not lost:
                return  # another thread has done it
            logger.warning(
                "the process that fetched for this query has ended: another one of this Spark program goes on"
            )
            # Whoever reads one of its streams now is to read all of them: two runs could not be joined by a query that reads more.
            self._joinable |= lost.link.file.again().streams
            lost.link.close()
            self._attach()
            self._tell_again()

    def _tell_again(self) -> None:
        """Tell the run what its predecessor knew of this query beside offsets, which every call carries."""
        from kinesis_efo.planner.guest import HostLostError

        run = self._run
        assert run is not None
        with contextlib.suppress(HostLostError):  # the next one is told, then
            if self._mark is not None:
                run.query.planned(self._mark)
            if self._resumed is not None:
                run.query.resume(self._resumed)
            if self._begins is not None:
                # It polls once its tasks are done. Until then the run must keep what they need.
                run.query.check_replay(self._begins, ())

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
                self._keep_file()
                if self._hurry.wait(_LOOK_SECONDS) or os.getppid() != self._jvm:
                    runtime.close()
        runtime.stop()
        if self._file is not None:
            self._file.close()

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
            self._where = WhereService(self._place, self.secret, listening, certificate)
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

    def wait_held(self, *, timeout: float) -> bool:
        """See `QueryAccess`."""
        return self._shared.call(lambda run: run.query.wait_held(timeout=timeout))

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        """See `QueryAccess`."""
        self._shared.told_begin(offset)
        reply = self._shared.call(
            lambda run: run.query.poll(offset, max_bytes=max_bytes, max_records=max_records, timeout=timeout)
        )
        self._shared.told_resume(None)
        return reply

    def commit(self, offset: Offset) -> None:
        """See `QueryAccess`."""
        self._shared.call(lambda run: run.query.commit(offset))

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """See `QueryAccess`."""
        return self._shared.call(lambda run: run.query.last_records(ranges))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        """See `QueryAccess`."""
        self._shared.told_begin(begin)
        self._shared.call(lambda run: run.query.check_replay(begin, ranges))

    def ends(self, offset: Offset, *, timeout: float) -> Found | None:
        """See `QueryAccess`."""
        return self._shared.call(lambda run: run.query.ends(offset, timeout=timeout))

    def strict(self, streams: Collection[str]) -> frozenset[str]:
        """See `QueryAccess`."""
        return self._shared.call(lambda run: run.query.strict(streams))

    def resume(self, offset: Offset) -> None:
        """See `QueryAccess`."""
        self._shared.told_resume(offset)
        self._shared.call(lambda run: run.query.resume(offset))

    def planned(self, mark: Mark) -> None:
        """See `QueryAccess`."""
        self._shared.told_mark(mark)
        with contextlib.suppress(FetcherUnreachableError):  # Spark finishes a micro-batch of a query that has ended
            self._shared.call(lambda run: run.query.planned(mark))

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        """See `QueryAccess`."""
        return self._shared.call(lambda run: run.query.tips(offset, timeout=timeout))
