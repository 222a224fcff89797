"""The form of an offset in Spark's offset log, as plain data. `positions.py` and `marks.py` parse its values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class OffsetDocument(msgspec.Struct):
    """An offset as plain data. Unknown keys are ignored, so that earlier versions can read offsets of later ones.

    Attributes:
        version: Version of the form.
        streams: Position by shard id, by logical name of the stream.
        sources: ARN from which each stream was read.
        lasts: Distance from the last record to the position, by shard id, by logical name of the stream.
        mark: The checkpoint's mark; empty in offsets of earlier versions.
        begin: Where micro-batch 0 of a checkpoint begins, in the form of `streams`, if this is its end: Spark's log does not say so.
            Empty: it begins at `streams`, and reads nothing. None: the end of another micro-batch.
    """

    version: int
    streams: dict[str, dict[str, str]]
    sources: dict[str, str] = {}
    lasts: dict[str, dict[str, str]] = {}
    mark: str = ""
    begin: dict[str, dict[str, str]] | None = None


def read_document(data: object) -> OffsetDocument:
    """Read plain data from Spark's offset log.

    Raises:
        ValueError: The data is not an offset of this source, or a newer version wrote it; the message quotes the fault.
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
    """Return the ARNs from which the streams of an offset were read, by logical name; empty if the offset does not have them.

    Args:
        data: Plain data that `read_document` has accepted.
    """
    return msgspec.convert(data.get("sources", {}), dict[str, str])
