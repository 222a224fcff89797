"""`python -m demo`, which `make demo` calls."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from demo.run import DemoError, Plan, empty, run
from kinesis_efo.errors import KinesisEfoError


def main(
    directory: Annotated[
        Path, typer.Option(help="Directory for all output. The output of an earlier run is removed.")
    ] = Path("demo-out"),
    events: Annotated[int, typer.Option(min=100, help="Number of events.")] = 360_000,
    seconds: Annotated[float, typer.Option(min=1, help="Time over which they are put.")] = 75.0,
    kill: Annotated[bool, typer.Option(help="Kill the job half way.")] = True,
) -> None:
    """Archive flights, kill the job half way, restart it, and check that nothing is lost or duplicated."""
    began = time.monotonic()
    # As Ctrl-C does, so that every process is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plan = Plan(empty(directory.absolute()), events, seconds, kill)
        code = 0 if run(plan, lambda line: typer.echo(f"{time.monotonic() - began:6.1f} s  {line}")) else 1
    except (DemoError, KinesisEfoError) as error:
        typer.echo(f"demo: {error}")
        code = 1
    except KeyboardInterrupt:
        typer.echo("demo: stopped; every process that it started has ended")
        code = 130
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
