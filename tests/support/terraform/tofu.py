"""A stand-in for OpenTofu, which no package registry has: Terraform, under OpenTofu's name and version."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import program
from tests.support.missing import terraform

VERSION = "OpenTofu v1.10.6"


def stand_in_tofu(directory: Path) -> tuple[Path, Path]:
    """Write the program `tofu`; returns its path, and that of a file with the arguments of each call.

    It shows what this project does with `TERRAFORM_BINARY_NAME`, and nothing of what OpenTofu itself does.

    Args:
        directory: Where to write it.
    """
    calls = directory / "tofu.calls"
    version = f'case "$*" in *version) echo "{VERSION}"; echo "on linux_amd64"; exit ;; esac'
    return program(directory / "tofu", f'echo "$*" >> {calls}\n{version}\nexec {terraform()} "$@"'), calls
