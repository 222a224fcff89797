"""The command line `kinesis-efo`. Each command is a module of this package, imported when the command is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with `arguments` (None: `sys.argv[1:]`). If a dependency is missing, print how to install it."""
    try:
        from kinesis_efo_tools.cli.app import main as run
    except ModuleNotFoundError as error:
        # A missing module of this library is a bug; installing an extra would not fix it.
        if (error.name or "").startswith("kinesis_efo"):
            raise
        sys.exit("kinesis-efo: the command line needs its dependencies: pip install 'kinesis-efo[cli]'")
    run(arguments)
