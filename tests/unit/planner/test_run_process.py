"""What a query's process has to import if the run is elsewhere, and when a run's process ends."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kinesis_efo.calls.address import Listening
from kinesis_efo.calls.wire import pack_error
from kinesis_efo.errors import DataLossError, FetcherError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner import run_process
from kinesis_efo.planner.program import Program
from kinesis_efo.processes import Process
from tests.support.world import wait_until

HEAVY = {"aiobotocore", "aiohttp", "boto3", "botocore", "cryptography", "h2"}


@pytest.mark.slow
def test_planner_without_a_run_imports_few_modules() -> None:
    program = (
        "import sys; import kinesis_efo.spark.stream_reader, kinesis_efo.planner.run_link, "
        "kinesis_efo.planner.shared_run, kinesis_efo.planner.run_process; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert not HEAVY & {name.partition(".")[0] for name in done.stdout.split()}


class Runtime:
    """A run that queries have joined, or not."""

    def __init__(self) -> None:
        self.clients = 1
        self.closed = 0
        self.whole = SimpleNamespace(emptied=threading.Event())

    def close(self, *, only_if_alone: bool) -> bool:
        self.closed += 1
        return not self.clients


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr(run_process, "_JVM_SECONDS", 0.02)
    return Runtime()


def test_a_run_keeps_its_file_young(runtime: Runtime) -> None:
    touched: list[bool] = []
    file = SimpleNamespace(touch=lambda: touched.append(True), restore=lambda: None)
    given = (runtime, Process.of(os.getpid()), os.getppid(), file, 0.05)
    staying = threading.Thread(target=run_process.stay, args=given)
    staying.start()
    staying.join(0.5)
    runtime.clients = 0
    runtime.whole.emptied.set()
    staying.join(20)
    assert len(touched) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["JVM", "planner"])
def test_starting_run_ends_with_its_jvm_or_planner(gone: str) -> None:
    """It may wait for AWS for minutes."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
        program = (
            "import threading, time; from kinesis_efo.processes import Process; from kinesis_efo.planner import run_process as r; "
            "import os, sys; print('waits', flush=True); "
            f"r._end_with(Process.of({jvm.pid}), int(sys.argv[1]), threading.Event(), open(1, 'wb', 0))"
        )
        starter = f"import os, subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {program!r}, str(os.getpid())]))"
        with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as planner:
            assert planner.stdout is not None
            assert planner.stdout.readline() == b"waits\n"
            assert planner.poll() is None
            (jvm if gone == "JVM" else planner).kill()
            # The output ends with the last process that has it.
            assert planner.stdout.read().strip(b"\0") == b""
            assert planner.wait(60) == (1 if gone == "JVM" else -9)
        jvm.kill()


def test_unneeded_prepared_process_ends() -> None:
    before = set(psutil.Process().children())
    for _ in range(2):
        run_process.start_ahead()
    (process,) = set(psutil.Process().children()) - before
    run_process.end_ahead()
    assert not process.is_running()


def started(program: str) -> tuple[run_process.RunProcess, subprocess.Popen[bytes]]:
    """A process that runs a program in place of a run's."""
    command = [sys.executable, "-c", f"import os, sys; order = sys.stdin.buffer.read(); {program}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    options = SourceOptions.parse({"manifest": "m.json", "retryTimeout": "2s"})
    order = SimpleNamespace(name="the order", options=options, manifest=SimpleNamespace(streams={"orders": None}))
    return run_process.RunProcess(order, process), process  # type: ignore[arg-type]


def ended(process: run_process.RunProcess) -> str:
    """How it has ended, once it has."""
    wait_until(process.end, 60, "the end of the process")
    return process.end()


@pytest.mark.slow
def test_ready_run_has_its_order_and_reports_its_end(caplog: pytest.LogCaptureFixture) -> None:
    ready = "assert b'the order' in order; os.write(1, b'ready'); os.close(1); import time; time.sleep(600)"
    process, run = started(ready)
    process.start(lambda: None)
    assert process.end() == ""
    run.terminate()
    assert ended(process).startswith("signal SIGTERM, with a peak memory of ")
    assert process.end().endswith(" MiB")
    assert "the process of the run has ended: signal SIGTERM" in caplog.text


def test_a_run_that_cannot_begin_is_its_error(caplog: pytest.LogCaptureFixture) -> None:
    process, _ = started(f"os.write(1, {pack_error(DataLossError('gone'))!r})")
    with pytest.raises(DataLossError, match="gone"):
        process.start(lambda: None)
    assert ended(process).startswith("exit code 0, ")
    assert caplog.messages == []


@pytest.mark.slow
def test_run_stopped_during_its_start_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    beats = "import time; [(os.write(1, b'\\0'), time.sleep(0.5)) for _ in range(28)]; "
    process, run = started(f"{beats} import signal; os.kill(os.getpid(), signal.SIGSTOP)")
    pid, began = run.pid, time.monotonic()
    with pytest.raises(
        FetcherError, match=rf"fetches orders \(pid {pid}, state T: stopped\) has not answered for 12 s"
    ):
        process.start(lambda: None)
    assert time.monotonic() - began > 13 + 12, "a start may take long if the process goes on"
    (warning,) = [message for message in caplog.messages if "has not answered" in message]
    assert f"(pid {pid}, state T: stopped) has not answered for 10 s" in warning
    assert ended(process).startswith("signal SIGKILL, ")


@pytest.mark.slow
def test_process_with_a_dead_starter_ends() -> None:
    process = run_process.started()
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


# Shows AWS away at a start.
@pytest.mark.slow
def test_start_that_waits_for_aws_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("ENDPOINT_URL", "http://127.0.0.1:9")):
        monkeypatch.setenv(f"AWS_{name}", value)
    ref = StreamRef("orders", "orders", "arn:aws:kinesis:us-east-1:123456789012:stream/orders", None)
    manifest = Manifest("lake", "test", "us-east-1", "leases", {"orders": ref}, "manifest.json", {"orders": "orders"})
    options = SourceOptions.parse({"manifest": "manifest.json"})
    program = Program.locate(tmp_path, Process.of(os.getpid()), "test")
    process = run_process.RunProcess(run_process.RunOrder(manifest, options, Listening(), program, "secret"))
    said, give_up_at = [""], time.monotonic() + 60

    def check() -> None:
        assert time.monotonic() < give_up_at
        said[0] += capfd.readouterr().err
        if "waiting for DescribeTable of lease table leases" in said[0]:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        process.start(check)
    process.end()
