"""Unpacks archives on every supported Python."""

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a `.tar.gz` into a directory."""
    with tarfile.open(archive) as tar:
        # Python has filters from 3.11.4 on, and from 3.12 on warns if none is chosen.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(directory)
