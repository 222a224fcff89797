"""Word of a finished micro-batch, from the driver's listener to the reader that planned it: never of another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.spark.finished import PlannedNote, mark_finished, presence, sweep
from kinesis_efo.spark.finished_listener import FinishedListener

pytestmark = pytest.mark.spark

DRIVER = os.getpid()
END = {"streams": {"orders": {"s0": "AFTER:7", "s1": "SHARD_END"}}, "version": 1}
LATER = {"streams": {"orders": {"s0": "AFTER:8", "s1": "SHARD_END"}}, "version": 1}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory for notes, with a driver that listens."""
    tmp_path.chmod(0o700)
    presence(tmp_path, DRIVER).touch()
    return tmp_path


def left(notes: Path) -> list[Path]:
    return [path for path in notes.iterdir() if path != presence(notes, DRIVER)]


def progress(*ends: str | None) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(sources=[SimpleNamespace(endOffset=end) for end in ends]))


def test_a_reader_learns_that_its_micro_batch_is_done(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    assert not note.finished(0.0)
    # Spark writes the offset in its own way.
    FinishedListener(notes).onQueryProgress(progress(None, "7", json.dumps(END, indent=1)))
    assert note.finished(0.0)
    note.clear()
    assert left(notes) == []
    assert not note.finished(60.0), "without a note there is nothing to wait for"


def test_a_reader_waits_for_word_that_is_on_its_way(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    timer = threading.Timer(0.1, mark_finished, (notes, json.dumps(END)))
    timer.start()
    assert note.finished(60.0)
    timer.join()


def test_word_of_an_earlier_micro_batch_says_nothing_of_the_last(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    mark_finished(notes, json.dumps(END))
    note.write(LATER)
    assert len(left(notes)) == 1
    mark_finished(notes, json.dumps(END))
    assert not note.finished(0.0)


def test_a_repeated_micro_batch_is_not_done_because_it_was_once(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    mark_finished(notes, json.dumps(END))
    note.write(END)
    assert not note.finished(0.0)


def _other_reader(notes: Path, end: object) -> subprocess.Popen[str]:
    """Another process with a note, which lives until its input is closed."""
    code = (
        "import json, sys; from pathlib import Path; from kinesis_efo.spark.finished import PlannedNote; "
        "PlannedNote(Path(sys.argv[1]), int(sys.argv[2])).write(json.loads(sys.argv[3])); print('written', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(notes), str(DRIVER), json.dumps(end)]
    other = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "written\n"
    return other


def test_where_two_readers_planned_the_same_end_neither_is_told_until_one_is_gone(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    with _other_reader(notes, END) as other:
        mark_finished(notes, json.dumps(END))
        assert not note.finished(0.0)
        other.kill()
    mark_finished(notes, json.dumps(END))
    assert note.finished(0.0)


def test_what_killed_processes_left_is_swept_and_nothing_else(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    [mine] = left(notes)
    with _other_reader(notes, LATER) as other:
        presence(notes, other.pid).touch()
        sweep(notes)
        assert len(left(notes)) == 3
        other.kill()
    (notes / "lag.json").touch()
    sweep(notes)
    assert sorted(path.name for path in left(notes)) == sorted([mine.name, "lag.json"])


def test_without_a_listener_there_are_no_notes_and_nothing_is_waited_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    note = PlannedNote(tmp_path, DRIVER)
    note.write(END)
    assert list(tmp_path.iterdir()) == []
    assert not note.finished(60.0)
    PlannedNote(tmp_path / "missing", DRIVER).write(END)


def test_a_directory_that_others_can_write_to_is_not_used(notes: Path) -> None:
    note = PlannedNote(notes, DRIVER)
    notes.chmod(0o777)
    note.write(END)
    assert left(notes) == []
    notes.chmod(0o700)
    note.write(END)
    notes.chmod(0o777)
    mark_finished(notes, json.dumps(END))
    assert not note.finished(0.0)


@pytest.mark.parametrize("end", [None, "", "{", "7", "null", '{"partition": 1}'])
def test_other_sources_have_no_notes(notes: Path, end: str | None) -> None:
    note = PlannedNote(notes, DRIVER)
    note.write(END)
    mark_finished(notes, end)
    assert [path.suffix for path in left(notes)] == [".planned"]
    assert str(os.getpid()) in left(notes)[0].name
