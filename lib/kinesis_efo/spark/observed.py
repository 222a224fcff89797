"""Runs a PySpark program as it stands, and writes down the progress of its queries, for `kinesis-efo quickstart`.

    python -m kinesis_efo.spark.observed first.py progress.jsonl

The process ends when its standard input does: whoever started it holds the other end, so it never outlives that.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.spark.listener import kinesis_progress
from kinesis_efo.spark.progress import Progress
from kinesis_efo.spark.progress_listener import ProgressListener


class _Notes(ProgressListener):
    """Writes a line for each micro-batch. Not a `LagListener`, which does not know what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Writes the line."""
        sources = kinesis_progress(event.progress)
        if not sources:
            return
        written = event.progress.sink.numOutputRows
        worst = [source.worst[1] for source in sources if source.worst is not None]
        note = Progress(
            query=sources[0].query,
            batch=sources[0].batch,
            rows_in=sum(source.rows for source in sources),
            rows_out=written if written >= 0 else None,
            behind_millis=max(worst, default=None),
        )
        self._file.write(msgspec.json.encode(note) + b"\n")
        self._file.flush()


def _observe(file: IO[bytes]) -> None:
    """Let every session that the program makes have the listener. Its settings stay the program's own."""
    make, observed = SparkSession.Builder.getOrCreate, set[int]()

    def get_or_create(builder: SparkSession.Builder) -> SparkSession:
        session = make(builder)
        if id(session) not in observed:
            observed.add(id(session))
            session.streams.addListener(_Notes(file))
        return session

    SparkSession.Builder.getOrCreate = get_or_create  # type: ignore[method-assign,assignment]


def _end_with_parent() -> None:
    # Not `sys.stdin`, whose lock the interpreter wants at its end.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main(program: str, progress: str) -> None:
    """Run the program.

    Args:
        program: Its path.
        progress: Path of the file to write.
    """
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    with Path(progress).open("ab") as file:
        _observe(file)
        sys.argv = [program]
        # As `python first.py` does, so that it may import its neighbours.
        sys.path[0] = str(Path(program).absolute().parent)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
