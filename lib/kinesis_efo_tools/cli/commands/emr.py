"""Declares the subcommands of ``kinesis-efo emr``, with their options and help texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Pack jobs, run them on EMR or Glue, stop them.")


DIST: Final = Path("dist") / "emr"
"""The default directory for archives."""

ArtifactsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--artifacts",
        metavar="S3",
        help="S3 location for archives, programs and stop markers: s3://bucket, or with a prefix.",
    ),
]

GraceOption: TypeAlias = Annotated[
    int, arguments.whole_seconds("--grace", "Time for a run to end by itself before EMR ends it; 0 for none.", "10m")
]


@dataclass(frozen=True, kw_only=True)
class ApplicationOptions:
    """Options that name a deployed application."""

    aws: arguments.Aws
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            metavar="NAME",
            help="As dev, or lake.dev in project lake. With --application: all other options default to what was deployed.",
        ),
    ] = None
    application: Annotated[
        str | None, typer.Option("--application", "-a", metavar="NAME", help="The application to run.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TargetOptions(ApplicationOptions):
    """Options that name a deployed application, or a target and a manifest."""

    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="KIND:ID",
            help="cluster:j-..., serverless:<application>, eks:<virtual cluster> or glue:<job>.",
        ),
    ] = None
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="LOCATION",
            help=f"The application's manifest; without --application, {arguments.MANIFEST_VARIABLE} may name it.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PackOptions(ApplicationOptions):
    """Options for packing an application's project."""

    project: Annotated[Path, typer.Option("--project", help="Directory of the uv project to pack.")] = Path()
    python: Annotated[
        str | None, typer.Option("--python", metavar="VERSION", help="Python version of the cluster; 3.11 by default.")
    ] = None
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            metavar="NAME",
            help="Architecture of the cluster: x86_64 (default), or arm64 for Graviton.",
        ),
    ] = None


class PackTarget(StrEnum):
    """The service that an archive is packed for."""

    EMR = "emr"
    GLUE = "glue"


@command(app.command(epilog="Example: kinesis-efo emr package -e dev -a lake"))
class Package(PackOptions):
    """Pack a project and its locked dependencies for the cluster's Python, as an archive for --archives, or as wheels for Glue.

    Packing the same project again produces an identical archive. The archive does not contain PySpark and boto3. Shows whether the native
    core or Python will decode the job's records.
    """

    core: Annotated[
        Path | None,
        typer.Option(
            "--core",
            metavar="WHEEL",
            help="The wheel of kinesis-efo-core for the cluster, which decodes records faster than Python.",
        ),
    ] = None
    target: Annotated[
        PackTarget, typer.Option("--target", "-t", help="glue: a zip of wheels, which Glue installs.")
    ] = PackTarget.EMR
    out: Annotated[Path, typer.Option("--out", help="Directory for the archive.")] = DIST
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.emr.package import package

        package(self)


@command(
    app.command(
        context_settings={"allow_interspersed_args": True},
        epilog="Example: kinesis-efo emr submit -e dev -a lake --if-changed",
    )
)
class Submit(PackOptions, TargetOptions):
    """Submit a job: upload its files where they are missing, start it, and wait until it runs.

    Rejects a job with exit code 3 if its consumer is not ACTIVE, the lease table is missing, the release lacks Spark 4, or the application
    already has a live run. Submitting the same job twice starts one run.

    A job with a declared schedule is not started now; instead, EventBridge Scheduler is set up to start it on schedule.
    """

    argument: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Arguments of the program, after --; submit adds --manifest."),
    ] = None
    job: Annotated[
        str | None,
        typer.Option(
            "--job", "-j", metavar="PROGRAM", help="The program: its path, or its name in the project's jobs/."
        ),
    ] = None
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="Archive that `package` made; without it, submit packs the project."),
    ] = None
    artifacts: ArtifactsOption = None
    execution_role: Annotated[
        str | None, typer.Option("--execution-role", metavar="ARN", help="ARN of the role that the job runs with.")
    ] = None
    release_label: Annotated[
        str | None, typer.Option("--release-label", metavar="LABEL", help="EMR release, for eks targets.")
    ] = None
    logs: Annotated[str | None, typer.Option("--logs", metavar="S3", help="S3 location for EMR's logs.")] = None
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
    ] = None
    replace: Annotated[bool, typer.Option("--replace", help="Stop the live run of this application first.")] = False
    if_changed: Annotated[
        bool, typer.Option("--if-changed", help="Do nothing if exactly this job runs; replace any other run.")
    ] = False
    grace: GraceOption = 600
    now: Annotated[
        bool, typer.Option("--now", help="Start a job that has a schedule once, at once; the schedule stays as it is.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the request; change nothing.")
    ] = False
    upload: Annotated[
        bool,
        typer.Option(
            "--upload",
            help="With --dry-run, for an orchestrator that sends the request: upload the files nevertheless.",
        ),
    ] = False
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait until the job runs.")] = True
    patience: Annotated[int, arguments.whole_seconds("--patience", "How long --follow waits.", "15m")] = 900
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.emr.submit import submit

        submit(self)


@command(app.command(epilog="Example: kinesis-efo emr stop -e dev -a lake --grace 5m"))
class Stop(TargetOptions):
    """Stop an application's runs: each finishes its micro-batch and releases its leases. EMR kills a run that takes too long.

    If the job has a schedule, deletes it first; `submit` creates it again.

    Exit code 1 if a worker still renews the leases afterwards.
    """

    artifacts: ArtifactsOption = None
    grace: GraceOption = 600
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.emr.runs import stop

        stop(self)


@command(app.command(epilog="Example: kinesis-efo emr status -e dev -a lake"))
class Status(TargetOptions):
    """Show an application's runs, newest first, and where their logs are. Exit code 1 if no run is live."""

    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.emr.runs import status

        status(self)


@command(app.command(epilog="Example: kinesis-efo emr logs -e dev -a lake --lines 500"))
class Logs(TargetOptions):
    """Show the end of the driver's log of a run, as EMR stored it in S3, and the error with which the driver failed."""

    run: Annotated[str | None, typer.Option(metavar="ID", help="A run of the application; the newest by default.")] = (
        None
    )
    lines: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many of the log's last lines.")] = 100
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.emr.runs import logs

        logs(self)
