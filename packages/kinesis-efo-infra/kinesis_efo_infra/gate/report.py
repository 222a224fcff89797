"""Reports the results of a scan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kinesis_efo_infra.gate.failures import Result
from kinesis_efo_infra.gate.files import place
from kinesis_efo_infra.gate.sarif import as_sarif

logger = logging.getLogger(__name__)


def report(
    result: Result,
    directory: Path,
    environment_of: Callable[[str], str | None],
    *,
    sarif: Path | None = None,
    excused: bool = False,
) -> int:
    """Log the results of a scan, and return the exit code.

    Args:
        result: The result of the scan.
        directory: Directory of the environment files.
        environment_of: Returns the environment of a stack or plan.
        sarif: File to which the failures are written for code scanning.
        excused: Whether to list the excused failures.
    """
    if sarif:
        sarif.write_text(as_sarif(result.failed, directory, environment_of, place()), encoding="utf-8")
    for failure in result.failed:
        logger.error("failed: %s", failure)
    if excused:
        for failure in result.excused:
            logger.info("excused: %s: %s", failure, result.reasons[failure])
    told = f"{len(result.excused)} excused (--excused lists them)" if result.excused else "none excused"
    logger.info("checkov: %d failed, %s, %d passed", len(result.failed), told, sum(result.passed.values()))
    return 1 if result.failed else 0
