"""A host whose clock is off and jumps, by libfaketime: the SDK signs with that clock, and the local Kinesis refuses it as AWS does."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.missing import not_here
from tests.support.world import QUICK, World, make_world, wait_until

ROOT = Path(__file__).resolve().parents[3]


class Host:
    """The process of `tests.support.shifted_host`."""

    def __init__(self, process: subprocess.Popen[str], shift: Path, log: Path) -> None:
        self._process = process
        self._shift = shift
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def set_forward(self, seconds: float) -> None:
        set_forward(self._shift, seconds)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log[-3000:]
        return json.loads(line)

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def set_forward(file: Path, seconds: float) -> None:
    """Let the clocks that follow a file be so far ahead; in one step, since they read it at any time."""
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+.0f}")
    new.replace(file)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalAws(settings=Settings(**QUICK, subscription_seconds=1.0)) as aws:
        yield make_world(aws, tmp_path, ["orders"])


@pytest.fixture
def host(world: World, tmp_path: Path) -> Callable[..., Any]:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        not_here("libfaketime is missing; apt-get install faketime")

    @contextmanager
    def start(ahead: float, **options: str) -> Iterator[Host]:
        shift, log = tmp_path / "shift", tmp_path / "log"
        set_forward(shift, ahead)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}",
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(shift),
            "FAKETIME_CACHE_DURATION": "1",
            # Files of another age would make Python compile all that it imports, once more in each process.
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        command = [sys.executable, "-m", "tests.support.shifted_host", json.dumps({**world.options, **options})]
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                yield Host(process, shift, log)
                process.communicate("\n", timeout=30)
                assert process.returncode == 0, log.read_text()[-3000:]
            finally:
                process.kill()

    return start


def put(w: World, numbers: range) -> None:
    w.put((f"key{number}", b"%d" % number) for number in numbers)


# Shows clock jumps.
@pytest.mark.long
def test_host_with_a_jumping_clock_loses_nothing(world: World, host: Callable[..., Any]) -> None:
    world.aws.backdate(world.streams["orders"], 20)
    put(world, range(1000, 1010))
    world.aws.backdate(world.streams["orders"], 0)
    with host(40, startingPosition="LATEST", leaseTimeout="2s") as shifted:
        began = shifted.answer()
        assert 10 < began["now"] - time.time() <= 40, "the clock of this host is shifted"
        assert began["start"][0] <= began["now"] - 40
        put(world, range(50))
        shifted.ask("until 50")
        assert shifted.answer() == list(range(50))
        (told,) = re.findall(r"this machine's clock is about (\d+) s ahead of Kinesis'", shifted.log)
        assert 35 <= int(told) <= 41
        shifted.set_forward(240)
        put(world, range(50, 100))
        shifted.ask("until 100")
        assert shifted.answer() == list(range(100)), "within five minutes nothing changes"
        assert "Signature" not in shifted.log
        shifted.set_forward(400)
        shifted.ask(
            "poll 4"
        )  # a range may wait for the lease, which cannot be renewed either, until the clock is right again
        wait_until(lambda: re.search(r"clock is [34]\d\d s ahead of AWS'; synchronize it", shifted.log), 30)
        put(world, range(100, 150))
        shifted.set_forward(0)
        shifted.answer()
        shifted.ask("until 150")
        assert shifted.answer() == list(range(150)), "each record once"
