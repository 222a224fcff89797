"""`kinesis-efo quickstart`: the user's program as a process, and once all of it with Spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from kinesis_efo.cli.quickstart.program import Program, kill, template
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


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


def written(directory: Path, text: str) -> Path:
    path = directory / "first.py"
    path.write_text(text)
    return path


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_leaving_ends_every_process_that_the_program_started(tmp_path: Path, scratch: Path) -> None:
    with Program(written(tmp_path, STARTS_ANOTHER), scratch) as running:
        pid = int(wait_until(lambda: running.printed.strip()))
        assert not gone(pid)
        assert running.exit_code is None
    assert gone(pid)
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


def test_a_program_ends_with_whoever_runs_it(tmp_path: Path, scratch: Path) -> None:
    path = written(tmp_path, "import os, time\nprint(os.getpid())\ntime.sleep(600)\n")
    runs_it = (
        "import os, sys, time\nfrom pathlib import Path\nfrom kinesis_efo.cli.quickstart.program import Program\n"
        f"with Program(Path({str(path)!r}), Path({str(scratch)!r})) as running:\n"
        "    while not running.printed.strip(): time.sleep(0.02)\n"
        "    print(running.printed, flush=True)\n"
        "    os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", runs_it], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr
    wait_until(lambda: gone(int(done.stdout)))


def test_how_a_program_fails_is_kept(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'Ada'\n")
    failing = "import neighbour, sys\nprint(neighbour.NAME, sys.argv[1:])\nraise ValueError('no such field')\n"
    with Program(written(tmp_path, failing), scratch) as running:
        assert wait_until(lambda: running.exit_code) == 1
        assert running.printed == "Ada []\n"
        assert running.errors.endswith("ValueError: no such field\n")
        assert running.news() == []


@pytest.mark.slow
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
        said = wait_until(
            lambda: re.search(r"rows out ([\d,]{2,}), [\d,]+ ms behind\n(\|.*\|)", output.read_text()), 300
        )
        assert re.match(r"\|\w+ *\|\w{3} *\|\w{3} *\|N\w+ *\|[\d: -]{19}\|\d+ *\|\d+ *\|", said[2])
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
