"""The process of a run: a planner starts it, and it ends with its last query, or with the JVM.

It imports no PySpark. It gets its settings by standard input only, as they have secrets.
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
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final

from kinesis_efo.calls.address import Listening
from kinesis_efo.calls.wire import pack_error, unpack_error
from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import Program, RunEntry
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.processes import Process
from kinesis_efo.spark.host import where_to_listen
from kinesis_efo.spark.lifecycle import is_sparks_process, log_to_stderr

if TYPE_CHECKING:
    from kinesis_efo.planner.run_thread import RunThread

logger = logging.getLogger(__name__)

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from kinesis_efo.spark.run_process import main; main(sys.stdin.buffer)"
)
_READY: Final = b"ready"
_LOOK_SECONDS: Final = 0.1
_REAPED_SECONDS: Final = 1.0
_JVM_SECONDS: Final = 0.5
_FIRST_SECONDS: Final = 30.0
"""A run without a client ends after this time: the planner that started it has died."""
_TOUCH_SECONDS: Final = 3600.0
"""How often the run's file is touched: cleaners of temporary files spare those that are younger than some days."""


@dataclass(frozen=True)
class RunOrder:
    """The settings of a run's process.

    Attributes:
        manifest: The application, with the streams to read.
        options: The options of its first query.
        listening: Where to listen for tasks.
        program: Its Spark program.
        secret: The secret of the run.
    """

    manifest: Manifest
    options: SourceOptions
    listening: Listening
    program: Program
    secret: str


# -- in a planner


def run_of_program(manifest: Manifest, options: SourceOptions) -> SharedRun:
    """The run of a reader, not started yet.

    Args:
        manifest: The application, with the streams to read.
        options: The options of the query.

    Raises:
        FetcherError: Files and locks, by which processes of this program find each other, do not work.
    """
    listening = where_to_listen(options)
    # In any other process, the reader is a program of its own.
    jvm = Process.of(os.getppid() if is_sparks_process() else os.getpid())
    # Without the application's name: queries of one stream and lease table need the same lease.
    about = (options.program, manifest.region, manifest.lease_table, options.aws.endpoint_url or "")
    program = Program.found(notes_directory(), jvm, "\n".join(about))

    def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        process = RunProcess(RunOrder(manifest, options, listening, program, secret))
        process.start(check)
        return process.end

    return SharedRun(program, manifest, options, listening, start_process)


_ahead: Final[list[subprocess.Popen[bytes]]] = []
"""A process that was started before it is known whether a run is needed."""


def start_ahead() -> None:
    """Start a process for a run, unless this program has a run, so that both processes import their modules at the same time."""
    if not _ahead and not any(notes_directory().glob(f"run.*.{os.getppid()}.*.json")):
        with contextlib.suppress(FetcherError):  # the query needs one later, and fails then
            _ahead.append(_started())


def end_ahead() -> None:
    """End the process that was started ahead, if it was not needed."""
    while _ahead:
        process = _ahead.pop()
        process.kill()
        process.communicate()


def _started() -> subprocess.Popen[bytes]:
    # Until it has its order, it writes to this process's stderr.
    try:
        process = subprocess.Popen([sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise FetcherError(
            f"the process that reads cannot be started with {sys.executable!r}: {error}. The driver's host has to allow one process more, "
            "with memory for it"
        ) from error
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(json.dumps(sys.path).encode() + b"\n")
        process.stdin.flush()
    return process


class RunProcess:
    """Starts a run's process.

    Args:
        order: The settings.
    """

    def __init__(self, order: RunOrder) -> None:
        self._process = _ahead.pop() if _ahead else _started()
        self._order = order
        self._stopping = False
        self._ended = ""
        self._reaper = threading.Thread(target=self._reap, name="kinesis-efo reaper", daemon=True)

    def start(self, check: Callable[[], None]) -> None:
        """Wait until queries can join the run, or its process has ended.

        Args:
            check: Called repeatedly meanwhile; raises to give up.

        Raises:
            KinesisEfoError: The run could not start; or as `check`.
        """
        answers: list[bytes] = []
        talking = threading.Thread(target=self._talk, args=(answers,), name="kinesis-efo run", daemon=True)
        talking.start()
        try:
            while talking.is_alive():
                talking.join(_LOOK_SECONDS)
                check()
        except BaseException:
            self._stopping = True
            self._process.kill()
            raise
        self._reaper.start()
        answer = answers[0] if answers else b""
        if answer not in (b"", _READY):
            raise unpack_error(answer)

    def end(self) -> str:
        """How the process has ended; empty if it has not."""
        self._reaper.join(_REAPED_SECONDS)
        return self._ended

    def _talk(self, answers: list[bytes]) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with stdin:
                stdin.write(pickle.dumps(self._order))
        except OSError:
            logger.debug("the process of the run does not listen", exc_info=True)
        with stdout:
            answers.append(stdout.read())

    def _reap(self) -> None:
        self._ended = self._end()
        if self._process.returncode and not self._stopping:
            logger.error("the process of the run has ended: %s", self._ended)

    def _end(self) -> str:
        """Wait for the end of the process, and describe it."""
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        return f"{how}, its largest memory {largest} MiB"


# -- in the run's process


def main(order_from: BinaryIO) -> None:
    """Start the run, and end when it ends.

    Args:
        order_from: The stream with the pickled `RunOrder`.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Signals may go to the whole process group, while the driver still finishes a micro-batch.
        signal.signal(number, signal.SIG_IGN)
    _lift_memory_limit()
    gc.disable()
    from kinesis_efo.planner.run_thread import RunThread
    from kinesis_efo.spark.job_request import JobRequest

    gc.freeze()
    gc.enable()
    try:
        order: RunOrder = pickle.load(order_from)
    except EOFError:
        return  # started ahead, and not needed
    order_from.close()
    options = order.options
    runtime = RunThread(
        order.manifest,
        options,
        order.listening,
        order.secret,
        start_fetchers=None if options.supervisor is None else partial(JobRequest, options.supervisor),
    )
    answers = os.fdopen(os.dup(1), "wb")
    _hand_over_output(runtime.say)
    log_to_stderr()
    with answers:
        begun = threading.Event()
        threading.Thread(
            target=_end_with, args=(order.program.jvm, begun), name="kinesis-efo start", daemon=True
        ).start()
        try:
            runtime.start()
            streams = {name: ref.stream_arn for name, ref in order.manifest.streams.items()}
            file = order.program.begin(RunEntry(runtime.address, order.secret, streams))
        except Exception as error:
            runtime.stop()
            unforeseen = FetcherError(f"the run cannot be begun: {type(error).__name__}: {error}")
            answers.write(pack_error(error if isinstance(error, KinesisEfoError) else unforeseen))
            return
        begun.set()
        runtime.streams_changed = lambda arns: file.write(RunEntry(runtime.address, order.secret, arns))
        answers.write(_READY)
    try:
        _stay(runtime, order.program.jvm, file.touch)
    finally:
        runtime.stop()
        file.close()
        with contextlib.suppress(OSError):
            order.program.clear()


def _end_with(jvm: Process, begun: threading.Event) -> None:
    """End this process if its program ends before the run has begun, which may wait for AWS for minutes."""
    while not begun.wait(_JVM_SECONDS):
        if not jvm.lives():
            os._exit(1)


def _stay(runtime: RunThread, jvm: Process, touch: Callable[[], None]) -> None:
    """Return when the run has no query any more, or its program has ended."""
    began = touched = time.monotonic()
    emptied = runtime.whole.emptied
    while jvm.lives():
        left = emptied.wait(_JVM_SECONDS)
        emptied.clear()
        now = time.monotonic()
        if (left or now - began >= _FIRST_SECONDS) and runtime.close(only_if_alone=True):
            return
        if now - touched >= _TOUCH_SECONDS:
            touched = now
            touch()


def _lift_memory_limit() -> None:
    """Lift Spark's limit for the memory of its Python processes, which is inherited; buffers have their own limit."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _hand_over_output(say: Callable[[str], None]) -> None:
    """Let the clients write the output of this process: Spark closes the pipes of the planner that started it when its query ends.

    Args:
        say: Called with each line, in a new thread.
    """
    ours, theirs = os.pipe()
    for stream in (1, 2):
        os.dup2(theirs, stream)
    os.close(theirs)

    def read() -> None:
        with os.fdopen(ours, errors="replace") as lines:
            for line in lines:
                say(line)

    threading.Thread(target=read, name="kinesis-efo output", daemon=True).start()
