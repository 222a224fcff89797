"""Decodes with Python and with the native core, and checks that both do the same: batch by batch, or the same error."""

from __future__ import annotations

from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow as pa

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis import core
from kinesis_efo.kinesis.records import Decoder
from kinesis_efo.positions import ShardRange

PYTHON = core.choose({core.SWITCH: "off"})
CORE = core.choose({})

Part: TypeAlias = tuple[ShardRange, list[bytes]]
"""A range, and the payloads that are said to cover it."""


def outcome(choice: core.Choice, parts: list[Part], **options: Any) -> tuple[list[pa.RecordBatch], str, list[object]]:
    """The batches of some ranges, the error that ended them, and what was left out.

    Args:
        choice: Who decodes.
        parts: The ranges.
        options: Those of `Decoder`.
    """
    batches: list[pa.RecordBatch] = []
    left_out: list[object] = []
    with patch.object(core, "CHOSEN", choice):
        decoder = Decoder(left_out=lambda *note: left_out.append(note), **options)
    try:
        for (key, after, through, _), payloads in parts:
            batches += decoder.add(map(memoryview, payloads), key, after, through, (0, 1 << 127))
        batches += decoder.finish()
    except FrameError as error:
        return batches, str(error), left_out
    return batches, "", left_out


def agree(parts: list[Part], **options: Any) -> list[pa.RecordBatch]:
    """Check that both do the same with some ranges; returns the batches. Aggregates are taken apart, if `options` say nothing else."""
    options = {"deaggregate": True} | options
    wanted, found = outcome(PYTHON, parts, **options), outcome(CORE, parts, **options)
    assert found[1:] == wanted[1:]
    assert [batch.num_rows for batch in found[0]] == [batch.num_rows for batch in wanted[0]]
    for one, other in zip(found[0], wanted[0], strict=True):
        one.validate(full=True)
        assert one.schema.equals(other.schema, check_metadata=True)
        assert one.equals(other)
    return found[0]
