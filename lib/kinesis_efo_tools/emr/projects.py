"""Environment names: `dev`, or `lake.dev` for `dev` in project `lake`. Names of AWS resources begin with the project."""

from __future__ import annotations

from typing import Final

_DEFAULT: Final = "kinesis-efo"


def split(environment: str) -> tuple[str, str]:
    """Split an environment into project and name.

    >>> split("dev")
    ('kinesis-efo', 'dev')
    >>> split("lake.dev")
    ('lake', 'dev')
    """
    project, _, name = environment.rpartition(".")
    return project or _DEFAULT, name
