"""However a Spark program ends, nothing of it is left after a moment: no process, no zombie, no file, no lease on this host."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.support import arriving
from tests.support.driven import MARK, Driver, local_driver, processes, with_word
from tests.support.world import World, wait_until

# On Spark 4.0, `make test` kills the JVM of a program in test_sharing.py.
pytestmark = pytest.mark.long
SECONDS = 5.0
MakeWorld = Callable[..., World]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The directory for temporary files of the test's program."""
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Iterator[str]:
    """What the processes of the test's program have in their environment."""
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv(MARK, value := uuid4().hex)
    yield value
    for process in processes(value):
        process.kill()


def java(driver: Driver) -> psutil.Process:
    (jvm,) = [each for each in psutil.Process(driver.process.pid).children() if each.name() == "java"]
    return jvm


def stop_spark(driver: Driver) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.close()


@pytest.mark.spark
@pytest.mark.parametrize(
    "end",
    [
        stop_spark,
        pytest.param(lambda driver: java(driver).kill(), id="kill JVM"),
        pytest.param(lambda driver: java(driver).terminate(), id="terminate JVM"),
        pytest.param(lambda driver: os.killpg(driver.process.pid, signal.SIGTERM), id="terminate group"),
        pytest.param(lambda driver: os.killpg(driver.process.pid, signal.SIGINT), id="interrupt group"),
    ],
)
def test_nothing_is_left_of_a_program(
    end: Callable[[Driver], None], world: MakeWorld, mark: str, tmp_path: Path, temporary: Path
) -> None:
    w = world({"orders": 2})
    w.put(arriving.numbered(40))
    driver = local_driver(tmp_path / "driver.log")
    queries = [driver.start(name, w, tmp_path / name) for name in ("one", "two")]
    for query in queries:
        query.wait_for_rows(40)
    jvm = java(driver)
    ours = [each for each in processes(mark) if each.pid not in (driver.process.pid, jvm.pid)]
    assert len(with_word(ours, "run_process")) == 1
    end(driver)
    wait_until(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, 60)
    # Zombies are there, too.
    wait_until(lambda: not [each for each in ours if each.is_running()], SECONDS)
    driver.kill()
    assert not [row for row in w.leases().values() if "leaseOwner" in row]
    assert not list(temporary.glob("kinesis-efo-*/run.*"))
