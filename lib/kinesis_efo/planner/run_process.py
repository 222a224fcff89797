"""The process of a run: a planner starts it, and it ends with its last query, or with the JVM.

It does not import PySpark. It receives its settings only through standard input, because they contain secrets.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec.structs import replace

from kinesis_efo.calls.address import Listening, is_own
from kinesis_efo.calls.wire import pack_error, unpack_error
from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.host import where_to_listen
from kinesis_efo.planner.lifecycle import is_sparks_process, log_to_stderr
from kinesis_efo.planner.program import OwnFile, Program, RunEntry
from kinesis_efo.planner.run_link import Silence
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.processes import PrivateDirectory, Process, notes_directory

if TYPE_CHECKING:
    from kinesis_efo.cluster.remote import FetcherPlan
    from kinesis_efo.run.thread import RunThread

logger = logging.getLogger(__name__)

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from kinesis_efo.planner.run_process import main; main(sys.stdin.buffer)"
)
_READY: Final = b"ready"
_BEAT: Final = b"\0"
"""The heartbeat that a run's process sends to its planner until the run has started."""
_LOOK_SECONDS: Final = 0.1
_REAPED_SECONDS: Final = 1.0
_JVM_SECONDS: Final = 0.5
_FIRST_SECONDS: Final = 30.0
"""A run ends if it has no client this many seconds after its start, or earlier if the planner that started it has died."""
_TOUCH_SECONDS: Final = 3600.0
"""Seconds between updates of the modification time of the run's file: cleaners of temporary files remove files that are days old."""


@dataclass(frozen=True)
class RunOrder:
    """The settings that the process of a run receives from the planner that starts it."""

    manifest: Manifest
    options: SourceOptions
    listening: Listening
    program: Program
    secret: str
    planner: int = field(default_factory=os.getpid)


# -- code of the planner's process


def run_of_program(manifest: Manifest, options: SourceOptions) -> SharedRun:
    """Create the `SharedRun` of a stream reader, without starting it."""
    listening = where_to_listen(options)
    # A reader in a process that Spark did not start, such as a test, counts as a separate program.
    jvm = Process.of(os.getppid() if is_sparks_process() else os.getpid())
    # Leave out the application's name: queries with the same stream and lease table need the same lease, whatever the name.
    about = (options.program, manifest.region, manifest.lease_table, options.aws.endpoint_url or "")
    program = Program.locate(notes_directory(), jvm, "\n".join(about))

    def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        process = RunProcess(RunOrder(manifest, options, listening, program, secret))
        process.start(check)
        return process.end

    return SharedRun(program, manifest, options, listening, start_process)


_ahead: Final[list[subprocess.Popen[bytes]]] = []
"""The process that `start_ahead` started, as the only item; empty if there is none."""


def start_ahead() -> None:
    """Start the process of a run early if this program has no run, so that it and this process import modules concurrently."""
    if not _ahead and not any(notes_directory().glob(f"run.*.{os.getppid()}.*.json")):
        with contextlib.suppress(FetcherError):  # the query will try again, and raise the error then
            _ahead.append(started())


def end_ahead() -> None:
    """End the process that `start_ahead` started, unless a run uses it."""
    while _ahead:
        process = _ahead.pop()
        process.kill()
        process.communicate()


def started() -> subprocess.Popen[bytes]:
    # The new process inherits this process's stderr, and writes to it until the run has started.
    try:
        process = subprocess.Popen([sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise FetcherError(
            f"the run's process cannot be started with {sys.executable!r}: {error}. The driver's host must allow one more process and "
            "have memory for it"
        ) from error
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(json.dumps(sys.path).encode() + b"\n")
        process.stdin.flush()
    return process


class RunProcess:
    """Starts the process of a run, and records how it ends."""

    def __init__(self, order: RunOrder, process: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process or (_ahead.pop() if _ahead else started())
        self._silence = Silence(order.options.retry.timeout, ", ".join(order.manifest.streams))
        self._answered = threading.Event()
        self._answer = b""
        self._stopping = False
        self._ended = ""
        self._thread = threading.Thread(
            target=self._watch, args=(pickle.dumps(order),), name="kinesis-efo run", daemon=True
        )

    def start(self, check: Callable[[], None]) -> None:
        """Wait until queries can join the run, or its process has ended. Raises the error if the run could not start.

        While waiting, this calls `check` repeatedly, which raises an error to give up.
        """
        self._silence.expect(self._process.pid)
        self._thread.start()
        try:
            while not self._answered.wait(_LOOK_SECONDS):
                self._silence.tick()
                self._silence.check()
                check()
        except BaseException:
            self._stopping = True
            self._process.kill()
            raise
        if self._answer not in (b"", _READY):
            raise unpack_error(self._answer)

    def end(self) -> str:
        """Return how the process has ended; empty while it runs."""
        self._thread.join(_REAPED_SECONDS)
        return self._ended

    def _watch(self, order: bytes) -> None:
        """Send the process its `RunOrder`, read its reply (`_READY`, or the error that prevented the start), and wait for its exit."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with stdin:
                stdin.write(order)
        except OSError:
            logger.debug("the process of the run does not read its input", exc_info=True)
        try:
            with stdout:
                while some := os.read(stdout.fileno(), 1 << 16):
                    self._silence.reset()
                    self._silence.expect(self._process.pid)
                    self._answer = (self._answer + some).lstrip(_BEAT)
        finally:
            self._answered.set()
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        self._ended = f"{how}, with a peak memory of {largest} MiB"
        if code and not self._stopping:
            logger.error("the process of the run has ended: %s", self._ended)


# -- code of the run's process


def main(order_from: BinaryIO) -> None:
    """Read the `RunOrder`, start the run, and return when the run has ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Ignore signals to the whole process group, which may arrive while the driver is still finishing a micro-batch.
        signal.signal(number, signal.SIG_IGN)
    _lift_memory_limit()
    gc.disable()
    from kinesis_efo.run.thread import RunThread

    gc.freeze()
    gc.enable()
    try:
        order: RunOrder = pickle.load(order_from)
    except EOFError:
        return  # this process was started early, and is not needed
    order_from.close()
    options = order.options
    runtime = RunThread(
        order.manifest,
        options,
        order.listening,
        order.secret,
        start_fetchers=None if options.supervisor is None else partial(FetcherJob, options.supervisor),
    )
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    log_to_stderr()
    with answers:
        begun = threading.Event()
        beating = threading.Thread(
            target=_end_with,
            args=(order.program.jvm, order.planner, begun, answers.raw),
            name="kinesis-efo start",
            daemon=True,
        )
        beating.start()

        def answer(data: bytes) -> None:
            begun.set()
            beating.join()
            answers.write(data)

        try:
            # During the start, log directly to the planner's output: the start may wait for AWS, and clients cannot receive log lines yet.
            runtime.start()
            _hand_over_output(runtime.say)
            entry = RunEntry(
                runtime.address,
                order.secret,
                {name: ref.stream_arn for name, ref in order.manifest.streams.items()},
                os.getpid(),
            )
            file = order.program.begin(entry)
        except Exception as error:
            runtime.stop()
            unforeseen = FetcherError(f"the run cannot start: {type(error).__name__}: {error}")
            answer(pack_error(error if isinstance(error, KinesisEfoError) else unforeseen))
            return
        runtime.streams_changed = lambda arns: file.write(replace(entry, streams=arns))
        answer(_READY)
    try:
        stay(runtime, order.program.jvm, order.planner, file)
    finally:
        runtime.stop()
        file.close()
        with contextlib.suppress(OSError):
            order.program.clear()


class FetcherJob:
    """Requests a Spark job for fetchers from the driver's supervisor. The job ends when this process ends or closes the connection."""

    def __init__(self, path: str, plan: FetcherPlan) -> None:
        self._problem = ""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            # Check the directory, which another user may have replaced: the plan that is sent below contains the run's secret.
            with PrivateDirectory(Path(path).parent, create=False) as directory:
                directory.connect(self._socket, Path(path).name)
            if not is_own(self._socket):
                raise PermissionError("a process of another user listens there")
            self._socket.sendall(pickle.dumps(plan))
        except OSError as error:
            self._socket.close()
            raise FetcherError(
                f"the program that called kinesis_efo.read_stream(..., fetchers=...) cannot be asked for fetchers at {path}: {error}. It "
                "has ended, or this query runs on a different host: start the query in the program that opened the stream"
            ) from error
        threading.Thread(target=self._listen, name="kinesis-efo supervisor", daemon=True).start()

    def problem(self) -> str:
        """Return the supervisor's last message; empty if there was none."""
        return self._problem

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        try:
            with self._socket, self._socket.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._problem = str(json.loads(line))
                    logger.warning("fetchers: %s", self._problem)
        except (OSError, ValueError):
            logger.debug("the supervisor is gone", exc_info=True)


def _end_with(jvm: Process, planner: int, begun: threading.Event, beats: RawIOBase) -> None:
    """Send heartbeats until the run has begun. Before that, end this process if the Spark program or the planner ends.

    The start may wait minutes for AWS. Other queries can only join afterwards, so a run whose planner has ended would remain unused.
    """
    while not begun.wait(_JVM_SECONDS):
        if not jvm.lives() or os.getppid() != planner:
            os._exit(1)
        with contextlib.suppress(OSError):  # the planner has ended
            beats.write(_BEAT)


def stay(runtime: RunThread, jvm: Process, planner: int, file: OwnFile, touch: float = _TOUCH_SECONDS) -> None:
    """Wait until the run has no queries anymore, or its program has ended."""
    began = touched = time.monotonic()
    emptied = runtime.whole.emptied
    while jvm.lives():
        left = emptied.wait(_JVM_SECONDS)
        emptied.clear()
        now = time.monotonic()
        vain = now - began >= _FIRST_SECONDS or os.getppid() != planner
        if (left or vain) and runtime.close(only_if_alone=True):
            return
        with contextlib.suppress(OSError):  # retry in the next iteration
            file.restore()
        if now - touched >= touch:
            touched = now
            file.touch()


def _lift_memory_limit() -> None:
    """Lift the inherited memory limit of Spark's Python processes, since buffers have their own limit."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _hand_over_output(say: Callable[[str], None]) -> None:
    """Pass this process's output to `say`, because Spark closes the inherited pipes when the query of the first planner ends."""
    ours, theirs = os.pipe()
    for stream in (1, 2):
        os.dup2(theirs, stream)
    os.close(theirs)

    def read() -> None:
        with os.fdopen(ours, errors="replace") as lines:
            for line in lines:
                say(line)

    threading.Thread(target=read, name="kinesis-efo output", daemon=True).start()
