"""Chooses this process's decoder for data from Kinesis: the native core, if it is installed, or Python code."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from kinesis_efo_core import Batch

logger = logging.getLogger(__name__)

MODULE: Final = "kinesis_efo_core"
"""The name of the native core's module. Its distribution is kinesis-efo-core."""

SWITCH: Final = "KINESIS_EFO_CORE"
"""The environment variable whose value `off` disables the native core."""

_INTERFACE: Final = 1


class Choice(NamedTuple):
    """The decoder that this process uses."""

    core: Any | None  # The native core's module, `kinesis_efo_core`; None if Python decodes everything
    detail: str  # Which decoder is used and why, for the log
    fix: str = ""  # What the user should do if the native core is installed but cannot be used; else empty


def choose(environment: Mapping[str, str], load: Callable[[str], Any] = import_module) -> Choice:
    """Choose the decoder. `load` imports a module by name, or raises ImportError.

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
        reason = f"kinesis-efo-core has interface {interface}, but this library needs {_INTERFACE}"
        return Choice(None, f"records are decoded in Python: {reason}", fix)
    return Choice(module, f"records are decoded by kinesis-efo-core {module.__version__}")


CHOSEN: Final = choose(os.environ)
"""The decoder of this process, chosen when this module is imported."""


def new_batch(*, deaggregate: bool) -> Batch | None:
    """Create a batch of the native core; None if Python decodes records. Logs the choice of the decoder once per process."""
    _log(CHOSEN.detail, CHOSEN.fix)
    return None if CHOSEN.core is None else CHOSEN.core.Batch(deaggregate)


@cache
def _log(detail: str, fix: str) -> None:
    if fix:
        logger.warning("%s; %s", detail, fix)
    else:
        logger.debug("%s", detail)
