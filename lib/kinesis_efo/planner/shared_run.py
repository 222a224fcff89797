"""A run that the queries of one Spark program share: this process begins it, or is the guest of the one that has.

If the host is gone, its guests go on by themselves: one of them begins the run anew, and the others become its guests. Tasks notice
nothing but a pause: they ask where to read, and go on there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.tls import Certificate
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.manifest import Manifest
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import Begin, Call, Commit, Next, Plan, Step
from kinesis_efo.planner.joining import Joining, OwnRun, StartProcess
from kinesis_efo.planner.program import Program

# What a guest needs is imported by guests: most queries are alone in their program.
if TYPE_CHECKING:
    from kinesis_efo.planner.guest import GuestRun
    from kinesis_efo.planner.where_service import HostPlace, WhereService

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSING_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_MOST_DEATHS: Final = 3
"""A run that ends again and again would keep the query from ending."""


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
        start_process: See `Joining`.
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
        start_process: StartProcess | None = None,
    ) -> None:
        self._options = options
        self._listening = listening
        self._spark_waits = spark_waits
        self._hand_over_output = hand_over_output
        self._jvm = os.getppid()
        self._joining = Joining(program, manifest, options, begin, self._check, start_process)
        self._run: OwnRun | GuestRun | None = None
        self._where: WhereService | None = None
        self._error: KinesisEfoError | None = None
        self._left = threading.Event()
        self._hurry = threading.Event()
        self._attaching = threading.RLock()
        self._stopping = threading.RLock()
        self._known = Begin()
        self._untold: Mark | None = None
        self._deaths = 0

    # -- what the stream reader asks

    def start(self) -> None:
        """Join the run of this program that reads the streams, or begin one.

        Raises:
            KinesisEfoError: As `Joining.run`.
        """
        with self._attaching:
            self._run = self._joining.run()
        if self._run.is_guest:
            self._be_guest(self._run.certificate)

    def planned(self, mark: Mark) -> None:
        """See `RunAccess`. A guest's host learns it within half a second: no task waits for that."""
        self._known = replace(self._known, planned=mark)
        if (run := self._run) is not None and not run.is_guest:
            run.planned(mark)
        else:
            self._untold = mark

    def ask(self, call: Call[T]) -> T:
        """See `RunAccess`. If the host is gone, the call goes to the run that takes the place of its."""
        match call:
            case Begin():
                self._known = replace(call, new=False)
            case Next():
                self._known = replace(self._known, kept=call.position)
            case Plan():
                self._known = replace(
                    self._known, kept=call.begin, end=call.end, planned=call.end.mark or self._known.planned
                )
        answer = self._asked(call)
        if isinstance(answer, Step):
            # By now, its own commits move the rows that a checkpoint is compared with.
            self._deaths = self._deaths if answer.end is None else 0
            resumed = self._known.resumed if answer.again else None
            known = self._known
            self._known = replace(
                known, resumed=resumed, end=answer.end or known.end, ending=answer.ending or known.ending
            )
        return answer

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

    def _asked(self, call: Call[T]) -> T:
        while True:
            run = self._run
            if self._error is not None:
                raise self._error
            if run is None or self._left.is_set():
                raise stopped()
            if not run.is_guest:
                self._joining.keep_file()
                return run.ask(call)
            from kinesis_efo.planner.guest import HostLostError

            try:
                return run.ask(call)
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
            self._deaths += 1
            if self._deaths > _MOST_DEATHS:
                raise FetcherError(
                    f"the process that fetched for this query has died {self._deaths} times in a row before anything was read"
                    f"{self._joining.last_end}. If the system ended it for its memory, give the driver's container more, or set kinesis-efo "
                    "option 'bufferBytes' lower. Nothing was lost: start the query again"
                )
            logger.warning(
                "the process that fetched for this query has ended: another one of this Spark program goes on"
            )
            run = self._run = self._joining.replace(lost)
            with contextlib.suppress(HostLostError):  # the next one is told, then
                run.ask(self._known)

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

    def _be_guest(self, certificate: Certificate | None) -> None:
        """See that tasks of this query learn who reads their shards, and that the run goes on even while Spark asks for nothing."""
        from kinesis_efo.planner.where_service import WhereService

        listening = self._listening
        if listening.loopback_only:
            # Ports are chosen for firewalls, of which there are none.
            listening = dataclasses.replace(listening, ports=range(1))
        try:
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
            untold, self._untold = self._untold, None
            if untold is not None or not run.link.file.host_lives:
                try:
                    if untold is None:
                        self._attach_again(run)
                    else:
                        self._asked(Commit(untold))
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
