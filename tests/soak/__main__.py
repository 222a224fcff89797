"""`python -m tests.soak`, which `make soak` calls."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.soak.report import show
from tests.soak.run import Plan, soak

_MARK = ".kinesis-efo-soak"


def main(
    minutes: Annotated[
        float, typer.Option(envvar="SOAK_MINUTES", min=0.1, help="How long records are written.")
    ] = 30.0,
    seed: Annotated[int, typer.Option(envvar="SOAK_SEED", help="Seed of all randomness.")] = 2013,
    rate: Annotated[float, typer.Option(envvar="SOAK_RATE", min=1, help="Records per second between bursts.")] = 400.0,
    reshard: Annotated[
        float, typer.Option(envvar="SOAK_RESHARD_SECONDS", min=1, help="Seconds between two reshards, on average.")
    ] = 40.0,
    life: Annotated[
        float, typer.Option(envvar="SOAK_LIFE_SECONDS", min=10, help="Seconds until the driver is killed, on average.")
    ] = 150.0,
    directory: Annotated[
        Path, typer.Option(help="Directory for all output. The output of an earlier run is removed.")
    ] = Path("soak-out"),
) -> None:
    """Read a stream for a long time under faults; no record may be lost, doubled or out of order, and no resource may grow."""
    console = Console(force_terminal=False if os.environ.get("CI") else None)
    directory = directory.absolute()
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).exists():
        raise typer.BadParameter(f"{directory} holds files that are not the soak's; give another directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()
    # The producer takes its credentials from the environment, as every SDK does.
    os.environ.update(AWS_ACCESS_KEY_ID="soak", AWS_SECRET_ACCESS_KEY="soak")
    plan = Plan(
        directory,
        minutes * 60,
        seed,
        rate=rate,
        reshard_seconds=reshard,
        life_seconds=life,
        say=lambda line: console.print(line, highlight=False),
    )
    report = soak(plan)
    show(report, console, directory)
    raise typer.Exit(1 if report.violations else 0)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
