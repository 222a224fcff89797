"""Says of every record whether it is the one that had to come: the first lost, doubled or misordered one ends the soak.

Records carry a key, a number that counts up per key, and when they were put. Relies on the driver's output: one directory
per micro-batch, one file per task, rows in the order in which they were read.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq


class Violation(AssertionError):
    """The promise is broken; the message says where."""


def encode(key: int, number: int, put_ms: int, size: int) -> bytes:
    """The data of a record.

    >>> encode(3, 0, 1700000000000, 24)
    b'3:0:1700000000000:xxxxxx'
    """
    return f"{key}:{number}:{put_ms}:".encode().ljust(size, b"x")


class Ledger:
    """What came so far.

    Attributes:
        records: How many.
        bytes: Bytes of their data.
    """

    def __init__(self) -> None:
        self._next: defaultdict[int, int] = defaultdict(int)
        self.records = 0
        self.bytes = 0

    def take(self, rows: Iterable[bytes], where: str) -> int | None:
        """Check some rows.

        Args:
            rows: Data of the records, in order.
            where: For the message.

        Returns:
            When the oldest of them was put, epoch milliseconds; None for no rows.

        Raises:
            Violation: One is not the next of its key.
        """
        oldest: int | None = None
        for data in rows:
            key, number, put_ms = map(int, data.split(b":", 3)[:3])
            expected = self._next[key]
            if number != expected:
                what = "came twice or too late" if number < expected else f"came, but {expected} is lost or late"
                raise Violation(f"{where}: of key {key}, record {number} {what}")
            self._next[key] = number + 1
            self.records += 1
            self.bytes += len(data)
            oldest = put_ms if oldest is None else min(oldest, put_ms)
        return oldest


class Oracle:
    """Reads micro-batches once Spark has committed them, in order, and removes them.

    Args:
        directory: Where the driver's `output` and `checkpoint` are.

    Attributes:
        ledger: What came so far.
        batches: Micro-batches so far.
        largest_lag: Seconds between the put of a record and the commit of its micro-batch, at most.
    """

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger()
        self.batches = 0
        self.largest_lag = 0.0
        self._output = directory / "output"
        self._commits = directory / "checkpoint" / "commits"

    @property
    def committed(self) -> int:
        """Micro-batches that Spark has committed."""
        if not self._commits.is_dir():
            return 0
        return max((int(file.name) for file in self._commits.iterdir() if file.name.isdigit()), default=-1) + 1

    def look(self) -> None:
        """Check what was committed since.

        Raises:
            Violation: As `Ledger.take`.
        """
        for batch in range(self.batches, self.committed):
            directory = self._output / f"batch={batch}"
            committed_ms = self._committed_ms(batch)
            for file in sorted(directory.glob("*.parquet")):
                column = pq.read_table(file, columns=["data"], partitioning=None).column("data")
                oldest = self.ledger.take(column.to_pylist(), f"micro-batch {batch}")
                if oldest is not None:
                    self.largest_lag = max(self.largest_lag, (committed_ms - oldest) / 1000)
            shutil.rmtree(directory, ignore_errors=True)
            self.batches = batch + 1

    def _committed_ms(self, batch: int) -> int:
        try:
            return round((self._commits / str(batch)).stat().st_mtime * 1000)
        except FileNotFoundError:
            # Spark removes old ones; this one is older than it seems.
            return round(time.time() * 1000)
