"""Word of finished micro-batches, from the driver to the runs of its program."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.driver.listener import FinishedListener, mark_of
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import OwnFile, Program, RunEntry
from kinesis_efo.planner.run_link import RunConnection
from kinesis_efo.positions import Mark
from kinesis_efo.processes import Process
from kinesis_efo.run.messages import Join
from tests.support.shared_runs import FakeRun, manifest

pytestmark = pytest.mark.spark

JVM = Process.of(os.getpid())
END = {"mark": "7c1f09ab:3", "streams": {"orders": {"s0": "AFTER:7", "s1": "SHARD_END"}}, "version": 1}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def own(notes: Path) -> Iterator[FakeRun]:
    """A run that says where it is."""
    own = FakeRun(manifest("orders"), SourceOptions.parse({"manifest": "m.json"}))
    own.start()
    file = begun(notes, own.address, own.secret)
    with RunConnection(own.address, own.secret) as client:
        client.join(Join("the query", *JVM, own.refs, {"manifest": "m.json"}))
        yield own
    file.close()
    own.die()


def begun(notes: Path, address: Any, secret: str, jvm: Process = JVM) -> OwnFile:
    return Program.locate(notes, jvm, "lake").begin(RunEntry(address, secret, {}))


def finish(notes: Path, *ends: str | None, name: str | None = "archive") -> None:
    progress: Any = SimpleNamespace(name=name, runId="1", sources=[SimpleNamespace(endOffset=end) for end in ends])
    FinishedListener(notes, JVM).onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


def test_a_run_gets_the_marks_of_finished_batches(notes: Path, own: FakeRun) -> None:
    # Spark writes offsets in its own way, and other sources have others.
    finish(notes, None, "7", json.dumps(END, indent=1), json.dumps({**END, "mark": "ab:1"}), '{"mark":"ab:2"}')
    assert own.queries[0].finishes == [([Mark("7c1f09ab", 3), Mark("ab", 1)], "archive")]


def test_a_run_learns_of_other_sources(notes: Path, own: FakeRun) -> None:
    for others in ([], ["7"], [json.dumps(END)], []):
        finish(notes, json.dumps(END), *others)
        assert own.queries[0].alone is not bool(others)


def test_a_broken_run_does_not_hide_the_others(notes: Path, own: FakeRun) -> None:
    files = [begun(notes, own.address, "another secret"), begun(notes, own.address, own.secret)]
    foreign = begun(notes, own.address, own.secret, Process(JVM.pid, "another start"))
    (half_written := next(notes.glob("run.*.json"))).with_name(f"{half_written.stem}0.json").write_text("{")
    finish(notes, json.dumps(END), name=None)
    assert own.queries[0].finishes == [([Mark("7c1f09ab", 3)], None)] * 2
    for file in (*files, foreign):
        file.close()


@pytest.mark.parametrize(
    "end", [None, "", "{", "7", "null", '{"partition": 1}', '{"streams":{},"version":1}', '{"mark":7,"streams":{}}']
)
def test_offsets_of_other_sources_are_not_reported(notes: Path, own: FakeRun, end: str | None) -> None:
    finish(notes, end)
    assert own.queries[0].finishes == []
    assert mark_of(end) is None


def test_without_a_private_directory_nothing_is_reported(notes: Path) -> None:
    finish(notes, json.dumps(END))
    notes.chmod(0o777)
    finish(notes, json.dumps(END))
