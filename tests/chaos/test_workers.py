"""Fetchers in processes of their own over one lease table, every write of which is traced: stopped, slow, killed, ended.

The processes compete as two queries of one application do: the second may begin only where the first has given up its leases or
has let them expire.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.lease_trace import LeaseTrace
from tests.support.world import World, make_world, repeating, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT = 2.0


class Worker:
    """One run of the worker program."""

    def __init__(self, directory: Path, world: World, **config: Any) -> None:
        self.number = len(list(directory.glob("worker*.out")))
        self.out, self.log = (directory / f"worker{self.number}.{kind}" for kind in ("out", "log"))
        options = {**world.options, "startingPosition": "TRIM_HORIZON", "leaseTimeout": f"{TIMEOUT:g}s"}
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", json.dumps({"options": options, **config})],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **world.aws.environment},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lines(self) -> list[list[str]]:
        return [line.split(maxsplit=2) for line in self.out.read_text().splitlines()]

    def said(self, word: str) -> list[list[str]]:
        return [line for line in self.lines if line[0] == word]

    @property
    def rows(self) -> int:
        return sum(int(line[2]) for line in self.said("READ"))

    def wait_for(self, word: str, seconds: float = 90.0, more_than: int = 0) -> list[str]:
        wait_until(lambda: len(self.said(word)) > more_than, seconds, f"{word}; see {self.log}")
        return self.said(word)[-1]

    def owns(self, owner: str | None) -> bool:
        return owner is not None and f":{self.pid}:" in owner

    def end(self) -> None:
        """Let it stop by itself."""
        if self.process.poll() is None:
            assert self.process.stdin
            self.process.stdin.write(b"end\n")
            self.process.stdin.flush()
            self.process.wait(30)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin
        self.process.stdin.close()


@pytest.fixture
def traced() -> Iterator[tuple[LocalAws, LeaseTrace]]:
    trace = LeaseTrace()
    settings = Settings(
        consumer_creating_seconds=0.0,
        idle_event_seconds=0.2,
        resubscribe_seconds=0.0,
        subscribe_interval_seconds=0.0,
        read_limit=False,
    )
    with LocalAws(settings=settings, faults=trace) as aws:
        yield aws, trace


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(world: World, **config: Any) -> Worker:
        started.append(Worker(tmp_path, world, **config))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def arriving(world: World) -> AbstractContextManager[None]:
    """Records, for as long as the block runs."""
    numbers = count()
    return repeating(lambda: world.put([(f"k{n}", b"%08d" % next(numbers)) for n in range(10)]), 0.05)


def test_a_stopped_process_cannot_write_after_a_takeover(
    traced: tuple[LocalAws, LeaseTrace], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    aws, trace = traced
    w = make_world(aws, tmp_path, {"orders": 3})
    with arriving(w):
        first = worker(w)
        first.wait_for("READ", more_than=20)
        os.kill(first.pid, signal.SIGSTOP)
        second = worker(w)
        second.wait_for("READ", more_than=20)
        wait_until(lambda: len({s.shard.id for s in aws.kinesis.subscriptions}) == 3, 60)
        os.kill(first.pid, signal.SIGCONT)
        failed = first.wait_for("FAILED")
        seen = len(second.said("READ"))
        second.wait_for("READ", more_than=seen + 10)
        first.end()
        second.end()
    taken = [
        write for write in trace.writes if write.before and first.owns(write.before.owner) and second.owns(write.writer)
    ]
    assert [write.key for write in taken] == ["#run:orders"], "the lease was taken over, once"
    assert taken[0].after
    later = [each for each in trace.writes if each.at > taken[0].at]
    assert later
    assert not [each for each in later if first.owns(each.writer)], "the stopped process renewed it again"
    assert not [each for each in later if each.after and each.after.epoch < taken[0].after.epoch], (
        "or wrote a checkpoint"
    )
    last_taken = taken[0].at
    assert not [line for line in first.said("READ") if float(line[1]) > last_taken], "the stopped process served again"
    assert failed[1] in ("LeaseLostError", "AlreadyRunningError"), failed
    assert re.search(rf":{second.pid}\b", failed[2])
    assert not second.said("FAILED")
    trace.check(TIMEOUT)
    assert trace.rows(w.lease_table) == w.leases()
