"""`python -m demo`, which `make demo` calls. Relies on `run`."""

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
        Path, typer.Option(help="Where everything goes. What an earlier run left there is removed.")
    ] = Path("demo-out"),
    events: Annotated[int | None, typer.Option(min=100, help="How many events; all 362,891 if not given.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long putting them takes.")] = 75.0,
    kill: Annotated[bool, typer.Option(help="Kill the job half way.")] = True,
) -> None:
    """Archive a real stream, kill the job half way, start it again, and see that nothing is lost or twice."""
    console = Console(force_terminal=False if os.environ.get("CI") else None)
    if not console.is_terminal:
        console.width = 120
    try:
        plan = Plan(_emptied(directory.absolute()), events, seconds, kill)
        end_on_sigterm()
        code = run(plan, console)
    except (DemoError, KinesisEfoError) as error:
        console.print(f"demo: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        code = 1
    except KeyboardInterrupt:
        console.print("demo: stopped; every process it had started has ended", highlight=False)
        code = 130
    raise typer.Exit(code)


def _emptied(directory: Path) -> Path:
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).exists():
        raise DemoError(f"{directory} holds something that is not the demo's; give another one with --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()
    return directory


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
