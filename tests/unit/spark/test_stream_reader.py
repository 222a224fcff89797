"""What a stream reader is before and after Spark pickles it, and which streams it reads."""

import pickle
import sys
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.spark import stream_reader
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from tests.support.shared_runs import manifest

pytestmark = pytest.mark.spark

MANIFEST, TWO = manifest("orders"), manifest("orders", "clicks")


def test_pickled_reader_has_no_planner() -> None:
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json"}), MANIFEST)
    reader.__dict__["_planner"] = threading.Lock()
    again = pickle.loads(pickle.dumps(reader))
    assert "_planner" not in vars(again)
    assert vars(again).items() <= vars(reader).items()
    assert len(vars(again)) >= 2, "its options and its manifest"


def test_unpickled_reader_has_its_modules_before_they_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, loaded = "kinesis_efo.records.decoder", list[bool]()
    monkeypatch.delitem(sys.modules, decoder)
    monkeypatch.setattr(stream_reader.latency, "install", lambda: loaded.append(decoder in sys.modules))
    pickle.loads(pickle.dumps(KinesisStreamReader(SourceOptions(), MANIFEST)))
    assert loaded == [True]


def test_call_of_a_task_outlasts_the_patience_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call begins that patience anew, so that a range would never be given up."""
    ranges = Mock()
    ranges.return_value.read.return_value = []
    monkeypatch.setattr(stream_reader, "RangeReader", ranges)
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json", "retryTimeout": "30m"}), MANIFEST)
    assert list(reader.read(KinesisPartition(None, "s", (), planner=None, deaggregate=True))) == []
    ((_, _, patience), more) = ranges.call_args
    assert more["fetcher_at"].keywords["call_seconds"] >= patience >= 1800


CHECKPOINT = Offset({ShardKey("orders", "shardId-000000000000"): Position.after(10)}).to_dict()


def choosing(offset: dict[str, Any] | None, **options: str) -> KinesisStreamReader:
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json", **options}), TWO)
    reader.prepareForTriggerAvailableNow()
    assert reader.initialOffset() == {"streams": {}, "version": 1}
    reader._choose_streams(offset)
    return reader


def test_query_continues_with_its_streams(caplog: pytest.LogCaptureFixture) -> None:
    assert list(choosing(CHECKPOINT)._manifest.streams) == ["orders"]
    assert (
        "'streams' is not given: the query continues with the streams of its checkpoint, 'orders'; name them"
        in caplog.text
    )
    assert list(choosing(CHECKPOINT, streams="*")._manifest.streams) == ["orders", "clicks"]


@pytest.mark.parametrize("start", [None, {"streams": {}, "version": 1}])
def test_new_query_names_one_of_several_streams(start: dict[str, Any] | None) -> None:
    """Spark 4.0 passes no start."""
    with pytest.raises(OptionsError, match=r"has 'clicks', 'orders'; name those to read, or give \* for all"):
        KinesisStreamReader(SourceOptions.parse({"manifest": "m.json"}), TWO).latestOffset(start)
