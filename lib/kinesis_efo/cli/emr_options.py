"""Options that commands of ``kinesis-efo emr`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from kinesis_efo.cli import arguments

DIST: Final = Path("dist") / "emr"
"""Where archives are put."""

EnvironmentOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--environment",
        "-e",
        metavar="NAME",
        help="As dev, or lake.dev in project lake. With --application: all other options default to what was deployed.",
    ),
]
ApplicationOption: TypeAlias = Annotated[
    str | None, typer.Option("--application", "-a", metavar="NAME", help="The application to run.")
]
TargetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="KIND:ID", help="cluster:j-..., serverless:<application> or eks:<virtual cluster>."
    ),
]
ManifestOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--manifest",
        "-m",
        metavar="LOCATION",
        help=f"The application's manifest; without --application, {arguments.MANIFEST_VARIABLE} may name it.",
    ),
]
ArtifactsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--artifacts", metavar="S3", help="S3 location for archives and programs: s3://bucket, or with a prefix."
    ),
]
ProjectOption: TypeAlias = Annotated[Path, typer.Option("--project", help="Directory of the uv project to pack.")]
PythonOption: TypeAlias = Annotated[
    str | None, typer.Option("--python", metavar="VERSION", help="Python version of the cluster; 3.11 by default.")
]
ArchitectureOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--architecture", metavar="NAME", help="Architecture of the cluster: x86_64 (default), or arm64 for Graviton."
    ),
]
GraceOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--grace", min=0, metavar="SECONDS", help="Time for a run to end by itself before EMR ends it; 0 for none."
    ),
]
