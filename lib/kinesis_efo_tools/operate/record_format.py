"""Filters records, and formats them for a terminal or a pipe. No I/O."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from kinesis_efo.errors import visible

_ROW: Final = 16
_ON_ONE_LINE: Final = str.maketrans("\r\n", "  ")
_HIDDEN: Final = re.compile(r"[^\x00-\x7e]")


class TailRecord(NamedTuple):
    """One record, or one user record of an aggregate.

    For a user record, `sequence` is the sequence number of its aggregate, and `sub` its index there; otherwise `sub` is 0.
    """

    shard: str
    sequence: str
    sub: int
    key: str | None
    arrived: datetime | None
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A filter for records.

    `key` is a pattern for the partition key, with `*`, `?` and `[...]`; `data` may match anywhere in the data. None matches every record.

    >>> record = TailRecord("shardId-0", "7", 0, "user-1", None, b'{"amount": 7}')
    >>> RecordFilter(key="user-*", data=re.compile(rb"amount.: [5-9]")).has(record), RecordFilter(key="user").has(record)
    (True, False)
    """

    key: str | None = None
    data: re.Pattern[bytes] | None = None

    def has(self, record: TailRecord) -> bool:
        """Whether a record passes the filter."""
        if self.key is not None and not fnmatchcase(record.key or "", self.key):
            return False
        return self.data is None or self.data.search(record.data) is not None


def raw(record: TailRecord) -> bytes:
    """Format a record as its data, followed by a line feed.

    >>> raw(TailRecord("shardId-0", "7", 0, "k", None, b"hello"))
    b'hello\\n'
    """
    return record.data + b"\n"


def as_json(record: TailRecord) -> bytes:
    """Format a record as one line of JSON, with its data in `data` (unchanged) if it is JSON, in `text` if it is UTF-8, else in `base64`.

    >>> as_json(TailRecord("shardId-0", "7", 0, "k", None, b'{"b":1.10,"x":1e400}'))[-29:]
    b'"data":{"b":1.10,"x":1e400}}\\n'
    >>> as_json(TailRecord("shardId-0", "7", 0, "k", None, b"hello"))
    b'{"shardId":"shardId-0","sequenceNumber":"7","subSequenceNumber":0,"partitionKey":"k","arrived":null,"text":"hello"}\\n'
    """
    document: dict[str, object] = {
        "shardId": record.shard,
        "sequenceNumber": record.sequence,
        "subSequenceNumber": record.sub,
        "partitionKey": record.key,
        "arrived": record.arrived.isoformat() if record.arrived else None,
    }
    own = b""
    try:
        text = record.data.decode()
    except UnicodeDecodeError:
        document["base64"] = b64encode(record.data).decode()
    else:
        try:
            json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            document["text"] = text
        else:
            # Insert the text itself: parsing would change numbers and drop repeated keys. In JSON, line feeds occur only between tokens.
            own = b',"data":' + _HIDDEN.sub(_escaped, text.translate(_ON_ONE_LINE)).encode()
    return json.dumps(document, separators=(",", ":"))[:-1].encode() + own + b"}\n"


def hexadecimal(record: TailRecord) -> bytes:
    """Format a record as a heading and a hex dump of its data, with 16 bytes per line.

    >>> print(hexadecimal(TailRecord("shardId-0", "7", 0, "k", None, b"hello")).decode(), end="")
    shardId-0 7 key='k' 5 bytes
    00000000  68 65 6c 6c 6f                                   |hello|
    """
    lines = [f"{visible(record.shard)} {visible(record.sequence)} key={record.key!r} {len(record.data)} bytes"]
    for start in range(0, len(record.data), _ROW):
        row = record.data[start : start + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{_ROW * 3}} |{text}|")
    return ("\n".join(lines) + "\n").encode()


class Format(Enum):
    """The output formats for records."""

    RAW = "raw"
    JSON = "json"
    HEX = "hex"

    @property
    def write(self) -> Callable[[TailRecord], bytes]:
        """The function that formats a record in this format."""
        return {Format.RAW: raw, Format.JSON: as_json, Format.HEX: hexadecimal}[self]


def _escaped(found: re.Match[str]) -> str:
    # In JSON, the characters that `_HIDDEN` matches (not ASCII) occur only in strings, where an escape sequence has the same meaning.
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _refuse(constant: str) -> object:
    # json.loads accepts NaN and Infinity, which are not JSON.
    raise ValueError(constant)
