"""The command `kinesis-efo-infra`. If the pipeline's packages are missing, it prints what to install."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    try:
        from kinesis_efo_infra.pipeline.__main__ import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __package__.partition(".")[0]:
            raise
        # pip installs the command even without the extra for the pipeline.
        sys.stderr.write(
            f"error: kinesis-efo-infra needs {error.name}, which is not installed: pip install 'kinesis-efo-infra[pipeline]'\n"
        )
        return 1
    return command(arguments)
