"""One supervisor for all DataFrames of a session, the jobs that runs ask it for, and nothing left of it when Spark is stopped."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.cluster.remote import FetcherPlan
from kinesis_efo.driver import supervisor as module
from kinesis_efo.driver.supervisor import Times, check_cores, run_fetcher, supervisor_of
from kinesis_efo.errors import ConfigurationError, FetcherError
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import DRIVER_HOST, SUPERVISOR
from kinesis_efo.planner.run_process import FetcherJob
from tests.support.messages import raises
from tests.support.missing import not_here
from tests.support.shared_runs import manifest
from tests.support.world import wait_until


class Context:
    """Spark's context, as far as supervisors ask it."""

    master = "yarn"
    stopped = False

    @property
    def defaultParallelism(self) -> int:
        if self.stopped:
            raise AttributeError("'NoneType' object has no attribute 'sc'")  # as PySpark's
        return 8

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.jobs: dict[int, list[Any]] = {}

    def setJobGroup(self, group: str, _description: str) -> None:
        self.groups.append(group)

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)

    def statusTracker(self) -> Any:
        stages = {number: stage for job, stages in self.jobs.items() for number, stage in enumerate(stages, 10 * job)}
        return SimpleNamespace(
            getJobIdsForGroup=lambda _group: [0],
            getActiveJobsIds=lambda: [0, *self.jobs],
            getJobInfo=lambda job: SimpleNamespace(stageIds=[n for n in stages if n // 10 == job]),
            getStageInfo=stages.get,
        )


class Session:
    """A session whose jobs of fetchers end as a test says."""

    def __init__(self, context: Context, collect: Callable[[], object] = list) -> None:
        self.sparkContext = context
        self.conf: dict[str, str] = {}
        self.sizes: list[tuple[int, ...]] = []
        self.collect = collect

    def range(self, *size: int) -> Session:
        self.sizes.append(size)
        return self

    def mapInArrow(self, _function: object, _schema: str) -> Session:
        return self


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    yield context
    context.stopped = True
    wait_until(lambda: not threads(), 60, "the end of all supervisors")


QUICK = Times(look=0.05, first_pause=0.02, no_core=0.03)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kinesis-efo supervisor"]


def path_for(session: Any, fetchers: int = 2) -> Path:
    return Path(supervisor_of(session, fetchers, QUICK).path)


def as_root() -> None:
    if os.geteuid() != 0:
        not_here("only root can act as another user; run this test as root")


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_no_secret_goes_to_another_users_socket(context: Context, tmp_path: Path, mode: int) -> None:
    as_root()
    path = path_for(Session(context))
    shutil.rmtree(path.parent)
    path.parent.mkdir(mode=mode)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        os.chown(path.parent, 65534, 65534)
        with pytest.raises(FetcherError, match="is not a directory of this user alone: its owner is user 65534"):
            FetcherJob(str(path), plan())
        other.settimeout(0.1)
        with pytest.raises(TimeoutError):
            other.accept()


def test_no_secret_goes_to_another_users_process(context: Context) -> None:
    as_root()
    path = path_for(Session(context))
    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1] + '.new'); "
        "os.rename(sys.argv[1] + '.new', sys.argv[1]); os.setuid(65534); s.listen(); print(flush=True)\n"
        "s = s.accept()[0]; print(len(s.recv(100)), flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with raises(
            FetcherError,
            "the program that called kinesis_efo.read_stream(..., fetchers=...) cannot be asked for "
            f"fetchers at {path}: a process of another user listens there. It has ended, or this query runs on "
            "a different host: start the query in the program that opened the stream",
        ):
            FetcherJob(str(path), plan())
        assert other.stdout.readline() == "0\n"


def test_plans_of_another_user_are_not_unpickled(context: Context, tmp_path: Path) -> None:
    as_root()
    path, unpickled = path_for(Session(context)), tmp_path / "unpickled"
    path.parent.chmod(0o755)
    path.chmod(0o777)
    script = """if True:
        import contextlib, os, pickle, socket, sys
        class Call:
            def __reduce__(self):
                return os.mkdir, (sys.argv[1],)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect("supervisor")
            with contextlib.suppress(ConnectionError):  # the other end has closed
                sock.sendall(pickle.dumps(Call()))
                assert sock.recv(1) == b""
    """
    subprocess.run([sys.executable, "-c", script, str(unpickled)], cwd=path.parent, check=True, timeout=60)
    assert not unpickled.exists()


def test_a_stopped_spark_leaves_no_supervisor(context: Context) -> None:
    before = path_for(Session(context))
    other = Context()
    after = path_for(Session(other))
    assert after != before
    context.stopped = True
    wait_until(lambda: not before.parent.exists() and len(threads()) == 1, 60, "the end of the first supervisor")
    assert after.is_socket()
    other.stopped = True
    wait_until(lambda: not after.parent.exists() and not threads(), 60, "the end of the second supervisor")


@pytest.fixture
def asks(context: Context) -> Callable[[Path], None]:
    """Asks a supervisor for fetchers, waits for their job, and ends it."""

    def ask(path: Path) -> None:
        job = FetcherJob(str(path), plan())
        wait_until(lambda: context.groups != [], 60, "the job")
        job.stop()

    return ask


@pytest.mark.parametrize("what", ["socket", "directory"])
def test_removed_socket_of_a_supervisor_is_restored(context: Context, asks: Callable[[Path], None], what: str) -> None:
    path = path_for(Session(context))
    path.unlink()
    if what == "directory":
        path.parent.rmdir()
    wait_until(path.is_socket, 60, "the socket")
    asks(path)


def test_fetchers_that_leave_no_core_are_refused(context: Context) -> None:
    context.master = "local[8]"
    path_for(Session(context), 7)
    with raises(
        ConfigurationError,
        "kinesis-efo option 'fetchers' is 8, but Spark has 8 cores with master local[8]: each fetcher occupies one, and "
        "micro-batches need at least one more. Use fewer fetchers, or fetchers=driver, which occupies none",
    ):
        path_for(Session(context), 8)


@pytest.mark.parametrize(
    ("master", "fetchers", "here", "cores"),
    [
        ("local[4]", 3, 1, None),
        ("local[*]", 7, 8, None),
        ("local-cluster[2,1,1024]", 9, 1, None),
        ("yarn", 9, 1, None),
        ("", 9, 1, None),
        ("local", 1, 8, 1),
        ("local[4]", 4, 8, 4),
        ("local[4, 2]", 5, 8, 4),
        ("local[*]", 8, 8, 8),
    ],
)
def test_a_local_master_limits_the_fetchers(master: str, fetchers: int, here: int, cores: int | None) -> None:
    if cores is None:
        check_cores(master, fetchers, here)
    else:
        with pytest.raises(ConfigurationError, match=re.escape(f"{cores} cores with master {master}:")):
            check_cores(master, fetchers, here)


@pytest.mark.parametrize(
    "name", ["spark.python.worker.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.killOnIdleTimeout"]
)
def test_setting_that_kills_fetchers_is_a_warning(
    context: Context, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(context)
    path_for(session)
    assert caplog.messages == []
    session.conf[name] = "true"
    path_for(session)
    assert f"{name} is true: Spark ends idle Python workers" in caplog.text


# -- the jobs that runs ask it for


def plan(**options: str) -> FetcherPlan:
    given = {"manifest": "m.json", "fetchers": "3", SUPERVISOR: "s", **options}
    return FetcherPlan(manifest("orders"), SourceOptions.parse(given), FetcherAddress("here", 1), "secret")


def test_a_failed_job_restarts_and_its_run_learns_why(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    third, ended = threading.Event(), threading.Event()

    def collect() -> None:
        if len(session.sizes) < 3:
            raise RuntimeError("no executor is left")
        third.set()
        assert ended.wait(60)
        raise RuntimeError("cancelled")

    session = Session(context, collect)
    job = FetcherJob(str(path_for(session)), plan())
    assert third.wait(60)
    wait_until(lambda: job.problem() != "", 60, "word of the failure")
    assert job.problem() == "Spark gave up their job: no executor is left"
    assert session.sizes == [(0, 3, 1, 3)] * 3
    assert len(set(context.groups)) == 1
    assert [text.split("; ")[1][:27] for text in caplog.messages if "failed" in text] == [
        "starting them again in 0 s:"
    ] * 2
    job.stop()
    wait_until(lambda: context.cancelled == context.groups[:1], 60, "the end of the job")
    ended.set()
    wait_until(lambda: not any(each.name == "kinesis-efo job" for each in threading.enumerate()), 60, "its thread")
    assert len(session.sizes) == 3, "what is cancelled is not started again"


def stage(tasks: int, active: int, completed: int) -> Any:
    return SimpleNamespace(numTasks=tasks, numActiveTasks=active, numCompletedTasks=completed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "warned"),
    [
        ([stage(4, 0, 2)], True),
        ([stage(4, 1, 2)], False),
        ([stage(4, 0, 4)], False),
        ([stage(4, 0, 2), stage(4, 2, 0)], False),
    ],
)
def test_tasks_waiting_for_cores_are_a_warning(
    context: Context, stages: list[Any], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context.jobs = {1: stages}
    ended = threading.Event()
    with caplog.at_level(logging.WARNING):
        job = FetcherJob(str(path_for(Session(context, lambda: ended.wait(60)))), plan())
        if warned:
            wait_until(lambda: "3 fetchers occupy the cores" in caplog.text, 60, "the warning")
        else:
            wait_until(lambda: context.groups != [], 60, "the job")
            ended.wait(0.3)
    job.stop()
    ended.set()
    assert ("occupy the cores" in caplog.text) is warned


def test_a_missing_supervisor_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FetcherError, match=r"supervisor: \[Errno 2\]"):
        FetcherJob(str(tmp_path / "supervisor"), plan())


@pytest.mark.parametrize(("host", "kept"), [("127.0.0.1", True), ("10.0.0.7", False)])
def test_remote_fetchers_drop_the_drivers_address(host: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[SourceOptions, int]] = []

    async def fetch(given: FetcherPlan, place: int, listening: Listening) -> None:
        asked.append((given.options, place))
        raise OSError("no route")

    monkeypatch.setattr(module, "fetch", fetch)
    with raises(FetcherError, "fetcher 2 on host ...: no route"):
        run_fetcher(plan(fetcherHost="gateway", fetcherBindHost="10.0.0.9", **{DRIVER_HOST: host}), 2)
    ((options, place),) = asked
    assert place == 2
    known = (options.driver_host, options.fetcher_host, options.fetcher_bind_host)
    assert known == ((host, "gateway", "10.0.0.9") if kept else (None, None, None))


def test_a_task_fetches_under_its_partitions_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[FetcherPlan, int]] = []
    context = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: 4))
    monkeypatch.setattr(module, "TaskContext", context)
    monkeypatch.setattr(module, "run_fetcher", lambda *given: fetched.append(given))
    given: Any = iter(["a batch", "another"])
    assert list(module.fetcher_task(plan())(given)) == []
    assert fetched == [(plan(), 4)]
    assert next(given, None) is None, "Spark waits until its rows are taken"
