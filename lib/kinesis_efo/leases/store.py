"""The interface to the lease table: conditional writes whose outcome is a value.

The rules of fencing live here, once, for DynamoDB (`table.py`) and for the model of it that tests use: every write
asks for the owner and the counter that the writer saw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Written:
    """The write is in the table.

    Attributes:
        lease: The row as it is now.
    """

    lease: Lease


@dataclass(frozen=True, slots=True)
class Lost:
    """The write was refused, because the row is not as the writer knew it.

    Attributes:
        current: The row as it is instead; None if it does not exist.
    """

    current: Lease | None


@dataclass(frozen=True, slots=True)
class Behind:
    """The write was refused, because an earlier write of ours had arrived although its answer got lost.

    Attributes:
        lease: The row as that write left it; ours still. The write can be made again on top of it.
    """

    lease: Lease


Outcome: TypeAlias = Written | Lost


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of the table at one time.

    Attributes:
        leases: By lease key.
        unreadable: By lease key, why a row cannot be understood.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


class LeaseStore(ABC):
    """A table of leases.

    Every method raises `TableUnavailableError` for what may pass, and `LeaseTableError` for what needs a person.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """The table as messages name it."""

    @abstractmethod
    async def check(self) -> None:
        """Make sure that the table exists and has the key schema of a lease table."""

    @abstractmethod
    async def scan(self) -> Scan:
        """All rows, read consistently."""

    @abstractmethod
    async def _put(self, lease: Lease) -> Outcome:
        """Write a row unless there is one."""

    @abstractmethod
    async def _update(self, before: Lease, after: Lease) -> Outcome:
        """Change a row from `before` to `after` if it still has the owner and the counter of `before`."""

    @abstractmethod
    async def _remove(self, before: Lease) -> Outcome:
        """Delete a row if it still has the owner and the counter of `before`."""

    async def create_if_absent(self, lease: Lease) -> Outcome:
        """Write a new row. It may have an owner already: creating and taking are one write then."""
        return await self._put(lease)

    async def take(self, seen: Lease, owner: str, endpoint: str, epoch: int, status: str | None = None) -> Outcome:
        """Make `owner` the owner of a lease, on condition that nobody has written its row since it was seen.

        Returns:
            `Lost` also if an earlier take of ours had arrived although its answer got lost: the row names us then,
            but since when is not known. It is ours to take again.
        """
        return await self._update(seen, seen.taken(owner, endpoint, epoch, status))

    async def apply(self, held: Lease, change: Callable[[Lease], Lease]) -> Outcome | Behind:
        """Change a row, on condition that owner and counter are as the caller knows them.

        A refusal may be our own doing: a write that arrived although its answer was lost, and that the SDK or the
        caller then repeated. The row shows it: our owner, one counter further. It is not reported as written, even if
        it is what was to be written: it may have arrived long ago, and others count the lease's time from then.

        Args:
            held: The row as the caller last wrote it.
            change: From one row to the next, such as `Lease.renewed`.
        """
        outcome = await self._update(held, change(held))
        current = outcome.current if isinstance(outcome, Lost) else None
        if current is not None and (current.owner, current.counter) == (held.owner, held.counter + 1):
            return Behind(current)
        return outcome

    async def delete(self, seen: Lease) -> Outcome:
        """Delete a row, on condition that nobody has written it since it was seen.

        Returns:
            `Lost(None)` if the row was gone already.
        """
        return await self._remove(seen)
