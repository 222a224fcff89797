"""Implements the interface of `store.py` with a file on one host, for queries without the option `leaseTable`.

All processes of this user on this host share the file, so that two runs do not end each other's subscriptions. The leases do not protect
against runs on other hosts. Such runs do not lose records: a query continues from its checkpoint, not from the lease rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.keys import RUN_PREFIX
from kinesis_efo.leases.row import OBSOLETE, Item, Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan
from kinesis_efo.processes import PrivateDirectory

FILE: Final = "leases.sqlite"
_LOCK_SECONDS: Final = 0.1
"""Maximum seconds to wait while another process has the file locked: short, because that process may be suspended."""


class HostTable(LeaseStore):
    """A lease table in an SQLite file in `directory`, which only this user can access; see `PrivateDirectory`.

    `readers` maps each logical stream name to the consumer's ARN or, if the stream is polled, to the stream's ARN.
    """

    def __init__(self, readers: Mapping[str, str], directory: Path) -> None:
        self._readers = readers
        self._directory = directory

    @property
    def label(self) -> str:
        return f"the lease file {self._directory / FILE}"

    async def check(self) -> str:
        await self.scan()
        return str(self._directory)

    async def scan(self) -> Scan:
        with self._rows() as rows:
            found = [row for row in rows.execute("SELECT * FROM leases") if row[0] in self._readers.values()]
        scan = Scan()
        self.add_rows(scan, (msgspec.json.decode(text, type=Item) for _, _, text in found))
        return scan

    async def create(self, lease: Lease) -> Outcome:
        with self._rows() as rows:
            if item := self._read(rows, lease.key):
                return Conflict(self.to_lease(item))
            self._write(rows, lease.key, lease.to_item())
        return lease

    async def update(self, before: Lease, after: Lease) -> Outcome:
        with self._rows() as rows:
            if not isinstance(seen := self._seen(item := self._read(rows, before.key), before), Lease):
                return seen
            old, new = before.to_item(), after.to_item()
            obsolete = () if after.is_run else OBSOLETE
            # Retain attributes that this version does not define, as a DynamoDB update does.
            kept = {name: value for name, value in item.items() if name not in old and name not in obsolete}
            self._write(rows, after.key, kept | new)
        return after

    async def delete(self, seen: Lease) -> Outcome:
        with self._rows() as rows:
            if isinstance(found := self._seen(self._read(rows, seen.key), seen), Lease):
                rows.execute("DELETE FROM leases WHERE reader = ? AND key = ?", self._place(seen.key))
        return found

    def _seen(self, item: Item, before: Lease) -> Outcome:
        """Return the row in `item` if it still has the owner and counter of `before`, else a `Conflict`."""
        row = self.to_lease(item)
        return row if row and (row.owner, row.counter) == (before.owner, before.counter) else Conflict(row)

    def _read(self, rows: sqlite3.Connection, key: str) -> Item:
        found = rows.execute("SELECT item FROM leases WHERE reader = ? AND key = ?", self._place(key)).fetchone()
        return msgspec.json.decode(found[0], type=Item) if found else {}

    def _write(self, rows: sqlite3.Connection, key: str, item: Item) -> None:
        rows.execute("REPLACE INTO leases VALUES (?, ?, ?)", (*self._place(key), msgspec.json.encode(item)))

    def _place(self, key: str) -> tuple[str, str]:
        return self._readers[key.removeprefix(RUN_PREFIX).partition(":")[0]], key

    @contextmanager
    def _rows(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, which excludes other processes. An error rolls the transaction back."""
        try:
            with (
                PrivateDirectory(self._directory),
                closing(sqlite3.connect(self._directory / FILE, _LOCK_SECONDS, isolation_level=None)) as rows,
            ):
                # Do not wait for the disk: after a crash of the host, no process has a lease.
                rows.execute("PRAGMA synchronous = OFF")
                rows.execute("BEGIN IMMEDIATE")
                rows.execute("CREATE TABLE IF NOT EXISTS leases (reader, key, item, PRIMARY KEY (reader, key))")
                yield rows
                rows.execute("COMMIT")
        except (OSError, sqlite3.OperationalError) as error:
            raise TableUnavailableError(f"{self.label} cannot be used now: {error}") from error
        except sqlite3.DatabaseError as error:
            raise LeaseTableError(f"{self.label} is damaged: {error}; delete it") from error
