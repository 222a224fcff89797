"""A planner's thread, loop and service end, whatever goes wrong while they do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kinesis_efo.calls.address import Listening
from kinesis_efo.errors import FetcherError
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.run import thread
from kinesis_efo.run.thread import RunThread
from tests.support.messages import raises

MANIFEST = Manifest("lake", "test", "eu-west-1", "leases", {}, "manifest.json", {})
OPTIONS = SourceOptions.parse({"manifest": "manifest.json"})


def fails() -> None:
    raise RuntimeError("planted")


class Whole:
    """A run that does nothing, of which one part cannot be ended."""

    def __init__(self, part: str = "") -> None:
        self.part = part
        self.ended = False
        self.service = self
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, *_: object) -> Whole:
        return self

    async def start(self, stack: AsyncExitStack) -> None:
        self.loop = asyncio.get_running_loop()
        if self.part == "an exit callback":
            stack.callback(fails)

    def end_report(self) -> None:
        if self.part == "the report":
            fails()

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[Whole], RunThread]:
    """Starts the thread of a run."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")

    def begin(whole: Whole) -> RunThread:
        monkeypatch.setattr(thread, "WholeRun", whole)
        runtime = RunThread(MANIFEST, OPTIONS, Listening(), "secret")
        runtime.start()
        return runtime

    return begin


@pytest.mark.parametrize("part", ["an exit callback", "the report"])
def test_stop_continues_after_a_failed_part(
    begun: Callable[[Whole], RunThread], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, whole = set(threading.enumerate()), Whole(part)
    runtime = begun(whole)
    runtime.stop()
    assert whole.ended
    assert whole.loop is not None
    assert whole.loop.is_closed()
    assert not {each for each in set(threading.enumerate()) - before if each.name.startswith("kinesis-efo")}
    assert "planted" in caplog.text
    runtime.stop()


def test_python_without_sqlite_needs_a_lease_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kinesis_efo.leases.host_table", raising=False)
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with raises(FetcherError, "without kinesis-efo option 'leaseTable', a query needs SQLite: ..."):
        thread.host_table(MANIFEST, tmp_path)
