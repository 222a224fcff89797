"""How lags reach the listener: in Spark's progress on 4.2+, in files on 4.0; and how it takes what is neither."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.driver import listener
from kinesis_efo.driver.listener import LagListener
from kinesis_efo.driver.listener import progress as kinesis_progress
from kinesis_efo.positions import SHARD_END, Offset, Position, ShardKey
from kinesis_efo.spark.lag import Lag, Report, read_note

pytestmark = pytest.mark.spark

S0, S1 = ShardKey("orders", "s0"), ShardKey("orders", "s1")
END = Offset({S0: Position.after(7), S1: SHARD_END})
REPORT = '{"millisBehindLatest":{"orders":{"s0":350,"s1":20}}}'


def lag(directory: Path, millis: int | None = 350, size: tuple[int | None, int | None] = (1_595_000, 501_000)) -> Lag:
    lag = Lag(lambda: directory)
    lag.update([(S0, millis), (S1, None)])
    lag.size = size
    return lag


def progress(latest: str | None, end: str | None = END.to_json(), name: str | None = "archive") -> Any:
    source = SimpleNamespace(endOffset=end, latestOffset=latest, numInputRows=5000)
    return SimpleNamespace(name=name, id="some-id", batchId=12, batchDuration=1250, sources=[source])


def test_the_listener_reports_bytes_sent_and_data(tmp_path: Path) -> None:
    (found,) = kinesis_progress(progress(json.dumps(lag(tmp_path).as_data())))
    assert (found.bytes, found.data_bytes) == (1_595_000, 501_000)
    assert str(found) == (
        "query archive, micro-batch 12: 5,000 rows in 1.2 s, 1.5 MiB as sent, about 489.3 KiB of data; "
        "1 shards, at most 1,600 ms behind (orders:s0)"
    )


def test_ended_shards_have_no_lag(tmp_path: Path) -> None:
    known = lag(tmp_path)
    known.update([(S1, 0)], {S1})
    assert known.report.millis_behind == {S1: 0}
    assert known.at_tips


def test_the_listener_writes_a_line_without_logging(capfd: pytest.CaptureFixture[str]) -> None:
    LagListener().onQueryProgress(SimpleNamespace(progress=progress(REPORT)))  # type: ignore[arg-type]
    assert capfd.readouterr().err == (
        "query archive, micro-batch 12: 5,000 rows in 1.2 s; 1 shards, at most 1,600 ms behind (orders:s0)\n"
    )


def test_the_listener_calls_a_function_instead(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    LagListener(seen.append).onQueryProgress(SimpleNamespace(progress=progress(REPORT, name=None)))  # type: ignore[arg-type]
    assert [(batch.query, batch.rows) for batch in seen] == [("some-id", 5000)]
    assert capfd.readouterr().err == ""


def test_the_listener_reads_offsets_of_connect_clients() -> None:
    """Spark 4.0 makes a dictionary of an offset's JSON, and a text of the dictionary."""
    (found,) = kinesis_progress(progress(REPORT, str(json.loads(END.to_json()))))
    assert (found.shards, found.millis_behind) == (1, {S0: 1600, S1: 1270})


@pytest.mark.parametrize("end", [None, "", "7", "{}", '{"partition": 1}', '"topic"'])
def test_other_sources_are_ignored(end: str | None) -> None:
    assert kinesis_progress(progress(None, end)) == []


@pytest.mark.parametrize("latest", [None, "", "null", "7", "{", END.to_json(), '{"millisBehindLatest": {"orders": 3}}'])
def test_other_texts_are_no_report(latest: str | None) -> None:
    assert Report.parse(latest) == Report()


def test_a_note_is_found_by_its_end_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "notes_directory", lambda: tmp_path / "notes")
    (unknown,) = kinesis_progress(progress(END.to_json()))
    assert unknown.millis_behind == {} and str(unknown).endswith("lag not known")
    lag(tmp_path / "notes").write(END)
    (found,) = kinesis_progress(progress(END.to_json()))
    assert (found.millis_behind, found.bytes, found.data_bytes) == ({S0: 1600}, 1_595_000, 501_000)
    assert (tmp_path / "notes").stat().st_mode & 0o077 == 0


def test_old_notes_are_removed_and_all_at_the_end(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    notes = Lag(lambda: tmp_path)
    for number in range(10):
        notes.update([(S0, number)])
        notes.write(Offset({S0: Position.after(number)}))
    assert len(list(tmp_path.iterdir())) == 4
    assert read_note(tmp_path, Offset({S0: Position.after(9)})).millis_behind == {S0: 9}
    notes.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_shared_directory_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    lag(tmp_path).write(END)
    assert list(tmp_path.iterdir()) == []
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    lag(link).write(END)
    assert read_note(link, END) == Report() and list(tmp_path.iterdir()) == [link]


def test_the_note_of_batch_0_is_found_with_horizons(tmp_path: Path) -> None:
    lag = Lag(lambda: tmp_path)
    lag.size = 7, 5
    lag.write(Offset({S0: Position.after(9)}))
    assert read_note(tmp_path, Offset({S0: Position.after(9)}, horizons={"orders": 1.0})).bytes == 7
