"""Unpacks archives on every Python that is supported."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a `.tar.gz` into a directory."""
    with tarfile.open(archive) as tar:
        # Before 3.11.4 there are no filters, and from 3.12 on a warning where none is chosen.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(directory)
