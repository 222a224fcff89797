"""What a worker's lease loop tells the one who reads the shards, and what it asks of it."""

from __future__ import annotations

from typing import Protocol

from kinesis_efo.errors import LeaseError
from kinesis_efo.positions import Position


class LeaseListener(Protocol):
    """Reads shards while their leases are held. The loop calls it in its own event loop."""

    def lease_taken(self, key: str) -> None:
        """A lease is held now: its shard may be read."""

    def lease_lost(self, key: str, owner: str | None) -> None:
        """A lease that was not given up is gone: stop reading its shard before returning.

        Args:
            key: Lease key.
            owner: Who has it now; None where that is not known, because the table could not be reached in time.
        """

    def failed(self, error: LeaseError) -> None:
        """The loop has ended with an error."""

    def read_until(self, key: str, position: Position | None) -> float | None:
        """The time up to which every record that arrived in a shard lies at or before a position, in epoch seconds.

        Args:
            key: Lease key.
            position: The position; None for a row without a checkpoint.

        Returns:
            None where the time is not known.
        """


class SilentListener:
    """Ignores everything and knows nothing."""

    def lease_taken(self, key: str) -> None:
        """See `LeaseListener`."""

    def lease_lost(self, key: str, owner: str | None) -> None:
        """See `LeaseListener`."""

    def failed(self, error: LeaseError) -> None:
        """See `LeaseListener`."""

    def read_until(self, key: str, position: Position | None) -> float | None:  # noqa: ARG002
        """See `LeaseListener`."""
        return None
