"""Inspects Spark's JVM above this process: whether it runs tasks itself, and its configured host.

The process that Spark keeps for a stream reader gets no Spark configuration. The JVM's command line may be outdated, as the program may
have chosen another master since; so the threads of the JVM show whether it runs tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from kinesis_efo.hosts import parse_host
from kinesis_efo.processes import read_stat

_PROC: Final = Path("/proc")
_RUNS_TASKS: Final = "executor-heartb"
"""The start of the name, cut by Linux, of a thread in every JVM that runs tasks. A driver runs tasks in local mode only."""
_EXECUTOR: Final = re.compile(r"org\.apache\.spark\..*ExecutorBackend")
_DRIVER_HOST: Final = "spark.driver.host"
_DRIVER_HOST_LINE: Final = re.compile(r"^\s*spark\.driver\.host(?:\s*[=:]\s*|\s+)(\S+)\s*$", re.MULTILINE)


class SparkJvm(NamedTuple):
    """What is known of a JVM; the default if no JVM is visible.

    Attributes:
        local: Whether it is a driver that runs tasks itself, so that no task is on another host.
        hosts: Its configured host names or addresses.
    """

    local: bool = False
    hosts: tuple[str, ...] = ()


def spark_jvm(pid: int, environment: Mapping[str, str] = os.environ, proc: Path = _PROC) -> SparkJvm:
    """Inspect the nearest JVM above a process.

    Args:
        pid: The process.
        environment: Its environment variables, inherited from the JVM.
        proc: The directory of the proc file system.
    """
    for above in _ancestors(pid, proc):
        arguments = _arguments(above)
        if Path(arguments[0]).name == "java":
            executor = any(map(_EXECUTOR.fullmatch, arguments))
            told = _advertised(arguments, above / "cwd", environment, executor=executor)
            return SparkJvm(not executor and _runs_tasks(above), _valid(told))
    return SparkJvm()


def _ancestors(pid: int, proc: Path) -> Iterator[Path]:
    while stat := read_stat(pid, proc):
        pid = int(stat.parent)
        yield proc / str(pid)


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def _runs_tasks(process: Path) -> bool:
    for thread in (process / "task").glob("*/comm"):
        try:
            if thread.read_text().strip() == _RUNS_TASKS:
                return True
        except OSError:
            continue
    return False


def _advertised(arguments: Sequence[str], directory: Path, environment: Mapping[str, str], *, executor: bool) -> str:
    """The configured host of the JVM, in Spark's order of precedence."""
    if executor:
        return _after("--hostname", arguments)
    for argument in arguments:
        name, _, value = argument.removeprefix("-D").partition("=")
        if name == _DRIVER_HOST:
            return value
    properties = _after("--properties-file", arguments)
    home = environment.get("SPARK_HOME")
    defaults = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    if properties or defaults:
        try:
            text = (directory / (properties or f"{defaults}/spark-defaults.conf")).read_text(errors="replace")
        except OSError:
            text = ""
        if found := _DRIVER_HOST_LINE.findall(text):
            # Java escapes colons with a backslash.
            return str(found[-1]).replace("\\", "")
    return environment.get("SPARK_LOCAL_HOSTNAME") or environment.get("SPARK_LOCAL_IP") or ""


def _after(name: str, arguments: Sequence[str]) -> str:
    return next((value for option, value in pairwise(arguments) if option == name), "")


def _valid(host: str) -> tuple[str, ...]:
    try:
        return (parse_host(host),)
    except ValueError:
        return ()
