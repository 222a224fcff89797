"""The interface to the lease table: conditional writes whose outcome is a value.

It implements fencing once, for DynamoDB (`table.py`) and for the tests' model of it: every write has the condition that the row still has
the owner and the counter that the writer saw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Success:
    """The write succeeded.

    Attributes:
        lease: The new row.
    """

    lease: Lease


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write was refused, because the row has changed.

    Attributes:
        current: The present row; None if it does not exist.
    """

    current: Lease | None


@dataclass(frozen=True, slots=True)
class EarlierWrite:
    """The write was refused, because an earlier write of the same owner had succeeded although its response was lost.

    Attributes:
        lease: The row after that write. The new write can be repeated with it.
    """

    lease: Lease


Outcome: TypeAlias = Success | Conflict


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of the table.

    Attributes:
        leases: The rows by lease key.
        unreadable: The error of each row that cannot be read, by lease key.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


class LeaseStore(ABC):
    """A table of leases.

    Every method raises `TableUnavailableError` for transient errors, and `LeaseTableError` for all others.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the table in messages."""

    @abstractmethod
    async def check(self) -> None:
        """Check that the table exists and has the key schema of a lease table."""

    @abstractmethod
    async def scan(self) -> Scan:
        """Read all rows, with strong consistency."""

    @abstractmethod
    async def _put(self, lease: Lease) -> Outcome:
        """Write a row if there is none."""

    @abstractmethod
    async def _update(self, before: Lease, after: Lease) -> Outcome:
        """Change a row from `before` to `after` if it still has the owner and the counter of `before`."""

    @abstractmethod
    async def _remove(self, before: Lease) -> Outcome:
        """Delete a row if it still has the owner and the counter of `before`."""

    async def create_if_absent(self, lease: Lease) -> Outcome:
        """Write a new row if there is none. With an owner, this also takes the lease."""
        return await self._put(lease)

    async def take(self, seen: Lease, owner: str, endpoint: str, epoch: int, status: str | None = None) -> Outcome:
        """Make `owner` the owner of a lease, if its row has not been written since it was seen.

        Returns:
            `Conflict` also if an earlier take had succeeded although its response was lost. The row then has this owner, but it is not
            known since when, so the lease must be taken again.
        """
        return await self._update(seen, seen.taken(owner, endpoint, epoch, status))

    async def apply(self, held: Lease, change: Callable[[Lease], Lease]) -> Outcome | EarlierWrite:
        """Change a row, if owner and counter are still those of `held`.

        The write may also be refused because an earlier one succeeded although its response was lost. Then the row has the same owner
        and the next counter, and the outcome is `EarlierWrite`, not `Success`: that write may be old, and other runs count the lease's
        time from then.

        Args:
            held: The row as the caller last wrote it.
            change: Makes the new row, such as `Lease.renewed`.
        """
        outcome = await self._update(held, change(held))
        current = outcome.current if isinstance(outcome, Conflict) else None
        if current is not None and (current.owner, current.counter) == (held.owner, held.counter + 1):
            return EarlierWrite(current)
        return outcome

    async def delete(self, seen: Lease) -> Outcome:
        """Delete a row, if it has not been written since it was seen.

        Returns:
            `Conflict(None)` if the row did not exist any more.
        """
        return await self._remove(seen)
