"""What a run's lease tells the one who reads the streams, and asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kinesis_efo.failure import Failure
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.run_lag import Lag


class LeaseListener(Protocol):
    """Reads streams while their leases are held. It is called in the event loop of the lease.

    Attributes:
        failure: What ends the run.
    """

    failure: Failure

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """The lease on a stream is held now: its shards may be read.

        Args:
            stream: Its logical name.
            rows: The rows of its shards as they were found, by lease key.
        """

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """A lease that was not given up is gone: stop reading the stream before returning.

        Args:
            stream: Its logical name.
            owner: Who has it now; None if that is not known, because the table could not be reached in time.
        """

    def lag(self, stream: str) -> Lag | None:
        """How far reading is behind. Asked before each renewal, so it must answer at once.

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
