"""``kinesis-efo emr package``: packs a project and its dependencies for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType

from kinesis_efo.errors import PackagingError, UsageError
from kinesis_efo.units import format_size
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.emr import Package, PackOptions, PackTarget
from kinesis_efo_tools.cli.emr.context import Context
from kinesis_efo_tools.emr.core_wheel import CoreWheel, read_core_wheel
from kinesis_efo_tools.emr.deployment import Deployment
from kinesis_efo_tools.emr.glue import PYTHON as GLUE_PYTHON
from kinesis_efo_tools.emr.packing import Archive, PythonPlatform
from kinesis_efo_tools.emr.packing import package as build


def package(given: Package) -> None:
    deployed = None
    if given.environment or given.application:
        with Context.deployed(given) as deployed:
            pass
    core = read_core_wheel(given.core) if given.core else None
    glue = given.target is PackTarget.GLUE
    archive = built(given.project, given.out, platform(given, deployed, glue=glue), core, glue=glue)
    output.answer(given.as_json, _archive_data(archive), lambda: _archive_view(archive))


def platform(given: PackOptions, deployed: Deployment | None, *, glue: bool = False) -> PythonPlatform:
    """Return the platform to pack for: from the command line if given, otherwise from the deployment, otherwise the default.

    Raises UsageError if packing does not support the platform.
    """
    python = given.python or (deployed.python if deployed else None) or (GLUE_PYTHON if glue else "3.11")
    architecture = given.architecture or (deployed.architecture if deployed else None) or "x86_64"
    try:
        return PythonPlatform(python, architecture)  # type: ignore[arg-type]  # checked by PythonPlatform
    except PackagingError as error:
        raise UsageError(str(error)) from None


def built(
    project: Path, out: Path, target: PythonPlatform, core: CoreWheel | None = None, *, glue: bool = False
) -> Archive:
    """Pack a project, after printing its name and the platform on stderr."""
    output.remark(f"packing {project.resolve().name} for Python {target.python} on {target.architecture}")
    return build(project, out, target, core=core, wheels=glue)


def _archive_data(archive: Archive) -> dict[str, Any]:
    return {
        "archive": str(archive.path),
        "digest": archive.digest,
        "bytes": archive.path.stat().st_size,
        "python": archive.platform.python,
        "architecture": archive.platform.architecture,
        "core": archive.core,
        "packages": dict(archive.packages),
    }


def _archive_view(archive: Archive) -> RenderableType:
    data = _archive_data(archive)
    rows = [(name, str(data[name])) for name in ("digest", "python", "architecture")]
    packed = f"{format_size(data['bytes'])}, {len(archive.packages)} packages"
    # The job's processes use this decoder by default; with KINESIS_EFO_CORE=off, they decode with Python anyway.
    decoder = f"kinesis-efo-core {archive.core}" if archive.core else "Python; --core packs the native core"
    return output.table(["archive", str(archive.path)], [*rows, ("size", packed), ("records decoded by", decoder)])
