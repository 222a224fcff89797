"""Implements the interface of `store.py` with files on one host, for queries without the option `leaseTable`.

Each lease row is a small file that all processes of this user on this host share, so that two runs do not end each other's subscriptions.
To other hosts, the table seems empty. This is safe: a query continues from its checkpoint, independently of the lease rows.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.keys import RUN_PREFIX
from kinesis_efo.leases.row import OBSOLETE, Item, Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan
from kinesis_efo.processes import PrivateDirectory

_MOST_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 100


class HostTable(LeaseStore):
    """The leases on some streams, in the files of `directory`, which only this user can access; see `PrivateDirectory`.

    `readers` maps each logical stream name to the stream's consumer or, if the stream is polled, to the stream itself.
    """

    def __init__(self, readers: Mapping[str, str], directory: Path) -> None:
        self._prefixes = {
            name: f"lease.{hashlib.sha256(reader.encode()).hexdigest()[:16]}." for name, reader in readers.items()
        }
        self._directory = directory

    @property
    def label(self) -> str:
        return f"the lease files in {self._directory}"

    async def check(self) -> str:
        await self.scan()
        return str(self._directory)

    async def scan(self) -> Scan:
        with self._usable() as there:
            names = [(each, name) for each in self._prefixes.values() for name in there.names(f"{each}*")]
        leases: dict[str, Lease] = {}
        unreadable: dict[str, str] = {}
        for prefix, name in names:
            key = name.removeprefix(prefix)
            with self._row(name) as file:
                try:
                    if (lease := self._lease(self._read(file))) is not None:
                        leases[key] = lease
                except LeaseTableError as error:
                    unreadable[key] = str(error)
        return Scan(leases, unreadable)

    async def create(self, lease: Lease) -> Outcome:
        with self._row(self._name(lease.key)) as file:
            if item := self._read(file):
                return Conflict(self._lease(item))
            _write(file, lease.to_item())
        return lease

    async def update(self, before: Lease, after: Lease) -> Outcome:
        with self._row(self._name(before.key)) as file:
            if not isinstance(seen := self._seen(item := self._read(file), before), Lease):
                return seen
            old, new = before.to_item(), after.to_item()
            obsolete = () if after.is_run else OBSOLETE
            # Retain attributes that this version does not define, as a DynamoDB update does.
            kept = {name: value for name, value in item.items() if name not in old and name not in obsolete}
            _write(file, kept | new)
        return after

    async def delete(self, seen: Lease) -> Outcome:
        with self._row(name := self._name(seen.key)) as file:
            if isinstance(found := self._seen(self._read(file), seen), Lease):
                with self._usable() as there:
                    there.remove(name)
        return found

    def _seen(self, item: Item, before: Lease) -> Outcome:
        """Return the row in `item` if its owner and counter are still those of `before`, else a `Conflict`."""
        row = self._lease(item)
        return row if row and (row.owner, row.counter) == (before.owner, before.counter) else Conflict(row)

    def _read(self, file: int) -> Item:
        """Read a row; empty if it does not exist."""
        try:
            return msgspec.json.decode(os.pread(file, _MOST_BYTES, 0) or b"{}", type=Item)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LeaseTableError(f"there is a file that is no lease, {error}, in {self.label}") from None

    def _name(self, key: str) -> str:
        return f"{self._prefixes[key.removeprefix(RUN_PREFIX).partition(':')[0]]}{key}"

    @contextmanager
    def _row(self, name: str) -> Iterator[int]:
        """Open and lock a row's file. The lock is exclusive among processes, and ends with the context."""
        with self._usable() as there:
            while True:
                file = there.open(name, os.O_RDWR | os.O_CREAT)
                try:
                    self._lock(file)
                    # Another process may have deleted the row's file between the two calls: nobody else would see a write to it.
                    if os.fstat(file).st_nlink:
                        yield file
                        return
                finally:
                    os.close(file)

    def _lock(self, file: int) -> None:
        """Lock a row's file. Raises an OSError after a short wait, because a process may be suspended while it has the lock."""
        for _ in range(_ATTEMPTS):
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.001)
        raise BlockingIOError("another process has had a row locked for too long, perhaps because it is suspended")

    @contextmanager
    def _usable(self) -> Iterator[PrivateDirectory]:
        try:
            with PrivateDirectory(self._directory) as there:
                yield there
        except OSError as error:
            raise TableUnavailableError(f"{self.label} cannot be used for now: {error}") from error


def _write(file: int, item: Item) -> None:
    # Truncate first, so that a process that is killed before the write does not leave a mixture of two rows.
    os.ftruncate(file, 0)
    os.pwrite(file, msgspec.json.encode(item), 0)
