"""The interface to the lease table. All writes are conditional.

A write succeeds only if the row still has the owner and the counter that the writer last read, so a run cannot overwrite a newer write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from kinesis_efo.errors import LeaseTableError
from kinesis_efo.leases.row import Item, Lease


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rejected write, with the current row (None if it does not exist).

    The row was changed by another writer, or by an earlier write of this process whose response was lost.
    """

    current: Lease | None


Outcome: TypeAlias = Lease | Conflict
"""The outcome of a write: the row as it was written or deleted, or a conflict."""


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of the table, and the errors of rows that cannot be read, by lease key."""

    leases: dict[str, Lease] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


class LeaseStore(ABC):
    """A table of leases. Every method raises TableUnavailableError for transient errors, and LeaseTableError for all other errors."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the table in messages."""

    def to_lease(self, item: Item) -> Lease | None:
        """Convert DynamoDB attributes to a row; None if `item` is empty or not a lease."""
        try:
            return Lease.from_item(item) if item else None
        except ValueError as error:
            raise LeaseTableError(f"{error} in {self.label}") from None

    def add_rows(self, scan: Scan, items: Iterable[Item]) -> None:
        """Convert the DynamoDB attributes of rows, and add them to a scan."""
        for item in items:
            key = item["leaseKey"]["S"]
            try:
                if (lease := self.to_lease(item)) is not None:
                    scan.leases[key] = lease
            except LeaseTableError as error:
                scan.unreadable[key] = str(error)

    @abstractmethod
    async def check(self) -> str:
        """Check that the table exists and has the key schema of a lease table. Returns its ARN, or the directory of the lease file."""

    @abstractmethod
    async def scan(self) -> Scan:
        """Read all rows, with strong consistency."""

    @abstractmethod
    async def create(self, lease: Lease) -> Outcome:
        """Write a row if it does not exist yet. This acquires the lease if the row has an owner."""

    @abstractmethod
    async def update(self, before: Lease, after: Lease) -> Outcome:
        """Change a row from `before` to `after` if it still has the owner and the counter of `before`."""

    @abstractmethod
    async def delete(self, seen: Lease) -> Outcome:
        """Delete a row if it still has the owner and the counter of `seen`."""
