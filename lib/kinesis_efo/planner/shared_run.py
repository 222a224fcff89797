"""Connects one query to a run: joins a run of the Spark program or starts one, and does so again if the run's process dies.

Meanwhile, the query's tasks are only delayed: they repeat their requests for fetchers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.service import Call as TaskCall
from kinesis_efo.calls.service import Service, decoded
from kinesis_efo.errors import (
    ConfigurationError,
    FetcherError,
    FetcherRefusedError,
    FetcherUnreachableError,
    KinesisEfoError,
    OptionsError,
)
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.work import WHERE, PlannerClient, WhereReply, WhereRequest
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import Program, RunFile
from kinesis_efo.planner.run_link import RunConnection, RunLink, RunLostError, Silence
from kinesis_efo.positions import Mark
from kinesis_efo.processes import Process
from kinesis_efo.run.access import Begin, Call, Logged, Next, Plan, Reading, Step
from kinesis_efo.run.messages import JoinReply

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSING_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.1
_MOST_DEATHS: Final = 3
_DEATHS_SECONDS: Final = 1800.0
"""The query fails if its run's processes die more than `_MOST_DEATHS` times in this many seconds without planning a micro-batch."""

StartProcess = Callable[[str, Callable[[], None]], Callable[[], str]]


class SharedRun:
    """Gives one query access to its run, whichever process the run is in. Thread-safe.

    Args:
        start_process: Starts the process of a run, and waits until the run can be joined. Receives the run's secret, and a function to
            call while waiting, which raises an error to give up. Returns a function that describes how the process has ended, or "" while
            it runs.

    `secret`, which tasks need, is empty before there is a run. `query_name` is the same in each run, because tasks outlive a run.
    """

    def __init__(
        self,
        program: Program,
        manifest: Manifest,
        options: SourceOptions,
        listening: Listening,
        start_process: StartProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.secret = ""
        self.query_name: Final = secrets.token_hex(8)
        self._program = program
        self._manifest = manifest
        self._options = options
        self._listening = listening
        self._start_process = start_process
        self._clock = clock
        self._streams = {name: ref.stream_arn for name, ref in manifest.streams.items()}
        self._link: RunLink | None = None
        self._where: WhereService | None = None
        self._error: KinesisEfoError | None = None
        self.left = threading.Event()
        self._attaching = threading.RLock()
        self._stopping = threading.RLock()
        self._known = Begin()
        self._has_logged = self._doubted = False
        self._silence = Silence(options.retry.timeout, ", ".join(self._streams))
        self._ended: Callable[[], str] = lambda: ""
        self._vain_starts = 0
        self._deaths: list[float] = []

    # -- called by `StreamPlanner`

    def start(self) -> None:
        """Join the run of this program that reads the streams, or start one.

        Raises OptionsError if the options of the query and the run differ, ConfigurationError if two runs each read some of the streams.
        """
        threading.Thread(target=self._measure, name="kinesis-efo silence", daemon=True).start()
        try:
            with self._attaching:
                link = self._link = self._joined(self._streams)
            self._serve_tasks(link)
        except BaseException:
            self.stop()
            raise
        threading.Thread(target=self._watch, name="kinesis-efo run", daemon=True).start()

    def record_logged(self, mark: Mark) -> None:
        """Record that Spark's offset log contains the micro-batch with `mark`. A thread reports it to the run within half a second."""
        self._known = replace(self._known, planned=mark)
        self._has_logged = True

    @property
    def unfinished(self) -> Mark | None:
        """The mark of the last micro-batch in Spark's log; None if unknown, or once Spark has requested the next micro-batch."""
        known = self._known
        return known.planned if known.kept is None or known.kept.mark != known.planned else None

    def ask(self, call: Call[T]) -> T:
        """Make a call, and wait for its result. If the run's process dies, repeat the call in the process that replaces it."""
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
            self._deaths = self._deaths if answer.end is None else []
            # After a result, do not send `resumed` to later runs: they would compare it with lease rows that this query has since changed.
            resumed = self._known.resumed if answer.again else None
            known = self._known
            self._known = replace(
                known, resumed=resumed, end=answer.end or known.end, ending=answer.ending or known.ending
            )
        return answer

    @property
    def planner_address(self) -> FetcherAddress:
        """The address of the service from which tasks request the fetchers of shards. Only valid after `start`."""
        assert self._where is not None
        return self._where.address

    def stop(self) -> None:
        """Leave the run, which ends with its last query. Later calls do nothing."""
        self.left.set()
        with self._stopping:
            with self._attaching:  # if a run is being started, wait for it
                link = self._link
            if link is None:
                return
            link.leave(self._known.planned)
            if self._where is not None:
                # Use a thread, so that a task's long call does not delay the end of the query.
                closing = threading.Thread(target=self._where.shutdown, daemon=True)
                closing.start()
                closing.join(_CLOSING_SECONDS)
            self._link = None

    # -- joining or starting a run

    def _joined(self, streams: dict[str, str]) -> RunLink:
        while True:
            self._silence.expect(0)
            self._check()
            with self._program.deciding(self._check):
                if (link := self._decided(streams)) is not None:
                    return link
            # The run is ending or suspended. Raise an error if this has lasted too long or the query has ended.
            self._check()
            time.sleep(_AGAIN_SECONDS)

    def _decided(self, streams: dict[str, str]) -> RunLink | None:
        """Join a run, or start one. Returns None if the run is not ready or has ended; the caller must then try again."""
        runs = self._runs(streams)
        try:
            if any(one.entry.overlaps(other.entry.streams) for one, other in combinations(runs, 2)):
                return None  # one of the two runs is ending, because its planner has died
            if len(runs) > 1:
                raise ConfigurationError(self._between(runs))
            if not runs:
                runs = self._start_run()
            return self._admitted(runs.pop()) if runs else None
        finally:
            for run in runs:
                run.close()

    def _runs(self, streams: dict[str, str]) -> list[RunFile]:
        found: list[RunFile] = []
        for run in self._program.runs():
            if run.entry.overlaps(streams):
                found.append(run)
            else:
                run.close()
        return found

    def _start_run(self) -> list[RunFile]:
        """Start the process of a run, and return the file of the run; empty if the process has already ended."""
        try:
            secret = self._program.secret(self.secret)
        except OSError as error:
            raise FetcherError(f"the processes of this Spark program cannot find each other: {error}") from error
        self._silence.reset()
        self._ended = self._start_process(secret, self._check)
        runs = self._runs(self._streams)
        self._vain_starts = 0 if runs else self._vain_starts + 1
        if self._vain_starts > _MOST_DEATHS:
            raise FetcherError(
                f"the process of the run ended during its start, {self._vain_starts} times{self._last_end}"
            )
        return runs

    def _admitted(self, file: RunFile) -> RunLink | None:
        client = RunConnection(file.entry.address, file.entry.secret)
        link = RunLink(file, client, self._check, time.sleep, self._silence)
        faults: list[str] = []
        try:
            joined = link.join(self.query_name, Process.of(os.getpid()), self._manifest.streams, self._options)
            if joined.client:
                self.secret = file.entry.secret
                return link
            faults = joined.faults
        except (FetcherUnreachableError, FetcherRefusedError) as error:
            logger.debug("no answer from this program's run: %s", error)
        link.close()
        if faults:
            raise OptionsError(faults)
        return None

    def _between(self, runs: Sequence[RunFile]) -> str:
        read = "; ".join(", ".join(sorted(run.entry.streams)) for run in runs)
        return (
            f"this query reads {', '.join(sorted(self._streams))}, but other queries of this Spark program read {read}, each by itself: a query "
            "can share one run only. Start the query that reads the most streams first, or let each query read its streams alone"
        )

    # -- replacing a dead run

    @property
    def _last_end(self) -> str:
        return f" ({end})" if (end := self._ended()) else ""

    def _asked(self, call: Call[T]) -> T:
        while True:
            link = self._link
            if self._error is not None:
                raise self._error
            if link is None or self.left.is_set():
                raise stopped()
            try:
                return link.ask(call)
            except RunLostError:
                self._attach_again(link)

    def _check(self) -> None:
        if self.left.is_set() or not self._program.jvm.lives():
            raise stopped()
        self._silence.check()

    def _measure(self) -> None:
        while not self.left.wait(_LOOK_SECONDS):
            self._silence.tick()

    def _attach_again(self, lost: RunLink) -> None:
        with self._attaching:
            if self._link is not lost:
                return  # another thread has already joined another run
            now = self._clock()
            self._deaths = [*(death for death in self._deaths if now - death < _DEATHS_SECONDS), now]
            if len(self._deaths) > _MOST_DEATHS:
                raise FetcherError(
                    f"the process that fetched for this query has died {len(self._deaths)} times within half an hour, before anything was "
                    f"read{self._last_end}. If the system killed it for using too much memory, give the driver's container more, or lower "
                    "kinesis-efo option 'bufferBytes'. Nothing was lost: restart the query"
                )
            # Request all streams of the lost run: if two runs replaced it, a query that reads streams of both could join neither.
            streams = self._streams | lost.file.again().streams
            lost.close()
            link = self._link = self._joined(streams)
            # Log this only after another process has taken over: when the query or Spark ends, no process takes over.
            logger.warning("the process that fetched for this query has ended: another takes over")
            with contextlib.suppress(RunLostError):  # if this run is lost too, the call is sent to the next run
                link.ask(self._known)

    def _watch(self) -> None:
        """While the query waits between calls, replace its run if the run dies, because tasks still need one. Also report marks stored by
        `record_logged`.

        If a task received no reply, call the run: if the run is suspended, this call times out, and the query fails.
        """
        while not self.left.wait(_LOOK_SECONDS):
            if (link := self._link) is None:
                return
            logged = None
            if self._has_logged:
                self._has_logged = False  # clear this first, so that a concurrent call of `record_logged` is not missed
                logged = self._known.planned
            doubted, self._doubted = self._doubted, False
            if logged is not None or doubted or not link.file.lives:
                try:
                    if logged is not None:
                        self._asked(Logged(logged))
                    elif not link.file.lives:
                        self._attach_again(link)
                    else:
                        self._asked(Reading())
                except FetcherUnreachableError:
                    return  # this query has ended
                except KinesisEfoError as error:
                    self._error = error
                    return
                except Exception as error:
                    self._error = FetcherError(f"the run could not be taken over: {type(error).__name__}: {error}")
                    logger.exception("the run could not be taken over")
                    return

    # -- serving the query's tasks

    def _serve_tasks(self, link: RunLink) -> None:
        """Start the service from which this query's tasks request the fetchers of shards."""
        listening = self._listening
        if listening.loopback_only:
            # On loopback, ignore the configured ports, which only matter to firewalls.
            listening = dataclasses.replace(listening, ports=range(1))
        self._where = WhereService(self._place, self._doubt, self.secret, listening, link.joined.certificate)

    def _doubt(self) -> None:
        self._doubted = True

    def _place(self) -> JoinReply | None:
        """Return the current run's reply to `Join`; None without a run. Raises the error that has ended the query."""
        if self._error is not None:
            raise self._error
        link = self._link
        if link is None or self.left.is_set() or not link.file.lives:
            return None
        return link.joined


class WhereService(Service):
    """The service from which tasks of one query request the fetchers of shards. It runs in the planner, so it outlives the run's process.

    Args:
        place: Returns the current run's reply to `Join`, or None without a run. Raises the error that has ended the query.
        doubt: Called if the run may be dead, because it did not respond to this process or a task.
    """

    what = "planner"

    def __init__(
        self, place: Callable[[], JoinReply | None], doubt: Callable[[], None], secret: str, *arguments: Any
    ) -> None:
        self._place = place
        self._doubt = doubt
        self._run_secret = secret
        super().__init__(None, secret, *arguments)

    def act(self, call: TaskCall, name: str, body: bytes) -> msgspec.Struct | None:
        return self.answer_where(call, decoded(body, WhereRequest)) if name == WHERE else super().act(call, name, body)

    def answer_where(self, call: TaskCall, request: WhereRequest) -> WhereReply:
        """Return the fetchers of the shards. Without a run, the reply contains only None, so that the task repeats its request."""
        give_up_at = time.monotonic() + request.wait
        if request.doubts:
            self._doubt()
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            match self._place():
                case JoinReply(address=FetcherAddress() as address, by_planner=False):
                    return WhereReply([address] * len(request.shards), 1)
                case JoinReply(address=FetcherAddress() as address):
                    try:
                        with PlannerClient(address, self._run_secret) as client:
                            return client.where(replace(request, wait=left))
                    except (FetcherUnreachableError, FetcherRefusedError):
                        self._doubt()
            if not left or call.gone:
                return WhereReply([None] * len(request.shards), 1)
            time.sleep(min(left, _AGAIN_SECONDS))
