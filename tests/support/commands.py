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


def program(path: Path, script: str) -> Path:
    """Write a program of the shell, in a directory that need not be there; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
