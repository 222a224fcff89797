"""Reads with Python and with the native core, and checks that both do the same, or end with the same error."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from unittest.mock import patch

import pyarrow as pa

from kinesis_efo.errors import FrameError, KinesisEfoError
from kinesis_efo.positions import ShardRange
from kinesis_efo.records import core
from kinesis_efo.records.decoder import Decoder
from kinesis_efo.records.events import EventHead, GetRecordsAnswer, read_answer, read_head
from kinesis_efo.records.frames import Frame, FrameDecoder

PYTHON = core.choose({core.SWITCH: "off"})
CORE = core.choose({})

T = TypeVar("T")

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


class Fed(NamedTuple):
    """What a decoder of frames says of one chunk.

    Attributes:
        frames: The frames that it completes.
        error: What was raised instead; empty if nothing was.
        awaited: See `FrameDecoder`; 0 behind an error, where nobody asks.
        missing: See there.
    """

    frames: list[Frame]
    error: str
    awaited: int
    missing: int


def agree_on_frames(chunks: Sequence[bytes], collect: Sequence[bool] = ()) -> tuple[list[Frame], str]:
    """Check that both do the same with a stream, chunk by chunk; returns the frames, and the error that ended them.

    Args:
        chunks: The bytes, as they come.
        collect: Behind which of the chunks the frame under way is collected.
    """

    def fed() -> list[Fed]:
        decoder, said = FrameDecoder(), []
        for number, chunk in enumerate(chunks):
            frames, error = _raised(lambda chunk=chunk: decoder.feed(chunk))  # type: ignore[misc]
            said.append(Fed(frames or [], error, *((0, 0) if error else (decoder.awaited, decoder.missing))))
            if number < len(collect) and collect[number] and not error:
                decoder.collect()
        said.append(Fed([], _raised(decoder.finish)[1], 0, 0))
        return said

    said, _ = _same(fed)
    assert said is not None
    return [frame for each in said for frame in each.frames], next((each.error for each in said if each.error), "")


def agree_on_head(payload: bytes) -> EventHead | None:
    """Check that both read the same head of an event, or refuse it alike; returns the head."""
    return _same(lambda: read_head(payload))[0]


def agree_on_answer(body: bytes, asked: str | None = None) -> GetRecordsAnswer | None:
    """Check that both read the same answer of GetRecords, or refuse it alike; returns the answer."""
    return _same(lambda: read_answer(body, asked))[0]


def _same(read: Callable[[], T]) -> tuple[T | None, str]:
    with patch.object(core, "CHOSEN", PYTHON):
        wanted = _raised(read)
    with patch.object(core, "CHOSEN", CORE):
        found = _raised(read)
    assert found == wanted
    return found


def _raised(read: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return read(), ""
    except KinesisEfoError as error:
        return None, f"{type(error).__name__}: {error}"
