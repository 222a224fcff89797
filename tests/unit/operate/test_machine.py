"""Checks of the machine, with clients and programs that say what they are told to."""

from __future__ import annotations

import asyncio
import stat
from email.utils import formatdate
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.clock import SystemClock
from kinesis_efo.operate import machine
from kinesis_efo.operate.findings import Finding, Status


class Answering:
    """A Kinesis whose clock differs."""

    def __init__(self, clock: SystemClock, ahead: float) -> None:
        self._clock = clock
        self._ahead = ahead
        self.meta = SimpleNamespace(endpoint_url="https://kinesis.example")

    async def client(self, service: str) -> Any:
        return self

    async def list_streams(self, **request: Any) -> dict[str, Any]:
        return {
            "ResponseMetadata": {"HTTPHeaders": {"date": formatdate(self._clock.time() + self._ahead, usegmt=True)}}
        }


@pytest.mark.parametrize(
    ("ahead", "status", "said"),
    [
        (0.0, Status.PASSED, "within 1 s"),
        (-3.5, Status.FAILED, "ahead of AWS"),
        (3.5, Status.FAILED, "behind AWS"),
        (60.0, Status.FAILED, "behind AWS"),
        (-60.0, Status.FAILED, "ahead of AWS"),
    ],
)
def test_the_clock(ahead: float, status: Status, said: str) -> None:
    clock = SystemClock()
    path, skew = asyncio.run(machine.path_and_clock(Answering(clock, ahead), clock))
    assert path.status is Status.PASSED
    assert (skew.status, said in skew.detail) == (status, True)


def _missing(package: str) -> str:
    raise PackageNotFoundError(package)


def test_spark() -> None:
    assert machine.spark(lambda _: "4.0.2").status is Status.PASSED
    assert machine.spark(lambda _: "3.5.6").status is Status.FAILED
    assert machine.spark(_missing).status is Status.UNKNOWN


def _java(home: Path, script: str) -> Finding:
    program = home / "bin/java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return machine.java({"JAVA_HOME": str(home)})


def test_java(tmp_path: Path) -> None:
    assert _java(tmp_path, """echo 'openjdk version "21.0.2" 2024-01-16' >&2""").detail.startswith("Java 21 ")
    old = _java(tmp_path, """echo 'java version "1.8.0_402"' >&2""")
    assert (old.status, old.detail.split(" (")[0]) == (Status.FAILED, "Java 8")
    assert _java(tmp_path, "exit 3").status is Status.FAILED
    assert _java(tmp_path, "echo huh >&2").status is Status.UNKNOWN
    assert machine.java({"JAVA_HOME": str(tmp_path / "none")}).status is Status.FAILED
    assert machine.java({"PATH": str(tmp_path)}).status is Status.UNKNOWN
