"""Runs tests in forked processes: each on the module with one fault, or watched for the lines that each test reaches.

A fork that has pytest and the libraries imported starts in a fraction of the time that a new Python takes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

MEMORY = 6 << 30
"""A fault may make a loop that never ends; it must not take the machine's memory with it."""

QUIET = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=0")


@dataclass
class Reached:
    """Which tests reach which lines.

    Attributes:
        lines: The tests that reach a line, by file and line.
        seconds: How long each test took.
        failed: Tests that failed without any fault.
    """

    lines: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def preload() -> None:
    """Import what the forks share. Nothing of the library, which each fork imports with its fault, and no plugin of pytest."""
    for name in ("botocore.session", "boto3", "aiobotocore.session", "aiohttp", "pyarrow", "msgspec", "h2.connection"):
        importlib.import_module(name)
    assert "kinesis_efo" not in sys.modules


class _Faulty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        self._name = name
        self._path = path
        self._tree = tree

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)


def fails(name: str, path: Path, tree: ast.Module, tests: Sequence[str], seconds: float) -> bool:
    """Whether some of the tests fail with a module's changed tree, or take longer than so many seconds."""

    def child() -> int:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, _Faulty(name, str(path), tree))
        return int(pytest.main([*QUIET, *tests]))

    code = _forked(child, seconds)
    # 0 is success; 5 would mean that nothing was run.
    assert code != 5, f"none of the tests was run: {tests[:3]}"
    return code != 0


class _Watch:
    """A plugin of pytest that notes the lines of some files that each test reaches."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = set(files)
        self.reached = Reached()
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._test, began = item.nodeid, time.perf_counter()
        # What a test imports first, runs at its import, and belongs to whoever is next.
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.reached.seconds[item.nodeid] = time.perf_counter() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reached.failed.append(report.nodeid)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:  # noqa: ARG002
        if frame.f_code.co_filename not in self._files:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:  # noqa: ARG002
        if event == "line":
            self.reached.lines.setdefault((frame.f_code.co_filename, frame.f_lineno), set()).add(self._test)
        return self._line


def watch(files: Sequence[Path], tests: Sequence[str], marks: str) -> Reached:
    """Run tests without any fault, and see which lines of the files each one reaches."""
    with tempfile.NamedTemporaryFile() as result:

        def child() -> int:
            watcher = _Watch(map(str, files))
            # Without -x: what fails without a fault is named, all of it.
            pytest.main([*(flag for flag in QUIET if flag != "-x"), "-m", marks, *tests], plugins=[watcher])
            Path(result.name).write_bytes(pickle.dumps(watcher.reached))
            return 0

        code = _forked(child, 3600, quiet=False)
        assert code == 0, f"the tests could not be watched, exit code {code}"
        reached: Reached = pickle.loads(Path(result.name).read_bytes())
        return reached


def _forked(child: Callable[[], int], seconds: float, *, quiet: bool = True) -> int:
    """Run a function in a fork; returns its result, or a signal's number with a minus."""
    process = os.fork()
    if process == 0:
        os.setsid()
        if quiet:
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
        code = 99
        try:
            code = child()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -signal.SIGKILL
        time.sleep(0.005)
    # What the tests have started goes with them.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)
