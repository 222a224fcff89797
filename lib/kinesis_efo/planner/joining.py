"""Finds the run of a Spark program that reads some streams, and joins it as a guest; begins one if there is none."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import (
    ConfigurationError,
    FetcherError,
    FetcherRefusedError,
    FetcherUnreachableError,
    KinesisEfoError,
    OptionsError,
)
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import RunAccess
from kinesis_efo.planner.program import HostFile, OwnFile, Program, RunEntry
from kinesis_efo.processes import Process

# What a guest needs is imported by guests: most queries are alone in their program.
if TYPE_CHECKING:
    from kinesis_efo.planner.guest import GuestRun

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.1
_VAIN_STARTS: Final = 3
_TOUCH_SECONDS: Final = 3600.0
"""Whoever cleans up a directory for temporary files leaves those alone that are younger than some days."""


StartProcess = Callable[[str, Callable[[], None]], Callable[[], str]]


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


class Joining:
    """The place of one query in the runs of its program.

    Args:
        program: Finds the runs of this Spark program.
        manifest: The application, with the streams to read.
        options: The options of the query.
        begin: Makes a run of this process that others may share, with a secret or a new one, and the name of its query.
        check: Raises if the query has ended.
        start_process: Starts a process that has the run, with a secret, and waits until it can be joined, or its argument raises;
            returns what tells how it ended, empty while that is not known. None: this process has the run.

    Attributes:
        secret: What tasks have to know; empty before there is a run.
        query_name: What tasks tell whose they are: the same in each run that the query comes to, for they go on.
    """

    def __init__(
        self,
        program: Program,
        manifest: Manifest,
        options: SourceOptions,
        begin: Callable[[str | None, str], OwnRun],
        check: Callable[[], None],
        start_process: StartProcess | None = None,
    ) -> None:
        self.secret = ""
        self.query_name: Final = secrets.token_hex(8)
        self._program = program
        self._manifest = manifest
        self._options = options
        self._begin = begin
        self._check = check
        self._start_process = start_process
        self._streams = {name: ref.stream_arn for name, ref in manifest.streams.items()}
        self._joinable = dict(self._streams)
        self._file: OwnFile | None = None
        self._touch_at = 0.0
        self._ended: Callable[[], str] = lambda: ""
        self._vain_starts = 0

    @property
    def last_end(self) -> str:
        """How the process ended that this one has started last, as far as that is known."""
        return f" ({end})" if (end := self._ended()) else ""

    def run(self) -> OwnRun | GuestRun:
        """Join a run, or begin one.

        Raises:
            OptionsError: There is one, and options of this query are others than the run's.
            ConfigurationError: There are two that each read some of the streams.
            KinesisEfoError: As `PlannerRuntime.start`, or the query has ended.
        """
        give_up_at = time.monotonic() + self._options.patience
        while True:
            self._check()
            with self._program.deciding(self._check):
                if (run := self._decided()) is not None:
                    return run
            # It is just ending, or paused.
            if time.monotonic() >= give_up_at:
                raise FetcherError(
                    f"another source of this Spark program has had the run of {', '.join(self._streams)} for {self._options.patience:.0f} s, "
                    "and does not answer: its process is paused or overloaded"
                )
            time.sleep(_AGAIN_SECONDS)

    def _decided(self) -> OwnRun | GuestRun | None:
        """Join a run, or begin one; None if there is one that cannot be joined."""
        with contextlib.ExitStack() as stack:
            found = self._program.runs()
            for run in found:
                stack.callback(run.close)
            runs = [run for run in found if run.entry.overlaps(self._joinable)]
            if len(runs) > 1:
                raise ConfigurationError(self._between(runs))
            if not runs:
                if self._start_process is None:
                    return self._hosted()
                if (begun := self._begun(self._start_process)) is None:
                    return None
                runs, found = [begun], [*found, begun]
                stack.callback(begun.close)
            if (joined := self._joined(runs[0])) is not None:
                stack.pop_all()
                for run in found:
                    if run is not runs[0]:
                        run.close()
            return joined

    def _begun(self, start_process: StartProcess) -> HostFile | None:
        """Start a process that has the run; None if it has ended already."""
        try:
            secret = self._program.secret(self.secret)
        except OSError as error:
            raise FetcherError(f"the processes of this Spark program cannot find each other: {error}") from error
        self._ended = start_process(secret, self._check)
        runs: list[HostFile] = []
        for run in self._program.runs():
            if run.entry.overlaps(self._streams):
                runs.append(run)
            else:
                run.close()
        self._vain_starts = 0 if runs else self._vain_starts + 1
        if self._vain_starts > _VAIN_STARTS:
            raise FetcherError(
                f"the process of the run ended as it was started, {self._vain_starts} times{self.last_end}"
            )
        return runs[0] if runs else None

    def _hosted(self) -> OwnRun:
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
            runtime.streams_changed = partial(self._tell_streams, runtime, self._file)
        return runtime

    def keep_file(self) -> None:
        """Keep the file young by which others find the run of this process."""
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

    def _joined(self, file: HostFile) -> GuestRun | None:
        from kinesis_efo.planner.guest import GuestRun, HostClient, HostLink

        client = HostClient(file.entry.address, file.entry.secret)
        link = HostLink(file, client, self._check, time.sleep)
        joined = None
        try:
            joined = link.join(self.query_name, Process.of(os.getpid()), self._manifest.streams, self._options)
        except (FetcherUnreachableError, FetcherRefusedError) as error:
            logger.debug("no answer from the host of this program's run: %s", error)
        if joined is not None and joined.faults:
            client.close()
            raise OptionsError(joined.faults)
        if joined is None or not joined.guest:
            client.close()
            return None
        self.secret = file.entry.secret
        return GuestRun(link, joined)

    def _between(self, runs: Sequence[HostFile]) -> str:
        read = "; ".join(", ".join(sorted(run.entry.streams)) for run in runs)
        return (
            f"this query reads {', '.join(sorted(self._streams))}, but other queries of this Spark program read {read}, each by itself: a query "
            "can share one run only. Start the query that reads the most streams first, or let each query read its streams alone"
        )

    def _tell_streams(self, runtime: OwnRun, file: OwnFile, streams: dict[str, str]) -> None:
        file.write(RunEntry(runtime.address, self.secret, streams))

    def replace(self, lost: GuestRun) -> OwnRun | GuestRun:
        """Join the run that takes the place of one whose host is gone, or begin it.

        Raises:
            KinesisEfoError: As `run`.
        """
        # Whoever reads one of its streams now is to read all of them: two runs could not be joined by a query that reads more.
        self._joinable |= lost.link.file.again().streams
        lost.link.close()
        return self.run()

    def close(self) -> None:
        """Let nobody find the run of this process any more."""
        if self._file is not None:
            self._file.close()
