"""Checks of the machine, with clients and programs that say what they are told to."""

import asyncio
import os
import sys
from email.utils import formatdate
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo import __version__
from kinesis_efo.clock import SystemClock
from kinesis_efo_tools.operate import machine
from kinesis_efo_tools.operate.findings import Finding, Status


class Answering:
    """A Kinesis whose clock differs."""

    meta = SimpleNamespace(endpoint_url="https://kinesis.example")

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    async def client(self, service: str) -> Any:
        return self

    async def list_streams(self, **request: Any) -> dict[str, Any]:
        date = formatdate(SystemClock().time() + self._ahead, usegmt=True)
        return {"ResponseMetadata": {"HTTPHeaders": {"date": date}}}


@pytest.mark.parametrize(
    ("ahead", "status", "said"),
    [(0.0, Status.PASSED, "within 1 s"), (-3.5, Status.FAILED, "ahead of AWS"), (3.5, Status.FAILED, "behind AWS")],
)
def test_clock_skew_is_measured(ahead: float, status: Status, said: str) -> None:
    path, skew = asyncio.run(machine.path_and_clock(Answering(ahead), SystemClock()))
    assert path.status is Status.PASSED
    assert (skew.status, said in skew.detail) == (status, True)


def _missing(package: str) -> str:
    raise PackageNotFoundError(package)


def test_versions_of_sdk_and_spark_are_checked() -> None:
    assert machine.sdk().status is Status.PASSED
    old = machine.sdk("3.7.0")
    assert (old.status, old.fix.partition(",")[0]) == (Status.FAILED, "install aiobotocore 3.9 or newer")
    assert machine.spark(lambda _: "4.0.2").status is Status.PASSED
    assert machine.spark(lambda _: "3.5.6").status is Status.FAILED
    assert machine.spark(_missing).status is Status.UNKNOWN
    assert machine.pythons({}, _missing) == []


def _pythons(**environment: str) -> Finding:
    (found,) = machine.pythons({"PATH": "", "PYTHONPATH": os.pathsep.join(sys.path), **environment}, lambda _: "4.3.0")
    return found


def test_other_python_for_spark_fails(tmp_path: Path) -> None:
    """Spark takes the first python3 of the PATH: here one without any package."""
    program(tmp_path / "python3", f'exec "{sys.executable}" -I -S "$@"')
    found = _pythons(PATH=str(tmp_path))
    assert found.status is Status.FAILED
    assert found.detail == (
        f"{tmp_path}/python3, which Spark would start, has no kinesis_efo: load() ends with DATA_SOURCE_NOT_FOUND"
    )
    assert f"set PYSPARK_PYTHON={sys.executable}" in found.fix
    assert _pythons(PATH=str(tmp_path), PYSPARK_PYTHON=sys.executable).status is Status.PASSED
    # Data sources are looked for with the driver's Python, tasks run with the other.
    driver = _pythons(PATH=str(tmp_path), PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON="python3")
    assert driver.detail == found.detail
    workers = _pythons(PATH=str(tmp_path), PYSPARK_PYTHON="python3", PYSPARK_DRIVER_PYTHON=sys.executable)
    assert workers.detail == found.detail
    program(tmp_path / "python3", "echo 3.99 0.0.1")
    other = _pythons(PATH=str(tmp_path))
    assert other.status is Status.FAILED
    assert other.detail == (
        f"{tmp_path}/python3 has Python 3.99 and kinesis_efo 0.0.1, the driver 3.{sys.version_info.minor} and {__version__}"
    )


def test_program_that_is_no_python_is_found(tmp_path: Path) -> None:
    assert _pythons().detail == "'python3', which Spark would start, does not exist"
    assert "does not exist" in _pythons(PYSPARK_PYTHON=str(tmp_path / "none")).detail
    assert "is not a working Python" in _pythons(PYSPARK_PYTHON="/bin/false").detail
    assert "is not a working Python" in _pythons(PYSPARK_PYTHON="/bin/true").detail


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _java(home: Path, script: str) -> Finding:
    program(home / "bin/java", script)
    return machine.java({"JAVA_HOME": str(home)})


def test_version_of_java_is_checked(tmp_path: Path) -> None:
    assert _java(tmp_path, """echo 'openjdk version "21.0.2" 2024-01-16' >&2""").detail.startswith("Java 21 ")
    old = _java(tmp_path, """echo 'java version "1.8.0_402"' >&2""")
    assert (old.status, old.detail.split(" (")[0]) == (Status.FAILED, "Java 8")
    assert _java(tmp_path, "exit 3").status is Status.FAILED
    assert _java(tmp_path, "echo huh >&2").status is Status.UNKNOWN
    assert machine.java({"JAVA_HOME": str(tmp_path / "none")}).status is Status.FAILED
    assert machine.java({"PATH": str(tmp_path)}).status is Status.UNKNOWN
