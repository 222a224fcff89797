"""Commands that tests run, and what comes of them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def outcome(
    command: Sequence[str | Path], seconds: float = 600, *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: its exit code, and what it printed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=check, **more)
