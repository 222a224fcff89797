"""The interface of the core. It declines unusual payloads, frames and events; Python then reads them."""

from typing import Any

INTERFACE: int
__version__: str

class Batch:
    """Rows that were decoded for one batch. A payload is declined as a whole."""

    def __init__(self, aggregates: bool) -> None:
        """`aggregates`: whether to split KPL aggregates."""

    @property
    def floor(self) -> str | None:
        """The sequence number after which decoding continues: the last record's, or `begin`'s `floor` before the first record."""

    def begin(self, stream: str, shard: str, floor: str | None, ceiling: str | None) -> bool:
        """Begin a shard's range: the records after `floor`, up to `ceiling`. Return whether the core can decode it."""

    def add(self, payload: bytes | memoryview) -> tuple[int, int, bool] | None:
        """Decode a payload. Return how many records are in the range, how many there are, and whether the range ended; None if declined."""

    def clear(self) -> None: ...
    def take(self) -> Any:
        """Return the rows, as an object with Arrow's C data interface. The next batch continues in the same range."""

class Frames:
    """Decodes the frames of an event stream from chunks that may be cut anywhere."""

    @property
    def awaited(self) -> int:
        """Length of the incomplete frame, bytes; 0 if its first bytes have not arrived."""

    @property
    def missing(self) -> int:
        """Bytes of the incomplete frame that have not arrived."""

    def feed(self, chunk: bytes) -> tuple[list[tuple[dict[str, str | bytes | bool], bytes]], bytes | None]:
        """Return the headers and payloads of the frames that the chunk completes, and the bytes from a declined frame on, if any."""

    def rest(self) -> bytes:
        """Return the bytes of the incomplete frame and discard them."""

def read_head(payload: bytes) -> tuple[str, int, int, str | None] | None:
    """Return an event's continuation, lag in milliseconds, number of records, and last sequence number; None if declined."""

def read_answer(body: bytes) -> tuple[str, int, int, str | None, int] | None:
    """Return a GetRecords response's iterator, lag in milliseconds, number of records, last sequence number, and bytes of data and keys."""
