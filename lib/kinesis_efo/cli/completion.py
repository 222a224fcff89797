"""Completion on Tab. Reads local files only: a key press never calls AWS."""

from __future__ import annotations

from pathlib import Path

import typer

from kinesis_efo.errors import ManifestError
from kinesis_efo.manifest import parse_manifest


def manifest_files(incomplete: str) -> list[str]:
    """Complete a manifest's location: directories, JSON files, and the schemes of remote manifests."""
    schemes = [scheme for scheme in ("ssm:///", "s3://") if scheme.startswith(incomplete)]
    folder = Path(incomplete or ".") if incomplete.endswith("/") or not incomplete else Path(incomplete).parent
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return schemes
    names = [f"{path}/" if path.is_dir() else str(path) for path in found if path.is_dir() or path.suffix == ".json"]
    return schemes + [name for name in names if name.startswith(incomplete)]


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a stream's name from the manifest that the command line names, if that is a local file."""
    location = ctx.params.get("manifest")
    if not isinstance(location, str) or "://" in location:
        return []
    try:
        manifest = parse_manifest(Path(location).read_bytes(), location)
    except (OSError, ManifestError):
        return []
    return [name for name in sorted(manifest.streams) if name.startswith(incomplete)]
