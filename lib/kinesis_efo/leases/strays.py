"""Detects checkpoints of another stream: shards of every stream have the same ids, so their rows have the same keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.row import Lease


def strays(rows: Iterable[Lease], present: StreamIdentity) -> str | None:
    """Describe checkpoints that are certainly of another stream; None if there are none.

    Args:
        rows: The rows of a stream's shards.
        present: The stream as it is now.
    """
    found = sorted((row for row in rows if row.is_of_another(present)), key=lambda row: row.key)
    if not found:
        return None
    first, more = found[0], len(found) - 1
    assert first.stream is not None
    created_again = first.stream.arn == present.arn
    return (
        f"checkpoint {first.key}{f' (and {more} more)' if more else ''} is of another stream: {first.stream}. The stream is now {present}: "
        + ("it was deleted and created again since" if created_again else "the application read another one before")
    )
