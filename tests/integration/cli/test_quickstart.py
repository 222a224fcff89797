"""`kinesis-efo quickstart`: the user's program as a process, and once all of it with Spark."""

import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path

import psutil
import pytest

from kinesis_efo_tools.cli.quickstart.child import kill
from kinesis_efo_tools.cli.quickstart.command import program, template
from tests.support.class_archive import jvm_options
from tests.support.world import wait_until

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "kinesis-efo")
# It starts another one, which leaves its session and outlives it.
STARTS_ANOTHER = """
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(other.pid)
time.sleep(600)
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "first.py"
    path.write_text(text)
    return path


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_leaving_ends_every_process_that_the_program_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = ""

    def pid() -> str:
        nonlocal printed
        printed += capfd.readouterr().out
        return printed.strip()

    with program(written(tmp_path, STARTS_ANOTHER), tmp_path) as running:
        running.start()
        other = int(wait_until(pid))
        assert not gone(other)
        assert running.exit_code is None
    assert gone(other)
    assert running.exit_code is not None


def test_a_process_that_has_just_ended_is_not_missed() -> None:
    """Spark's shells and workers end by themselves while they are killed one after the other."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    family = [psutil.Process(process.pid) for process in processes]
    processes[0].kill()
    processes[0].wait()
    kill(family)
    for process in processes:
        process.wait(30)
    assert all(gone(process.pid) for process in processes)


def test_failure_of_a_program_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'Ada'\n")
    failing = "import neighbour, sys\nprint(neighbour.NAME, sys.argv[1:])\nraise ValueError('no such field')\n"
    with program(written(tmp_path, failing), tmp_path) as running:
        running.start()
        assert running.wait(60) == 1
    assert capfd.readouterr().out == "Ada []\n"
    assert running.tail(1) == "ValueError: no such field"


@pytest.mark.long
@pytest.mark.spark43
def test_the_first_minute_of_a_new_user(tmp_path: Path) -> None:
    """From an empty folder to rows on the screen, and Ctrl-C."""
    output = tmp_path / "output"
    # With Spark as it is shipped.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": jvm_options(as_shipped=True)}
    with output.open("w") as file:
        command = subprocess.Popen(
            [PROGRAM, "quickstart", "--rate", "100"], cwd=tmp_path, env=environment, stdout=file, stderr=file
        )
    try:
        row = r"^\|\w+ *\|\w{3} *\|\w{3} *\|N\w+ *\|[\d: -]{19}\|\d+ *\|\d+ *\|$"
        wait_until(lambda: re.search(row, output.read_text(), re.MULTILINE), 300)
        family = psutil.Process(command.pid).children(recursive=True)
        assert any(process.name() == "java" for process in family)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0, output.read_text()
    finally:
        command.kill()
        command.wait()
    text = output.read_text()
    assert "Traceback" not in text
    assert text.endswith("first.py and quickstart-local.json stay; everything else has ended\n")
    assert [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert (tmp_path / "first.py").read_text() == template()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.py", "output", "quickstart-local.json"]
