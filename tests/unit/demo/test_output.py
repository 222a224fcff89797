"""Reading the file sink's log: what is committed, what is compacted, what is left over."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.output import Watch, committed, tally


class Sink:
    """Writes files and logs as Spark's file sink does."""

    def __init__(self, output: Path) -> None:
        self.output = output
        (output / "_spark_metadata").mkdir(parents=True)
        self._entries: list[str] = []

    def file(self, name: str, ids: list[str], stream: str = "flights", shard: str = "s0") -> Path:
        path = self.output / f"stream={stream}" / "date=2026-11-20" / "hour=07" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = [json.dumps({"id": one}).encode() for one in ids]
        pq.write_table(pa.table({"data": data, "partitionKey": ["k"] * len(ids), "shardId": [shard] * len(ids)}), path)
        return path

    def commit(self, batch: int, *files: Path, compact: bool = False) -> None:
        entries = [json.dumps({"path": file.as_uri(), "size": 1, "action": "add"}) for file in files]
        self._entries += entries
        log = self.output / "_spark_metadata" / (f"{batch}.compact" if compact else str(batch))
        log.write_text("\n".join(["v1", *(self._entries if compact else entries)]))


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "la ke")


def test_only_files_of_committed_micro_batches_are_counted(sink: Sink) -> None:
    good = [sink.file("good", ["a", "b"]), sink.file("doubled", ["b"])]
    sink.commit(0, *good)
    sink.file("left-over", ["b", "c"])
    assert committed(sink.output) == good
    assert tally(sink.output)["flights"].ids == {"a": 1, "b": 2}


def test_compacted_log_replaces_its_predecessors(sink: Sink) -> None:
    files = [sink.file(f"f{number}", [str(number)]) for number in range(4)]
    sink.commit(0, files[0])
    sink.commit(1, files[1])
    sink.commit(2, files[2], compact=True)
    sink.commit(3, files[3])
    (sink.output / "_spark_metadata" / ".3.crc").write_text("")
    (sink.output / "_spark_metadata" / ".4.123.tmp").write_text("half")
    assert committed(sink.output) == files


def test_the_watch_counts_each_file_once(sink: Sink) -> None:
    watch = Watch(sink.output)
    watch.look()
    assert (watch.total, watch.batch) == (0, -1)
    sink.commit(0, sink.file("a", ["1", "2"]), sink.file("b", ["3"], shard="s1"))
    watch.look()
    watch.look()
    sink.commit(1, sink.file("c", ["4"], stream="weather"), compact=True)
    watch.look()
    assert dict(watch.archived) == {"flights": 3, "weather": 1}
    assert watch.batch == 1


def test_early_watch_waits_for_the_output(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "not yet")
    watch.look()
    assert watch.total == 0


def test_an_unknown_format_of_the_log_is_an_error(sink: Sink) -> None:
    (sink.output / "_spark_metadata" / "0").write_text("v2\n{}")
    with pytest.raises(ValueError, match="format 'v2'"):
        committed(sink.output)
