"""Chooses who decodes records: the native core, if its distribution is installed, or Python, which decodes everything."""

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


class Choice(NamedTuple):
    """Who decodes, and why.

    Attributes:
        new_batch: Makes a batch of the core, given whether KPL aggregates are to be taken apart; None: Python decodes.
        detail: Who decodes, in words.
        fix: What to do about a core that is there and cannot be used; empty if there is nothing.
    """

    new_batch: Callable[[bool], CoreBatch] | None
    detail: str
    fix: str = ""


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
    return Choice(module.Batch, f"records are decoded by kinesis-efo-core {module.__version__}")


CHOSEN: Final = choose(os.environ)
"""The choice of this process."""


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
