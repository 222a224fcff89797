"""Checks that every record is the next one of its key: the first that is lost, doubled or out of order ends the soak.

A record holds its key, its number within the key, and the time it was put. The driver writes one directory per micro-batch and
one file per task, with rows in the order in which they were read.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq


class Violation(AssertionError):
    """A record or a resource is not as it must be; the message says where."""


def encode(key: int, number: int, put_ms: int, size: int) -> bytes:
    """The data of a record.

    >>> encode(3, 0, 1700000000000, 24)
    b'3:0:1700000000000:xxxxxx'
    """
    return f"{key}:{number}:{put_ms}:".encode().ljust(size, b"x")


class Ledger:
    """The records read so far.

    Attributes:
        records: Their number.
        bytes: Size of their data, bytes.
    """

    def __init__(self) -> None:
        self._next: defaultdict[int, int] = defaultdict(int)
        self.records = 0
        self.bytes = 0

    def take(self, rows: Iterable[bytes], where: str) -> int | None:
        """Check some rows.

        Args:
            rows: Data of the records, in order.
            where: Their place, for the message.

        Returns:
            When the oldest of them was put, epoch milliseconds; None if there are none.

        Raises:
            Violation: A record is not the next one of its key.
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
    """Checks micro-batches in order, once Spark has committed them, and deletes them.

    Args:
        directory: The parent of the driver's `output` and `checkpoint`.

    Attributes:
        ledger: The records read so far.
        batches: Number of micro-batches so far.
        largest_lag: The longest time from the put of a record to the commit of its micro-batch, seconds.
    """

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger()
        self.batches = 0
        self.largest_lag = 0.0
        self._output = directory / "output"
        self._commits = directory / "checkpoint" / "commits"

    @property
    def committed(self) -> int:
        """Number of micro-batches that Spark has committed."""
        if not self._commits.is_dir():
            return 0
        return max((int(file.name) for file in self._commits.iterdir() if file.name.isdigit()), default=-1) + 1

    def look(self) -> None:
        """Check the micro-batches that were committed since the last call.

        Raises:
            Violation: A record is not the next one of its key.
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
            # Spark deletes old commits, and was faster than this check.
            return round(time.time() * 1000)
