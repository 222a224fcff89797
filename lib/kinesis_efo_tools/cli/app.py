"""The `kinesis-efo` command group: lists the commands, imports a command when it is called, and prints errors.

Each command's module defines a Typer app named `app`. The module is imported late, so that help and completion are fast.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from kinesis_efo import __version__
from kinesis_efo_tools.cli.ending import ended_by_interrupt
from kinesis_efo_tools.cli.failing import fail, wants_json
from kinesis_efo_tools.cli.output import name_standard_streams


@dataclass(frozen=True, slots=True)
class Entry:
    """A command whose module has not been imported yet."""

    module: str
    summary: str


COMMANDS: Final = {
    "doctor": Entry("kinesis_efo_tools.cli.commands.doctor", "Check everything a query of an application needs."),
    "emr": Entry("kinesis_efo_tools.cli.commands.emr", "Pack jobs, run them on EMR, stop them."),
    # The glue group has the same subcommands as emr; only the target differs.
    "glue": Entry(
        "kinesis_efo_tools.cli.commands.emr",
        "Run jobs on Glue, stop them: the commands of emr, with --target glue:<job>.",
    ),
    "lag": Entry("kinesis_efo_tools.cli.commands.lag", "Show how far applications are behind, shard by shard."),
    "leases": Entry("kinesis_efo_tools.cli.commands.leases", "See an application's leases, and change them by hand."),
    "local": Entry("kinesis_efo_tools.cli.commands.local", "Serve Kinesis with Enhanced Fan-Out on this machine."),
    "manifest": Entry(
        "kinesis_efo_tools.cli.commands.manifest", "Write an application's manifest, show it, or check it against AWS."
    ),
    "put": Entry("kinesis_efo_tools.cli.commands.put", "Write lines or files into a stream."),
    "quickstart": Entry(
        "kinesis_efo_tools.cli.commands.quickstart", "Read a stream with Spark on this machine, in a minute."
    ),
    "shards": Entry("kinesis_efo_tools.cli.commands.shards", "Show the shards of an application's streams as a tree."),
    "tail": Entry("kinesis_efo_tools.cli.commands.tail", "Print the records of a stream."),
    "top": Entry("kinesis_efo_tools.cli.commands.top", "Watch a live run: what is slow, and why."),
}


_METAVARS: Final = {"bool": "FLAG", "int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "PATH"}
"""Metavars (placeholders for the values of options in the help), by Python type."""


_FORMER: Final = {"--app": "--application"}
"""Maps deprecated option names to their replacements. A deprecated name still works, but prints a warning."""
_HELP: Final = ["-h", "--help"]


class LazyGroup(TyperGroup):
    """A command group that imports a command when it is called, not when it is listed."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, sorted as in the help."""
        return sorted(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return the command named `cmd_name`; None if it does not exist."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(cmd_name, help=entry.summary) if self._listing else load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names. If it does not exist, the error suggests similar names."""
        names: Any = dict.fromkeys(COMMANDS)  # the parser needs only the names, to suggest similar ones
        self.commands = names
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group from the summaries in `COMMANDS`, without importing the commands."""
        with self._summaries():
            _name_values(self)
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name from `COMMANDS`, without importing the commands."""
        with self._summaries():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _summaries(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def load(name: str, entry: Entry) -> Any:
    """Import a command's module and return the command, with `name` as its name. The commands emr and glue share a module."""
    found = typer.main.get_command(importlib.import_module(entry.module).app)
    found.name = name
    for below in getattr(found, "commands", {}).values():
        # emr and glue share their subcommands: replace the group's name in the examples of the help.
        below.epilog = re.sub("kinesis-efo [a-z]+", f"kinesis-efo {name}", below.epilog or "", count=1)
    return readable(found)


def readable(command: Any) -> Any:
    """Prepare the help of a command and its subcommands: join the lines of paragraphs, and set the metavars of options."""
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n"))
    _name_values(command)
    for below in getattr(command, "commands", {}).values():
        readable(below)
    return command


def _name_values(command: Any) -> None:
    for parameter in [*command.params, command.get_help_option(typer.Context(command, help_option_names=_HELP))]:
        if (name := _METAVARS.get(_type_of(parameter))) is None:
            continue
        if parameter.param_type_name == "argument":
            parameter.bare_type = lambda name=name: name
        elif parameter.metavar is None:
            parameter.metavar = name


def _type_of(parameter: Any) -> str:
    # Parameters in earlier versions of typer do not have `bare_type`; return an empty string, which keeps typer's placeholder.
    return str(getattr(parameter, "bare_type", str)()).removeprefix("list[").removesuffix("]")


app = typer.Typer(
    name="kinesis-efo",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"kinesis-efo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Log details to standard error, and print the traceback of an error.")
    ] = False,
) -> None:
    """Amazon Kinesis with Enhanced Fan-Out for PySpark."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with `arguments` (None: `sys.argv[1:]`). An error becomes a message on stderr and an exit code (`ExitCode`)."""
    name_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words.index("--") if "--" in words else len(words)
    for at, (name, mark, value) in enumerate(word.partition("=") for word in words[:own]):
        if name in _FORMER:
            typer.echo(f"kinesis-efo: {name} is {_FORMER[name]} now", err=True)
            words[at] = f"{_FORMER[name]}{mark}{value}"
    as_json, debug = wants_json(words), "--debug" in words[:own]
    if debug:
        words.remove("--debug")
        logging.basicConfig(level=logging.DEBUG)
    try:
        with ended_by_interrupt():
            # In standalone mode, typer prints usage errors itself, in a box. With --json, disable it, so that `fail` prints them as JSON.
            sys.exit(app(args=words, standalone_mode=not as_json) or 0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        fail(error, as_json=as_json)
