"""A planner's thread, loop and service end, whatever goes wrong while they do."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from kinesis_efo.calls.address import Listening
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.run.thread import RunThread

MANIFEST = Manifest("lake", "test", "eu-west-1", "leases", {}, "manifest.json", {})
OPTIONS = SourceOptions.parse({"manifest": "manifest.json"})


class Service:
    """Notes that it was shut down."""

    def __init__(self) -> None:
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True


def fails() -> None:
    raise RuntimeError("planted")


@pytest.mark.parametrize("part", ["an exit callback", "the report"])
def test_stop_continues_after_a_failed_part(part: str, caplog: pytest.LogCaptureFixture) -> None:
    runtime = RunThread(MANIFEST, OPTIONS, Listening(), "secret")
    service = Service()
    report = fails if part == "the report" else lambda: None
    runtime._whole = SimpleNamespace(service=service, end_report=report)  # type: ignore[assignment]
    runtime._thread.start()
    if part == "an exit callback":
        runtime._stack.callback(fails)
    runtime.stop()
    assert service.ended
    assert not runtime._thread.is_alive()
    assert runtime._loop.is_closed()
    assert "planted" in caplog.text
    runtime.stop()


@pytest.mark.slow
def test_call_ends_with_its_loop() -> None:
    runtime = RunThread(MANIFEST, OPTIONS, Listening(), "secret")
    runtime._thread.start()
    ended: list[BaseException] = []

    def call() -> None:
        try:
            runtime.call(asyncio.sleep(3600))
        except BaseException as error:
            ended.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    time.sleep(0.05)  # either way: a call that comes later finds the loop stopped
    runtime.stop()
    caller.join(60)
    assert not caller.is_alive()
    assert isinstance(ended[0], FetcherUnreachableError)
