"""``kinesis-efo quickstart``: local AWS, a stream of flights, and a program that reads it, all shown at work."""

from __future__ import annotations

import os
import textwrap
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import typer
from rich.console import Console

from kinesis_efo.cli import output
from kinesis_efo.cli.commands.quickstart import Quickstart
from kinesis_efo.cli.ending import Asked, End
from kinesis_efo.cli.local_options import Wanted, wanted, write_manifest
from kinesis_efo.cli.local_process import Ready
from kinesis_efo.cli.quickstart import program
from kinesis_efo.cli.quickstart.display import Display, View
from kinesis_efo.cli.quickstart.feeding import Feeder
from kinesis_efo.cli.quickstart.flights import flights
from kinesis_efo.cli.quickstart.program import Program, latest
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.local import LocalAws, declare
from kinesis_efo.operate import machine
from kinesis_efo.operate.findings import Finding, Status
from kinesis_efo.options import AwsSettings

APPLICATION: Final = "quickstart"
STREAM: Final = "flights"
PROGRAM: Final = "first.py"
_NO_PROXY: Final = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
_LOOK_EVERY: Final = 0.2
_ROWS: Final = 12
_ERRORS: Final = 25


def quickstart(given: Quickstart) -> None:
    """Carry out the command."""
    check(machine.java(), machine.spark())
    asked = wanted([f"{STREAM}:2"], APPLICATION, None, None)
    assert asked is not None
    path = Path(PROGRAM)
    try:
        own = program.write(path)
    except OSError as error:
        raise ConfigurationError(
            f"{PROGRAM} cannot be written into {Path.cwd()}: {error}; go to another folder"
        ) from None
    end = End()
    with suppress(Asked), ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="kinesis-efo-quickstart-", ignore_cleanup_errors=True))
        try:
            aws = stack.enter_context(LocalAws(port=given.port))
        except OSError as error:
            raise ConfigurationError(
                f"the local AWS cannot listen on port {given.port}: {error}; choose another --port"
            ) from None
        _point_to(aws)
        with end.at_once():
            ready = _declare(aws, asked)
        console = Console(highlight=False)
        display = Display(console, PROGRAM)
        display.say(introduction(ready, console.width if console.is_terminal else output.WIDE, own=own))
        feeder = stack.enter_context(
            Feeder(STREAM, AwsSettings(endpoint_url=aws.endpoint_url), flights(Random(2013)), given.rate)
        )
        running = stack.enter_context(Program(path, Path(scratch)))
        with display:
            code = _watch(end, display, feeder, running)
        if code is not None:
            _tell_end(code, running)
            if code:
                raise output.stop(output.ExitCode.FAILED)
    typer.echo(f"{PROGRAM} and {asked.manifest} stay; everything else has ended")


def check(java: Finding, spark: Finding) -> None:
    """Check what Spark needs.

    Raises:
        ConfigurationError: Something is missing or too old; the message says how to get it.
    """
    if java.status is not Status.PASSED:
        raise ConfigurationError(
            f"Spark needs Java 17 or 21, but {java.detail}. Install one (Debian, Ubuntu: sudo apt-get install "
            "openjdk-17-jre-headless; macOS: brew install openjdk@17; else https://adoptium.net) and, if it is not the java on the "
            "PATH, point JAVA_HOME to it"
        )
    if spark.status is not Status.PASSED:
        raise ConfigurationError(f"{spark.detail}; pip install 'kinesis-efo[spark,local]'")


def _point_to(aws: LocalAws) -> None:
    """Let this process and its children reach the local AWS, and nothing else: no setting of the user's leads to AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(aws.environment | _NO_PROXY)


def _declare(aws: LocalAws, asked: Wanted) -> Ready:
    return Ready.of_this_process(
        aws.endpoint_url, aws.environment, write_manifest(asked, declare(aws, asked.application)), asked.names
    )


def introduction(ready: Ready, width: int, *, own: bool) -> str:
    """What runs, and how to look at it from another shell: lines that can be copied, of whole words.

    Args:
        ready: The local AWS.
        width: Columns of the terminal.
        own: Whether the program has changes of the user's.
    """
    kept = (
        "has changes of yours, so it is left as it is"
        if own
        else "is yours to change: what you see below comes from it"
    )
    fill = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    setting = ["  export"]
    for each in ready.assignments:
        # The shell joins lines that end in a backslash.
        if len(f"{setting[-1]} {each} \\") <= width:
            setting[-1] += f" {each}"
        else:
            setting.append(f"    {each}")
    return "\n".join(
        (
            *fill(f"local AWS at {ready.endpointUrl}, with a stream of flights", width),
            *fill(f"{PROGRAM} {kept}", width),
            "in another shell:",
            " \\\n".join(setting),
            f"  kinesis-efo tail -s {STREAM}",
            "  kinesis-efo lag",
        )
    )


def _watch(end: End, display: Display, feeder: Feeder, running: Program) -> int | None:
    """Show the run until it ends.

    Returns:
        The exit code of the program, if it ended by itself.

    Raises:
        KinesisEfoError: Nothing can be put any more.
    """
    view = View()
    while not end.wait(_LOOK_EVERY):
        code = running.exit_code
        for progress in running.news():
            view = replace(
                view,
                rows_read=view.rows_read + progress.rows_in,
                rows_out=view.rows_out + (progress.rows_out or 0),
                behind_millis=progress.behind_millis,
                batch=progress.batch,
            )
        view = replace(view, records_in=feeder.records, rows=latest(running.printed, _ROWS))
        display.show(view)
        if feeder.error is not None:
            raise feeder.error
        if code is not None:
            return code
    return None


def _tell_end(code: int, running: Program) -> None:
    if code == 0:
        typer.echo(running.printed.rstrip())
        typer.echo(f"{PROGRAM} has come to its end")
    else:
        output.remark("\n".join(running.errors.splitlines()[-_ERRORS:]))
        output.remark(f"kinesis-efo: {PROGRAM} ended with exit code {code}; its last lines are above")
