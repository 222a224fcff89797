"""EMF lines, checked against AWS's own JSON schema for them, and when they are written."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.metrics import METRICS, MetricsSettings, Sample, report
from kinesis_efo.metrics.catalog import DIMENSIONS, LAG, RECORDS
from kinesis_efo.metrics.emf import EmfWriter, emf_lines, emf_sink
from kinesis_efo.metrics.registry import Values
from tests.support.world import wait_until

ABOUT = (("application", "lake"), ("environment", "dev"))
ORDERS = (*ABOUT, ("stream", "orders"))
SHARD = (*ORDERS, ("shard", "shardId-000000000001"))
UNITS = re.compile(
    r"(Seconds|Microseconds|Milliseconds|Bytes|Kilobytes|Megabytes|Gigabytes|Terabytes|Bits|Kilobits|Megabits|Gigabits|Terabits"
    r"|Percent|Count|Bytes/Second|Count/Second|None)"
)


def check(line: str) -> dict[str, Any]:
    """Check a document against the specification."""
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    assert isinstance(document["_aws"]["Timestamp"], int)
    for directive in document["_aws"]["CloudWatchMetrics"]:
        assert 1 <= len(directive["Namespace"]) <= 255
        assert 1 <= len(directive["Metrics"]) <= 100
        for dimensions in directive["Dimensions"]:
            assert len(dimensions) <= 9, "older specifications allow no more"
            assert all(isinstance(document[name], str) and document[name] for name in dimensions)
        for metric in directive["Metrics"]:
            assert isinstance(document[metric["Name"]], int | float)
            assert UNITS.fullmatch(metric["Unit"])
    return document


def lines(values: Values, before: Values | None = None) -> list[dict[str, Any]]:
    return [check(line) for line in emf_lines(values, before or {}, 1_700_000_000_000)]


def test_the_shard_is_a_member_but_no_dimension() -> None:
    (line,) = lines({(LAG, SHARD): 250, (RECORDS, SHARD): 7})
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == (
        "KinesisEfo",
        [["Application", "Environment", "Stream"]],
    )
    assert [(each["Name"], each["Unit"]) for each in directive["Metrics"]] == [
        ("MillisBehindLatest", "Milliseconds"),
        ("RecordsFetched", "Count"),
    ]
    members = [line[name] for name in ("Shard", "Stream", "MillisBehindLatest", "RecordsFetched")]
    assert members == ["shardId-000000000001", "orders", 250, 7]


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(METRICS),
            st.dictionaries(st.sampled_from(sorted(DIMENSIONS)), st.text(max_size=20)).map(lambda d: tuple(d.items())),
        ),
        st.integers(0, 1 << 60) | st.floats(0, 1e9),
        max_size=20,
    )
)
def test_any_values_make_valid_documents(values: Values) -> None:
    assert sum(len(d["_aws"]["CloudWatchMetrics"][0]["Metrics"]) for d in lines(values)) == len(values)


class Counting:
    records = 0

    def __call__(self) -> list[Sample]:
        return [Sample(RECORDS, self.records, ORDERS)]


def test_unwritten_growth_comes_with_the_next_lines(caplog: pytest.LogCaptureFixture) -> None:
    written: list[str] = []
    full = True

    def write(text: str) -> None:
        if full:
            raise OSError("no space left")
        written.append(text)

    source = Counting()
    writer = EmfWriter(source, 60, write, epoch=lambda: 1.7e9)
    for source.records in (3, 5):
        writer.write()
    assert caplog.text.count("cannot be written") == 1
    full = False
    writer.write()
    assert [check(line)["RecordsFetched"] for text in written for line in text.splitlines()] == [5]


def test_the_end_writes_the_growth_since_the_last_lines(tmp_path: Path) -> None:
    path, source = tmp_path / "logs" / "emf.log", Counting()
    writer = EmfWriter(source, 3600, emf_sink(str(path)))
    writer.start()
    source.records = 4
    writer.write()
    source.records = 9
    writer.close()
    writer.close()
    assert [check(line)["RecordsFetched"] for line in path.read_text().splitlines()] == [4, 5]


def test_write_that_hangs_does_not_delay_the_end() -> None:
    hanging, let_go = threading.Event(), threading.Event()

    def write(_text: str) -> None:
        hanging.set()
        assert let_go.wait(30)

    writer = EmfWriter(Counting(), 0.01, write, end_seconds=0.05)
    writer.start()
    assert hanging.wait(60)
    writer.close()
    let_go.set()


def test_lines_are_written_once_per_interval(tmp_path: Path) -> None:
    path = tmp_path / "emf.log"
    end = report(Counting(), MetricsSettings("emf", emf_to=str(path), emf_interval=0.02))
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= 2, 60)
    end()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_lines_go_to_the_process_streams(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write: Callable[[str], None] = emf_sink(name)
    write("{}\n")
    assert getattr(capsys.readouterr(), name.removeprefix("std")) == "{}\n"
