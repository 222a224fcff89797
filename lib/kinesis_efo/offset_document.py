"""The form of an offset in Spark's offset log, as plain data: which keys it has. What they say is for `positions.py` and `marks.py`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class OffsetDocument(msgspec.Struct):
    """An offset as plain data. Keys that this version does not know are ignored, as earlier versions do with those that came later.

    Attributes:
        version: Of the form.
        streams: Position by shard id, by logical name of the stream.
        sources: What each stream was read from, as an ARN.
        lasts: How far the last record lies before the position, by shard id and stream.
        mark: Names the checkpoint, and how often it has moved; empty in offsets of earlier versions.
        begin: Where a checkpoint's micro-batch 0 begins, in the form of `streams`, if this is its end: Spark's log does not say so.
            Empty: it begins at `streams`, and reads nothing. None: the end of another micro-batch.
    """

    version: int
    streams: dict[str, dict[str, str]]
    sources: dict[str, str] = {}
    lasts: dict[str, dict[str, str]] = {}
    mark: str = ""
    begin: dict[str, dict[str, str]] | None = None


def read_document(data: object) -> OffsetDocument:
    """The document in plain data from Spark's offset log.

    Raises:
        ValueError: The data is not an offset of this source, or a newer version wrote it; the message quotes what is wrong.
    """
    try:
        document = msgspec.convert(data, OffsetDocument)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a kinesis-efo offset: {error}; got {str(data)[:200]!r}") from None
    if document.version != 1:
        raise ValueError(
            f"the offset has version {document.version}, this library reads version 1: "
            "the checkpoint was written by a newer kinesis-efo, which can go on with it"
        )
    return document


def sources_of(data: Mapping[str, object]) -> dict[str, str]:
    """What the streams of an offset were read from, as far as its plain data says so: ARNs by logical name.

    Args:
        data: Plain data that `read_document` has read.
    """
    return msgspec.convert(data.get("sources", {}), dict[str, str])
