"""Tools for operators: the command line, checks and repairs of running applications, and jobs on EMR. Jobs do not import them.

`lag` is public; everything else is internal to the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinesis_efo_tools.cli.lag import lag

__all__ = ["lag"]


def __getattr__(name: str) -> Any:
    if name != "lag":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kinesis_efo_tools.cli.lag import lag

    return lag
