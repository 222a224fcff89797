"""``kinesis-efo emr``: its commands and their options. The work is imported when it is called, so that help and completion are quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.emr_options import (
    DIST,
    ApplicationOption,
    ArchitectureOption,
    ArtifactsOption,
    EnvironmentOption,
    GraceOption,
    ManifestOption,
    ProjectOption,
    PythonOption,
    TargetOption,
)
from kinesis_efo.options import AwsSettings

emr = typer.Typer(no_args_is_help=True, help="Pack jobs, run them on EMR, stop them.")


@emr.command()
@arguments.with_aws
def package(
    aws: AwsSettings,
    project: ProjectOption = Path(),
    python: PythonOption = None,
    architecture: ArchitectureOption = None,
    out: Annotated[Path, typer.Option("--out", help="Directory for the archive.")] = DIST,
    environment: EnvironmentOption = None,
    application: ApplicationOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Pack a project and its locked dependencies for the cluster's Python, as an archive for --archives.

    The same project makes the same bytes. The archive holds neither PySpark nor boto3.
    """
    from kinesis_efo.cli.emr import package as run

    run(
        aws=aws,
        project=project,
        python=python,
        architecture=architecture,
        out=out,
        environment=environment,
        application=application,
        as_json=as_json,
    )


@emr.command(context_settings={"allow_interspersed_args": True})
@arguments.with_aws
def submit(
    aws: AwsSettings,
    argument: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Arguments of the program, after --; submit adds --manifest."),
    ] = None,
    environment: EnvironmentOption = None,
    application: ApplicationOption = None,
    target: TargetOption = None,
    manifest: ManifestOption = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", "-j", metavar="PROGRAM", help="The program: its path, or its name in the project's jobs/."
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="Archive that `package` made; without it, submit packs the project."),
    ] = None,
    project: ProjectOption = Path(),
    python: PythonOption = None,
    architecture: ArchitectureOption = None,
    artifacts: ArtifactsOption = None,
    execution_role: Annotated[
        str | None, typer.Option("--execution-role", metavar="ARN", help="ARN of the role that the job runs with.")
    ] = None,
    release_label: Annotated[
        str | None, typer.Option("--release-label", metavar="LABEL", help="EMR release, for eks targets.")
    ] = None,
    logs: Annotated[str | None, typer.Option("--logs", metavar="S3", help="S3 location for EMR's logs.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Stop the live run of this application first.")] = False,
    if_changed: Annotated[
        bool, typer.Option("--if-changed", help="Do nothing if exactly this job runs; replace any other run.")
    ] = False,
    grace: GraceOption = 600,
    now: Annotated[
        bool, typer.Option("--now", help="Start a job that has a schedule once, at once; the schedule stays as it is.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the request; change nothing.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait until the job runs.")] = True,
    patience: Annotated[float, typer.Option("--patience", metavar="SECONDS", help="How long --follow waits.")] = 900.0,
    as_json: output.JsonFlag = False,
) -> None:
    """Submit a job: upload its files where they are missing, start it, and wait until it runs.

    Refuses (exit code 3) a job that could not work: its consumer is not ACTIVE, the lease table is missing, the release has no
    Spark 4, or the application already has a live run. Submitting the same job twice makes one run.

    A job that is declared with a schedule is not started: EventBridge Scheduler gets the request, and starts it then.
    """
    from kinesis_efo.cli.emr import submit as run

    run(
        aws=aws,
        argument=argument,
        environment=environment,
        application=application,
        target=target,
        manifest=manifest,
        job=job,
        archive=archive,
        project=project,
        python=python,
        architecture=architecture,
        artifacts=artifacts,
        execution_role=execution_role,
        release_label=release_label,
        logs=logs,
        conf=conf,
        replace=replace,
        if_changed=if_changed,
        grace=grace,
        now=now,
        dry_run=dry_run,
        follow=follow,
        patience=patience,
        as_json=as_json,
    )


@emr.command()
@arguments.with_aws
def stop(
    aws: AwsSettings,
    environment: EnvironmentOption = None,
    application: ApplicationOption = None,
    target: TargetOption = None,
    manifest: ManifestOption = None,
    grace: GraceOption = 600,
    as_json: output.JsonFlag = False,
) -> None:
    """Stop an application's runs: each finishes its micro-batch and releases its leases. EMR ends one that takes too long.

    The schedule of its job, if it has one, is deleted first; `submit` sets it again.

    Exit code 1 if a worker still renews the leases afterwards.
    """
    from kinesis_efo.cli.emr import stop as run

    run(
        aws=aws,
        environment=environment,
        application=application,
        target=target,
        manifest=manifest,
        grace=grace,
        as_json=as_json,
    )


@emr.command()
@arguments.with_aws
def status(
    aws: AwsSettings,
    environment: EnvironmentOption = None,
    application: ApplicationOption = None,
    target: TargetOption = None,
    manifest: ManifestOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Show an application's runs, newest first, and where their logs are. Exit code 1 if none is live."""
    from kinesis_efo.cli.emr_runs import status as run

    run(aws=aws, environment=environment, application=application, target=target, manifest=manifest, as_json=as_json)


@emr.command()
@arguments.with_aws
def logs(
    aws: AwsSettings,
    environment: EnvironmentOption = None,
    application: ApplicationOption = None,
    target: TargetOption = None,
    manifest: ManifestOption = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="A run of the application; the newest by default.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many of the log's last lines.")] = 100,
    as_json: output.JsonFlag = False,
) -> None:
    """Show what the driver of a run wrote last, as EMR stored it in S3, and at the end why it failed, in its own words."""
    from kinesis_efo.cli.emr_runs import logs as show

    show(
        aws=aws,
        environment=environment,
        application=application,
        target=target,
        manifest=manifest,
        run=run,
        lines=lines,
        as_json=as_json,
    )
