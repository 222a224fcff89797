"""Chooses who reads what Kinesis sends: the native core, if its distribution is installed, or Python, which reads everything."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

logger = logging.getLogger(__name__)

MODULE: Final = "kinesis_efo_core"
"""What the distribution kinesis-efo-core installs."""

SWITCH: Final = "KINESIS_EFO_CORE"
"""With `off` in this environment variable, the core is not used."""

_INTERFACE: Final = 1


class CoreBatch(Protocol):
    """Rows that the core has decoded for one batch. It declines what is unusual, whole payloads at a time."""

    @property
    def floor(self) -> str | None:
        """Number of the last record taken, or where the range began; None if there is neither."""

    def begin(self, stream: str, shard: str, floor: str | None, ceiling: str | None) -> bool:
        """Take records of a shard from now on, behind one number and up to another; returns whether it can."""

    def add(self, payload: bytes | memoryview) -> tuple[int, int, bool] | None:
        """Take a payload's records: how many lie in the range, how many there are, and whether they reach its end. None: declined."""

    def clear(self) -> None:
        """Forget all rows."""

    def take(self) -> Any:
        """The rows, with Arrow's C data interface; the next batch goes on with the same range."""


class CoreFrames(Protocol):
    """Frames of an event stream, whose bytes come in chunks that are cut anywhere."""

    @property
    def awaited(self) -> int:
        """Length of the frame that is under way, bytes; 0 if its first bytes have not arrived."""

    @property
    def missing(self) -> int:
        """Bytes of that frame that have not arrived."""

    def feed(self, chunk: bytes) -> tuple[list[tuple[dict[str, str | bytes | bool], bytes]], bytes | None]:
        """Headers and payloads of the frames that these bytes complete; and, if what follows is declined, all bytes behind them, which
        are forgotten."""

    def rest(self) -> bytes:
        """What has arrived of the frame that is under way, which is forgotten."""


class EventReaders(NamedTuple):
    """What reads events in the core.

    Attributes:
        new_frames: Makes what reads the frames of one stream.
        read_head: Reads an event's continuation, lag in milliseconds, number of records, and the number of the last one. None: declined.
        read_answer: Reads the iterator of GetRecords' answer, its lag in milliseconds, number of records, the number of the last one, and
            the bytes of data and keys. None: declined.
    """

    new_frames: Callable[[], CoreFrames]
    read_head: Callable[[bytes], tuple[str, int, int, str | None] | None]
    read_answer: Callable[[bytes], tuple[str, int, int, str | None, int] | None]


class Choice(NamedTuple):
    """Who decodes, and why.

    Attributes:
        new_batch: Makes a batch of the core, given whether KPL aggregates are to be taken apart; None: Python decodes.
        detail: Who decodes, in words.
        fix: What to do about a core that is there and cannot be used; empty if there is nothing.
        events: What reads events in the core; None: Python reads them.
    """

    new_batch: Callable[[bool], CoreBatch] | None
    detail: str
    fix: str = ""
    events: EventReaders | None = None


def choose(environment: Mapping[str, str], load: Callable[[str], Any] = import_module) -> Choice:
    """Choose who decodes in this process.

    Args:
        environment: Environment variables.
        load: Imports a module; raises ImportError.

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
        # The wheel may be of an earlier release than the library.
        return Choice(module.Batch, f"{detail}, which is too old to read events: Python does")
    return Choice(module.Batch, detail, events=events)


CHOSEN: Final = choose(os.environ)
"""The choice of this process."""


def event_readers() -> EventReaders | None:
    """What reads events in the core; None if Python reads them."""
    return CHOSEN.events


def new_batch(*, deaggregate: bool) -> CoreBatch | None:
    """A batch of the core; None if Python decodes. The log says once which of them it is."""
    _say(CHOSEN.detail, CHOSEN.fix)
    return None if CHOSEN.new_batch is None else CHOSEN.new_batch(deaggregate)


@cache
def _say(detail: str, fix: str) -> None:
    if fix:
        logger.warning("%s; %s", detail, fix)
    else:
        logger.info("%s", detail)
