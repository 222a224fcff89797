"""`python -m demo`, which `make demo` calls."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from demo.processes import DemoError, end_on_sigterm
from demo.run import Plan, run
from kinesis_efo.errors import KinesisEfoError

_MARK = ".kinesis-efo-demo"


def main(
    directory: Annotated[
        Path, typer.Option(help="Directory for all output. The output of an earlier run is removed.")
    ] = Path("demo-out"),
    events: Annotated[int | None, typer.Option(min=100, help="Number of events; all 362,891 by default.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time over which they are put.")] = 75.0,
    kill: Annotated[bool, typer.Option(help="Kill the job half way.")] = True,
) -> None:
    """Archive a real data set, kill the job half way, restart it, and check that nothing is lost or duplicated."""
    console = Console(force_terminal=False if os.environ.get("CI") else None)
    if not console.is_terminal:
        console.width = 120
    try:
        plan = Plan(_empty(directory.absolute()), events, seconds, kill)
        end_on_sigterm()
        code = run(plan, console)
    except (DemoError, KinesisEfoError) as error:
        console.print(f"demo: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        code = 1
    except KeyboardInterrupt:
        console.print("demo: stopped; every process that it started has ended", highlight=False)
        code = 130
    raise typer.Exit(code)


def _empty(directory: Path) -> Path:
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).exists():
        raise DemoError(f"{directory} holds files that are not the demo's; give another directory with --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()
    return directory


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
