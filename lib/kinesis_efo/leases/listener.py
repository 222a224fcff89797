"""The interface between a run's lease and the reader of its streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kinesis_efo.failure import Failure
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.run_lag import Lag


class LeaseListener(Protocol):
    """Reads streams while their leases are held. It is called in the event loop of the lease.

    Attributes:
        failure: Holds the error that ends the run.
    """

    failure: Failure

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Start reading a stream, because its lease is held now.

        Args:
            stream: Its logical name.
            rows: The present rows of its shards, by lease key.
        """

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """Stop reading a stream before returning, because its lease was lost.

        Args:
            stream: Its logical name.
            owner: The new owner; None if it is not known, because the table could not be reached in time.
        """

    def lag(self, stream: str) -> Lag | None:
        """Return how far the reader is behind. Called before each renewal, so it must return at once.

        Args:
            stream: Its logical name.
        """


class SilentListener:
    """Ignores everything but a failure."""

    def __init__(self) -> None:
        self.failure = Failure()

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        pass

    def lease_lost(self, stream: str, owner: str | None) -> None:
        pass

    def lag(self, stream: str) -> Lag | None:  # noqa: ARG002
        return None
