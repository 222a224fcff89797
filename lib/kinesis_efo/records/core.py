"""Chooses the decoder for Kinesis' data: the native core, if installed, or Python, which can decode everything."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

logger = logging.getLogger(__name__)

MODULE: Final = "kinesis_efo_core"
"""The module of the distribution kinesis-efo-core."""

SWITCH: Final = "KINESIS_EFO_CORE"
"""If this environment variable is `off`, the core is not used."""

_INTERFACE: Final = 1


class CoreBatch(Protocol):
    """Rows that the core has decoded for one batch. The core declines unusual payloads as a whole; Python then decodes them."""

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


class CoreFrames(Protocol):
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


class EventReaders(NamedTuple):
    """The core's functions that read events. The readers return None for events that the core declines.

    `read_head` returns an event's continuation, lag in milliseconds, number of records, and last sequence number. `read_answer` returns the
    iterator of a GetRecords response, its lag in milliseconds, number of records, last sequence number, and bytes of data and keys.
    """

    new_frames: Callable[[], CoreFrames]
    read_head: Callable[[bytes], tuple[str, int, int, str | None] | None]
    read_answer: Callable[[bytes], tuple[str, int, int, str | None, int] | None]


class Choice(NamedTuple):
    """The decoder that this process uses."""

    # Creates a batch of the core; the argument is whether to split KPL aggregates. None if Python decodes the records
    new_batch: Callable[[bool], CoreBatch] | None
    detail: str  # Describes the choice, for the log
    fix: str = ""  # How to fix an installed native core that cannot be used; else empty
    events: EventReaders | None = None  # None if Python reads the events


def choose(environment: Mapping[str, str], load: Callable[[str], Any] = import_module) -> Choice:
    """Choose the decoder. `load` imports a module, or raises ImportError.

    >>> choose({"KINESIS_EFO_CORE": "off"}).detail
    'records are decoded in Python: KINESIS_EFO_CORE=off'
    """
    if environment.get(SWITCH, "").lower() == "off":
        return Choice(None, f"records are decoded in Python: {SWITCH}=off")
    fix = f"install the kinesis-efo-core that belongs to this library, or set {SWITCH}=off"
    try:
        module = load(MODULE)
    except ModuleNotFoundError:
        return Choice(None, "records are decoded in Python: kinesis-efo-core is not installed")
    except ImportError as error:
        return Choice(None, f"records are decoded in Python: kinesis-efo-core cannot be loaded: {error}", fix)
    interface = getattr(module, "INTERFACE", None)
    if interface != _INTERFACE:
        reason = f"kinesis-efo-core has interface {interface}, and this library wants {_INTERFACE}"
        return Choice(None, f"records are decoded in Python: {reason}", fix)
    detail = f"records are decoded by kinesis-efo-core {module.__version__}"
    try:
        events = EventReaders(module.Frames, module.read_head, module.read_answer)
    except AttributeError:
        # The core comes from an older release than the library, so Python reads the events.
        return Choice(module.Batch, f"{detail}, which is too old to read events: Python does")
    return Choice(module.Batch, detail, events=events)


CHOSEN: Final = choose(os.environ)
"""The choice of this process."""


def event_readers() -> EventReaders | None:
    """Return the core's functions that read events; None if Python reads them."""
    return CHOSEN.events


def new_batch(*, deaggregate: bool) -> CoreBatch | None:
    """Create a batch of the core; None if Python decodes the records. Logs the choice once per process."""
    _log(CHOSEN.detail, CHOSEN.fix)
    return None if CHOSEN.new_batch is None else CHOSEN.new_batch(deaggregate)


@cache
def _log(detail: str, fix: str) -> None:
    if fix:
        logger.warning("%s; %s", detail, fix)
    else:
        logger.debug("%s", detail)
