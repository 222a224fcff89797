"""``kinesis-efo quickstart``: runs the local AWS, a stream of flights, and a Spark program that prints the flights."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import typer
from rich.console import Console

from kinesis_efo.driver.java import Java, find_java
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.options import AwsSettings
from kinesis_efo_local import LocalAws, declare
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.quickstart import Quickstart
from kinesis_efo_tools.cli.ending import EndRequest, SignalWaiter
from kinesis_efo_tools.cli.local_options import Declaration, wanted, write_manifest
from kinesis_efo_tools.cli.local_process import Ready
from kinesis_efo_tools.cli.quickstart.child import Child
from kinesis_efo_tools.cli.quickstart.feeding import Feeder
from kinesis_efo_tools.cli.quickstart.flights import flights
from kinesis_efo_tools.operate import machine
from kinesis_efo_tools.operate.findings import Finding, Status

APPLICATION: Final = "quickstart"
STREAM: Final = "flights"
PROGRAM: Final = "first.py"
_NO_PROXY: Final = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
_LOOK_EVERY: Final = 0.2
_ERRORS: Final = 25


def quickstart(given: Quickstart) -> None:
    check(find_java(), machine.spark())
    asked = wanted([f"{STREAM}:2"], APPLICATION, None, None)
    assert asked is not None
    path = Path(PROGRAM)
    try:
        own = write(path)
    except OSError as error:
        raise ConfigurationError(
            f"{PROGRAM} cannot be written into {Path.cwd()}: {error}; go to another folder"
        ) from None
    end = SignalWaiter()
    with suppress(EndRequest), ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="kinesis-efo-quickstart-", ignore_cleanup_errors=True))
        try:
            aws = stack.enter_context(LocalAws(port=given.port))
        except OSError as error:
            raise ConfigurationError(
                f"the local AWS cannot listen on port {given.port}: {error}; choose another --port"
            ) from None
        point_to(aws.environment)
        with end.at_once():
            ready = _declare(aws, asked)
        console = Console()
        typer.echo(introduction(ready, console.width if console.is_terminal else output.WIDE, own=own))
        put = ((STREAM, msgspec.json.encode(flight), flight.aircraft) for flight in flights(Random(2013)))
        feeder = stack.enter_context(Feeder(put, AwsSettings(endpoint_url=aws.endpoint_url), given.rate))
        child = stack.enter_context(program(path, Path(scratch)))
        child.start()
        while child.exit_code is None and not end.wait(_LOOK_EVERY):
            if feeder.error is not None:
                raise feeder.error
        if child.exit_code:
            for line in child.tail(_ERRORS).splitlines():
                output.remark(line)
            output.remark(f"kinesis-efo: {PROGRAM} ended with exit code {child.exit_code}; its last lines are above")
            raise output.stop(output.ExitCode.FAILED)
    typer.echo(f"{PROGRAM} and {asked.manifest} stay; everything else has ended")


def check(java: Java, spark: Finding) -> None:
    """Check Java and PySpark.

    Raises ConfigurationError if something is missing or too old; the message says how to install it.
    """
    if not java.runs_spark:
        raise ConfigurationError(java.remedy)
    if spark.status is not Status.PASSED:
        raise ConfigurationError(f"{spark.detail}; pip install 'kinesis-efo[spark,local]'")


def template() -> str:
    """Return the source text of the program that quickstart writes."""
    return files("kinesis_efo_tools.cli.quickstart").joinpath("first.py.txt").read_text()


def write(path: Path) -> bool:
    """Write the program, unless the file exists. Returns whether the file differs from the template."""
    if not path.exists():
        path.write_text(template())
    return path.read_text() != template()


def program(path: Path, scratch: Path) -> Child:
    """Create the process for the program at `path`, without starting it. It shares this process' standard output.

    `scratch` is the directory for the program's standard error and for Spark's files; the caller removes it.
    """
    submit = [
        "--master", "local[2]",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch}",
        "pyspark-shell",
    ]  # fmt: skip
    variables = {
        "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }
    return Child([sys.executable, str(path)], variables, scratch / "stderr", shown=True)


def point_to(environment: Mapping[str, str]) -> None:
    """Set the environment variables that point this process and its children to the local AWS, and remove all other AWS variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(environment)
    os.environ.update(_NO_PROXY)


def _declare(aws: LocalAws, asked: Declaration) -> Ready:
    return Ready.of_this_process(
        aws.endpoint_url, aws.environment, write_manifest(asked, declare(aws, asked.application)), asked.names
    )


def introduction(ready: Ready, width: int, *, own: bool) -> str:
    """Return the text that is printed first: what is running, and commands to copy into another shell.

    `own` is whether the user has changed the program. `width` is the terminal's width in columns.
    """
    kept = "has changes of yours, so it is left as it is" if own else "is yours to change: the rows below come from it"
    fill = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    setting = ["  export"]
    for each in ready.assignments:
        # Wrap the `export` command at the terminal's width. Backslashes join the lines, so that the shell reads them as one command.
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
            "  kinesis-efo top",
            "Spark starts; its rows come below. Ctrl-C ends everything",
        )
    )
