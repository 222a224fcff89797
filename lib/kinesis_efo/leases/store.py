"""The interface to the lease table. All writes are conditional.

A write succeeds only if the row still has the owner and the counter that the writer saw, so a run cannot overwrite another run's write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Conflict:
    """The outcome of a rejected write: the current row; None if it does not exist.

    Another writer has changed the row, or an earlier write of this process whose response was lost.
    """

    current: Lease | None


Outcome: TypeAlias = Lease | Conflict
"""The outcome of a write: the row as it was written or deleted, or a conflict."""


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of the table by lease key, and the error of each row that cannot be read."""

    leases: Mapping[str, Lease] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


class LeaseStore(ABC):
    """A table of leases. Every method raises TableUnavailableError for transient errors, and LeaseTableError for all others."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the table in messages."""

    @abstractmethod
    async def check(self) -> str:
        """Check that the table exists and has the key schema of a lease table. Returns its ARN, or the directory of lease files."""

    @abstractmethod
    async def scan(self) -> Scan:
        """Read all rows, with strong consistency."""

    @abstractmethod
    async def create(self, lease: Lease) -> Outcome:
        """Write a row if it does not exist yet. With an owner, this also acquires the lease."""

    @abstractmethod
    async def update(self, before: Lease, after: Lease) -> Outcome:
        """Change a row from `before` to `after` if it still has the owner and the counter of `before`."""

    @abstractmethod
    async def delete(self, seen: Lease) -> Outcome:
        """Delete a row if it still has the owner and the counter with which it was seen."""
