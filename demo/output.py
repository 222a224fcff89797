"""Reads the job's output: the files that Spark's file sink has committed, and no others.

The sink lists the files of each micro-batch in `_spark_metadata/<batch id>`, and now and then all files so far in
`<batch id>.compact`. A file that no list names belongs to an incomplete micro-batch, and readers must ignore it
(Spark's Structured Streaming guide, "File sink"; source: FileStreamSinkLog).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow.parquet as pq

from demo.ledger import Tally


class _Event(msgspec.Struct):
    id: str


_EVENT = msgspec.json.Decoder(_Event)


def committed(output: Path) -> list[Path]:
    """The files of all completed micro-batches.

    Args:
        output: The job's output directory.
    """
    return [file for log in _logs(output) for file in _files(log)]


def tally(output: Path) -> dict[str, Tally]:
    """Count every archived event, by stream."""
    return _tally(output, committed(output))


def tally_of_read(output: Path) -> dict[str, Tally]:
    """Count every event that the batch read has written, by stream.

    Args:
        output: Its output directory. What a batch writes is there in one piece or not at all.
    """
    return _tally(output, sorted(output.glob("stream=*/*.parquet")))


def _tally(output: Path, files: list[Path]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for file in files:
        of_stream = tallies.setdefault(_stream(file, output), Tally())
        table = pq.ParquetFile(file).read(columns=["partitionKey", "data"])
        for key, data in zip(table["partitionKey"].to_pylist(), table["data"].to_pylist(), strict=True):
            of_stream.add(_EVENT.decode(data).id, key, data)
    return tallies


class Watch:
    """Follows the output while the job writes it.

    Args:
        output: The job's output directory; it need not exist yet.

    Attributes:
        archived: Number of archived events, by stream.
        batch: Id of the last completed micro-batch; -1 before the first.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._seen: set[Path] = set()
        self.archived: Counter[str] = Counter()
        self.batch = -1

    @property
    def total(self) -> int:
        """Number of events archived so far."""
        return self.archived.total()

    def look(self) -> None:
        """Count the events of micro-batches that were completed since the last call."""
        last = -1
        for log in _logs(self._output):
            last = max(last, _batch(log))
            # A compacted log repeats the files of earlier ones.
            if log.suffix != ".compact" and _batch(log) <= self.batch:
                continue
            for file in _files(log):
                if file not in self._seen:
                    self._seen.add(file)
                    self._count(file)
        self.batch = last

    def _count(self, file: Path) -> None:
        self.archived[_stream(file, self._output)] += pq.ParquetFile(file).metadata.num_rows


def _logs(output: Path) -> list[Path]:
    directory = output / "_spark_metadata"
    if not directory.is_dir():
        return []
    # Spark writes a hidden file, and renames it.
    logs = [file for file in directory.iterdir() if file.name.removesuffix(".compact").isdigit()]
    compacted = max((_batch(log) for log in logs if log.suffix == ".compact"), default=-1)
    current = [
        log for log in logs if _batch(log) > compacted or (_batch(log) == compacted and log.suffix == ".compact")
    ]
    return sorted(current, key=_batch)


def _batch(log: Path) -> int:
    return int(log.name.removesuffix(".compact"))


def _files(log: Path) -> list[Path]:
    version, *entries = log.read_text().splitlines()
    if version != "v1":
        raise ValueError(f"{log} has format {version!r}; this reader knows v1 of Spark's file sink log")
    added = [json.loads(entry) for entry in entries]
    return [Path(unquote(urlsplit(entry["path"]).path)) for entry in added if entry.get("action", "add") == "add"]


def _stream(file: Path, output: Path) -> str:
    name, _, value = file.relative_to(output).parts[0].partition("=")
    if name != "stream":
        raise ValueError(f"{file} is not in a directory stream=<name> below {output}")
    return unquote(value)
