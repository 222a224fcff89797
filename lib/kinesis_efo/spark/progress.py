"""What one micro-batch did, as `observed.py` writes it down. Needs no PySpark, for those who read it."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """One micro-batch, a line of JSON.

    Attributes:
        query: Name or id of the query.
        batch: Number of the micro-batch.
        rows_in: Rows that it read from Kinesis.
        rows_out: Rows that it wrote; None if the sink does not say.
        behind_millis: How far the worst shard was behind its tip; None if that is not known.
    """

    query: str
    batch: int
    rows_in: int
    rows_out: int | None
    behind_millis: int | None
