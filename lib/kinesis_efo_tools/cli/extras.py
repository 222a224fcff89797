"""Reports which extra of kinesis-efo installs a missing package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_efo.errors import ConfigurationError


@contextmanager
def needed_by(command: str, extra: str) -> Iterator[None]:
    """Context manager for a command's imports. If a package is missing, raises ConfigurationError with the `extra` that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A missing module of this library is a bug; installing an extra would not fix it.
        if (error.name or "").startswith("kinesis_efo"):
            raise
        raise ConfigurationError(
            f"kinesis-efo {command} needs the package {error.name!r}: pip install 'kinesis-efo[{extra}]'"
        ) from error
