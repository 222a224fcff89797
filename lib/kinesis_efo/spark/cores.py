"""Checks that fetchers leave cores for micro-batches, if the number of cores is known: in local mode."""

from __future__ import annotations

import re
from typing import Final

from kinesis_efo.errors import ConfigurationError

_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:\s*,\s*\d+)?\])?")


def check_cores(master: str, fetchers: int, cores_here: int) -> None:
    """Check that fetchers leave at least one core.

    Args:
        master: Spark's master.
        fetchers: Number of tasks that fetch.
        cores_here: Number of cores with the master `local[*]`.

    Raises:
        ConfigurationError: They leave none.

    >>> check_cores("local[4]", 3, 2)
    >>> check_cores("yarn", 400, 2)
    """
    if (found := _LOCAL.fullmatch(master)) is None:
        return
    cores = cores_here if found[1] == "*" else int(found[1] or 1)
    if fetchers >= cores:
        raise ConfigurationError(
            f"kinesis-efo option 'fetchers' is {fetchers}, but Spark has {cores} cores with master {master}: each fetcher keeps one, and "
            f"micro-batches need at least one more. Take fewer fetchers, or fetchers=driver, which keeps none"
        )
