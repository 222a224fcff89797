"""``kinesis-efo emr package``: packs a project and its dependencies for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType

from kinesis_efo.cli import output
from kinesis_efo.cli.commands.emr import Package, Packed
from kinesis_efo.cli.emr.context import Context
from kinesis_efo.emr.deployment import Deployment
from kinesis_efo.emr.packing import Archive, PythonPlatform
from kinesis_efo.emr.packing import package as build
from kinesis_efo.errors import PackagingError, UsageError
from kinesis_efo.units import format_size


def package(given: Package) -> None:
    """Carry out the command."""
    deployed = None
    if given.environment or given.application:
        with Context.deployed(given) as deployed:
            pass
    archive = built(given.project, given.out, platform(given, deployed))
    output.answer(given.as_json, _archive_data(archive), lambda: _archive_view(archive))


def platform(given: Packed, deployed: Deployment | None) -> PythonPlatform:
    """The Python to pack for: the command line's, or that of the deployment.

    Raises:
        UsageError: It is none that can be packed for.
    """
    python = given.python or (deployed.python if deployed else None) or "3.11"
    architecture = given.architecture or (deployed.architecture if deployed else None) or "x86_64"
    try:
        return PythonPlatform(python, architecture)  # type: ignore[arg-type]  # checked by PythonPlatform
    except PackagingError as error:
        raise UsageError(str(error)) from None


def built(project: Path, out: Path, target: PythonPlatform) -> Archive:
    """Pack a project, and say so."""
    output.remark(f"packing {project.resolve().name} for Python {target.python} on {target.architecture}")
    return build(project, out, target)


def _archive_data(archive: Archive) -> dict[str, Any]:
    return {
        "archive": str(archive.path),
        "digest": archive.digest,
        "bytes": archive.path.stat().st_size,
        "python": archive.platform.python,
        "architecture": archive.platform.architecture,
        "packages": dict(archive.packages),
    }


def _archive_view(archive: Archive) -> RenderableType:
    data = _archive_data(archive)
    rows = [(name, str(data[name])) for name in ("digest", "python", "architecture")]
    packed = f"{format_size(data['bytes'])}, {len(archive.packages)} packages"
    return output.table(["archive", str(archive.path)], [*rows, ("size", packed)])
