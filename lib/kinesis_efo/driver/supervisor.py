"""Runs fetchers in Spark tasks: each Spark context has one supervisor, which starts a Spark job for each run that uses such fetchers."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import pickle
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from kinesis_efo.calls.address import is_own
from kinesis_efo.cluster.remote import FetcherPlan, fetch
from kinesis_efo.errors import ConfigurationError, FetcherError
from kinesis_efo.fetcher.assembly import new_event_loop
from kinesis_efo.hosts import is_loopback
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.host import where_to_listen
from kinesis_efo.planner.lifecycle import log_to_stderr
from kinesis_efo.processes import PrivateDirectory

logger = logging.getLogger(__name__)

_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:\s*,\s*\d+)?\])?")
_KILLS: Final = ("spark.python.worker.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.killOnIdleTimeout")
_numbers = count()
_supervisors: Final[list[Supervisor]] = []
_making: Final = threading.Lock()


class Times(NamedTuple):
    """Intervals and pauses of a supervisor, in seconds."""

    look: float = 2.0  # Interval between checks for whether Spark was stopped
    first_pause: float = 1.0  # Pause before a failed job is restarted for the first time
    longest_pause: float = 30.0
    no_core: float = 30.0  # Log a warning if micro-batches have had waiting but no running tasks for this long


def supervisor_of(spark: SparkSession, fetchers: int, times: Times | None = None) -> Supervisor:
    """Return the session's supervisor, creating it on the first call. Raises ConfigurationError if fetchers would occupy all cores."""
    check_cores(spark.sparkContext.master or "", fetchers, spark.sparkContext.defaultParallelism)
    for name in _KILLS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            logger.warning("%s is true: Spark ends idle Python workers, and fetchers among them; set it to false", name)
    with _making:
        _supervisors[:] = [each for each in _supervisors if not each.ended]
        found = next((each for each in _supervisors if each.serves(spark)), None)
        if found is None:
            found = Supervisor(spark, times or Times())
            _supervisors.append(found)
    return found


def check_cores(master: str, fetchers: int, cores_here: int) -> None:
    """Raise ConfigurationError if fetchers would occupy all cores. Only checks local mode, in which the number of cores is known.

    >>> check_cores("local[4]", 3, 2)
    >>> check_cores("yarn", 400, 2)
    """
    if (found := _LOCAL.fullmatch(master)) is None:
        return
    cores = cores_here if found[1] == "*" else int(found[1] or 1)
    if fetchers >= cores:
        raise ConfigurationError(
            f"kinesis-efo option 'fetchers' is {fetchers}, but Spark has {cores} cores with master {master}: each fetcher occupies one, and "
            f"micro-batches need at least one more. Use fewer fetchers, or fetchers=driver, which occupies none"
        )


def _is_running(spark: SparkSession) -> bool:
    try:
        return bool(spark.sparkContext.defaultParallelism)
    except Exception:  # any Spark or py4j error, if Spark was stopped
        return False


class Supervisor:
    """Starts and ends the fetchers of one Spark context's runs, until Spark is stopped. Use `supervisor_of` to get the supervisor.

    Runs connect to the Unix socket at `path`, in a directory that only this user can enter. The socket exists until Spark is stopped,
    because any number of queries may be started from a DataFrame.
    """

    def __init__(self, spark: SparkSession, times: Times) -> None:
        self.ended = False  # Whether the supervisor has stopped accepting runs: Spark was stopped or an error occurred
        self._spark = spark
        self._times = times
        self._directory = tempfile.mkdtemp(prefix="kinesis-efo-")
        self._process = os.getpid()
        atexit.register(self._remove)
        self.path = str(Path(self._directory) / "supervisor")
        self._socket = self._listening()
        threading.Thread(target=self._accept, name="kinesis-efo supervisor", daemon=True).start()

    def serves(self, spark: SparkSession) -> bool:
        """Whether this supervisor is running and belongs to a session's Spark context."""
        return not self.ended and self._spark.sparkContext is spark.sparkContext and _is_running(spark)

    def _listening(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX)
        try:
            with PrivateDirectory(Path(self._directory)) as directory:
                directory.bind(listening, "supervisor")
            listening.listen()
        except OSError:
            listening.close()
            raise
        listening.settimeout(self._times.look)
        return listening

    def _accept(self) -> None:
        try:
            while _is_running(self._spark):
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    if not Path(self.path).exists():  # for example, because a cleanup of temporary files has removed it
                        with suppress(OSError):  # if the socket cannot be created, retry after the next timeout
                            removed, self._socket = self._socket, self._listening()
                            removed.close()
                    continue
                connection.setblocking(True)
                threading.Thread(
                    target=self._serve, args=(connection,), name="kinesis-efo fetchers", daemon=True
                ).start()
        finally:
            # Set this even after an error, such as too many open files, so that the next DataFrame gets a new supervisor.
            self.ended = True
            self._socket.close()
            self._remove()
            atexit.unregister(self._remove)

    def _remove(self) -> None:
        if os.getpid() == self._process:  # a forked child must not remove the parent's socket
            shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            if not is_own(connection):
                return  # do not unpickle bytes from another user
            plan = _received(connection)
            if plan is None:
                return
            job = _Job(self._spark, plan, connection, self._times)
            try:
                with suppress(OSError):
                    connection.recv(1)  # wait until the run closes the connection
            finally:
                job.end()


class _Job:
    """The Spark job that runs the fetchers of one run. A thread restarts the job if it fails."""

    def __init__(self, spark: SparkSession, plan: FetcherPlan, connection: socket.socket, times: Times) -> None:
        assert plan.options.fetchers is not None
        self._spark = spark
        self._context = spark.sparkContext
        self._fetchers = plan.options.fetchers
        self._plan, self._connection, self._times = plan, connection, times
        self._group = f"kinesis-efo-fetchers-{os.getpid()}-{next(_numbers)}"
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="kinesis-efo job", daemon=True).start()
        threading.Thread(target=self._watch, name="kinesis-efo cores", daemon=True).start()

    def end(self) -> None:
        """Cancel the job if it is still running."""
        self._ended.set()
        with suppress(Exception):  # Spark may have been stopped
            self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        pause = self._times.first_pause / 2
        application = self._plan.manifest.application
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._context.setJobGroup(self._group, f"kinesis-efo fetchers of application {application}")
                places = self._spark.range(0, self._fetchers, 1, self._fetchers)
                places.mapInArrow(fetcher_task(self._plan), "place long").collect()
                return  # the run has ended
            except Exception as error:
                if self._ended.is_set():
                    return
                reason = str(error).strip()
                ran = time.monotonic() - began > self._times.longest_pause
                pause = self._times.first_pause if ran else min(2 * pause, self._times.longest_pause)
                logger.warning(
                    "the fetchers of application %s failed; starting them again in %.0f s: %s",
                    application,
                    pause,
                    reason,
                )
                with suppress(OSError):
                    problem = json.dumps(f"Spark gave up their job: {reason[:2000]}")
                    self._connection.sendall(problem.encode() + b"\n")
                self._ended.wait(pause)

    def _watch(self) -> None:
        """Warn that fetchers occupy all cores if tasks of micro-batches have been waiting for some time while none was running."""
        tracker = self._context.statusTracker()
        waited = 0.0
        while not self._ended.wait(self._times.no_core / 3):
            with suppress(Exception):
                ours = set(tracker.getJobIdsForGroup(self._group))
                others = [job for job in tracker.getActiveJobsIds() if job not in ours]
                stages = [
                    stage
                    for job in others
                    if (info := tracker.getJobInfo(job)) is not None
                    for number in info.stageIds
                    if (stage := tracker.getStageInfo(number)) is not None
                ]
                waiting = any(stage.numTasks > stage.numCompletedTasks for stage in stages)
                stuck = waiting and not any(stage.numActiveTasks for stage in stages)
                waited = waited + self._times.no_core / 3 if stuck else 0.0
                if waited >= self._times.no_core:
                    waited = 0.0
                    logger.warning(
                        "tasks of micro-batches have waited for %.0f s and none runs: %d fetchers occupy the cores. Give the job more "
                        "executors or cores, or use fewer fetchers",
                        self._times.no_core,
                        self._fetchers,
                    )


def _received(connection: socket.socket) -> FetcherPlan | None:
    with suppress(OSError, EOFError, pickle.UnpicklingError), connection.makefile("rb") as stream:
        plan = pickle.load(stream)
        if isinstance(plan, FetcherPlan):
            return plan
    return None


# -- functions that run in Spark tasks


def fetcher_task(plan: FetcherPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that runs a fetcher in a Spark task. It does not yield rows. The fetcher's number is the task's partition id."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        run_fetcher(plan, context.partitionId())
        yield from ()

    return run


def run_fetcher(plan: FetcherPlan, place: int) -> None:
    """Run the fetcher with the number `place` until the run has ended."""
    log_to_stderr()
    options = _here(plan.options)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(fetch(replace(plan, options=options), place, where_to_listen(options)))
    except Exception as error:
        raise FetcherError(
            f"fetcher {place} on host {socket.gethostname()}: {error or type(error).__name__}"
        ) from error


def _here(options: SourceOptions) -> SourceOptions:
    """Return the options for a fetcher in a task. Unless all Spark processes run on this host, the driver's addresses are removed."""
    if options.driver_host is not None and is_loopback(options.driver_host):
        return options
    return replace(options, driver_host=None, fetcher_host=None, fetcher_bind_host=None)
