"""Runs tests in forked processes: each with one fault in one function, or watched for the lines that each test reaches.

The tests are collected once. A fork of the process that has done so puts the fault's code in the function's place and runs the
tests that reach it: that takes a fraction of a second. A fault in what runs at import needs a fork that imports the library anew.
"""

from __future__ import annotations

import ast
import contextlib
import gc
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import pytest

from scripts.mutants.faults import Mutant

MEMORY: Final = 6 << 30
"""A fault may make a loop that never ends; it must not take the machine's memory with it."""

ALL: Final = ("-q", "-s", "--no-header", "-p", "no:cacheprovider", "--timeout=0")
UP_TO_THE_FIRST: Final = ("-x", *ALL)
IMPORTING: Final = ""
"""In place of a test: what was reached while the tests were collected."""

_NOT_POSSIBLE: Final = 98


@dataclass
class Reached:
    """Which tests reach which lines.

    Attributes:
        lines: The tests that reach a line, by file and line; `IMPORTING` among them.
        seconds: How long each test took.
        busy: How much of that time it computed.
        failed: Tests that failed without any fault.
    """

    lines: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def preload() -> None:
    """Import what the forks share. Nothing of the library, which each fork imports with its fault, and no plugin of pytest."""
    for name in ("botocore.session", "boto3", "aiobotocore.session", "aiohttp", "pyarrow", "msgspec", "h2.connection"):
        importlib.import_module(name)
    assert "kinesis_efo" not in sys.modules


# -- faults in what runs when the module is imported


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


def fails_imported(name: str, path: Path, tree: ast.Module, tests: Sequence[str], seconds: float) -> bool:
    """Whether some of the tests fail if a module is imported with a changed tree, or take longer than so many seconds."""

    def child() -> int:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, _Faulty(name, str(path), tree))
        # Before pytest collects its examples: it would import the file itself, without the fault.
        importlib.import_module(name)
        return int(pytest.main([*UP_TO_THE_FIRST, *tests]))

    code = forked(child, seconds)
    # 0 is success; 5 would mean that nothing was run.
    assert code != 5, f"none of the tests was run: {tests[:3]}"
    return code != 0


# -- faults in functions


def collected(tests: Sequence[str], marks: str, files: Sequence[Path], work: Callable[[Collected], object]) -> Any:
    """Collect tests in a fork, and do something with them there; returns its result."""
    with tempfile.NamedTemporaryFile() as result:

        def child() -> int:
            plugin = Collected(files, work)
            pytest.main([*UP_TO_THE_FIRST, "-m", marks, *tests], plugins=[plugin])
            assert plugin.result is not None, "the tests could not be collected"
            Path(result.name).write_bytes(pickle.dumps(plugin.result))
            return 0

        code = forked(child, 24 * 3600, quiet=False)
        assert code == 0, f"exit code {code}"
        return pickle.loads(Path(result.name).read_bytes())


class NotPossible(Exception):
    """A function cannot be changed in place."""


class Collected:
    """A plugin of pytest that does something with the collected tests instead of running them.

    Args:
        files: The files of the modules that get faults, whose lines are watched.
        work: Called with this; what it returns can be pickled.
    """

    def __init__(self, files: Sequence[Path], work: Callable[[Collected], object]) -> None:
        self.result: object = None
        self._work = work
        self._functions: dict[str, dict[_Key, list[FunctionType]]] = {str(file): {} for file in files}
        self._reached = Reached()
        self._test = IMPORTING
        self._unseen: dict[CodeType, set[int]] = {}
        self._items: dict[str, pytest.Item] = {}
        self._trace(on=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._trace(on=False)
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors while the tests were collected")
        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in self._functions:
                self._functions[each.__code__.co_filename].setdefault(_key(each.__code__), []).append(each)
        gc.freeze()
        self.result = self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reached.failed.append(report.nodeid)

    def watched(self) -> Reached:
        """Run the tests without any fault, and see which lines each one reaches."""
        with tempfile.NamedTemporaryFile() as result:

            def begin(test: str) -> None:
                self._test, self._unseen = test, {}
                self._trace(on=True)

            def child() -> int:
                self._run(list(self._items), begin)
                self._trace(on=False)
                Path(result.name).write_bytes(pickle.dumps(self._reached))
                return 0

            code = forked(child, 3600)
            assert code == 0, f"the tests could not be watched, exit code {code}"
            reached: Reached = pickle.loads(Path(result.name).read_bytes())
            return reached

    def fails(self, path: Path, fault: Mutant, tests: Sequence[str], reached: Reached) -> str | None:
        """Run tests with a fault in a function, up to the first that fails; returns that, or None.

        Raises:
            NotPossible: The function cannot be changed in place.
        """
        with tempfile.NamedTemporaryFile() as running:

            def begin(test: str) -> None:
                Path(running.name).write_text(test)
                # A loop that never ends is killed by its own time, whatever else the machine is doing.
                signal.setitimer(signal.ITIMER_PROF, 2 + 3 * reached.busy[test])
                signal.setitimer(signal.ITIMER_REAL, 20 + 10 * reached.seconds[test])

            def child() -> int:
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                if not self._put_in_place(path, fault.tree):
                    return _NOT_POSSIBLE
                self._run(tests, begin)
                return 1 if self._reached.failed else 0

            code = forked(child, 60 + 10 * sum(reached.seconds[test] for test in tests))
            if code == _NOT_POSSIBLE:
                raise NotPossible
            return Path(running.name).read_text() if code else None

    def _run(self, tests: Sequence[str], begin: Callable[[str], None]) -> None:
        """Run some tests, up to the first that fails, unless they are watched."""
        items = [self._items[test] for test in tests]
        for item, then in zip(items, [*items[1:], None], strict=True):
            wall, busy = time.perf_counter(), time.process_time()
            begin(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
            if self._reached.failed and not self._test:
                return
            self._reached.seconds[item.nodeid] = time.perf_counter() - wall
            self._reached.busy[item.nodeid] = time.process_time() - busy

    def _put_in_place(self, path: Path, tree: ast.Module) -> bool:
        """Give the functions that a fault changes its code; returns whether that is possible."""
        before = _codes(compile(path.read_text(), str(path), "exec"))
        after = _codes(compile(tree, str(path), "exec"))
        count = 0
        for key, codes in before.items():
            if codes == after.get(key):
                continue
            for function in self._functions[str(path)].get(key, ()):
                if len(codes) > 1 or len(after.get(key, ())) != 1:
                    return False
                try:
                    function.__code__ = after[key][0]
                except ValueError:
                    return False  # it shares fewer names with the function around it
                count += 1
        return count > 0

    def _trace(self, *, on: bool) -> None:
        threading.settrace(self._called if on else None)
        sys.settrace(self._called if on else None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:  # noqa: ARG002
        code = frame.f_code
        if code.co_filename not in self._functions:
            return None
        if code not in self._unseen:
            lines = {line for *_, line in code.co_lines() if line}
            self._unseen[code] = lines - {code.co_firstlineno} or lines
        return self._line if self._unseen[code] else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:  # noqa: ARG002
        if event != "line":
            return self._line
        code = frame.f_code
        self._reached.lines.setdefault((code.co_filename, frame.f_lineno), set()).add(self._test)
        # A line that was seen in a test is not watched any more: loops would take minutes.
        unseen = self._unseen.setdefault(code, set())
        unseen.discard(frame.f_lineno)
        return self._line if unseen else None


_Key = tuple[str, int]


def _key(code: CodeType) -> _Key:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> dict[_Key, list[CodeType]]:
    """The code of every function in a module, by its name and line."""
    found: dict[_Key, list[CodeType]] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found.setdefault(_key(each), []).append(each)
            for key, codes in _codes(each).items():
                found.setdefault(key, []).extend(codes)
    return found


def forked(child: Callable[[], int], seconds: float, *, quiet: bool = True) -> int:
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
