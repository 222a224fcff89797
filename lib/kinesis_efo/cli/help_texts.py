"""Makes help readable: names the values of options, where typer writes Python's types, and lets it fold paragraphs."""

from __future__ import annotations

from typing import Any, Final

import typer

_METAVARS: Final = {"bool": "FLAG", "int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "PATH"}


def readable(command: Any) -> Any:
    """Name the values of options that declare no name, in a command and those below it. Returns the command."""
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n"))
    options = [each for each in command.params if each.param_type_name == "option"]
    for parameter in [*options, command.get_help_option(typer.Context(command))]:
        if parameter.metavar is None and (name := _METAVARS.get(_type_of(parameter))):
            parameter.metavar = name
    for below in getattr(command, "commands", {}).values():
        readable(below)
    return command


def _type_of(parameter: Any) -> str:
    # Of earlier versions of typer, which write names of their own, there is no such method.
    return str(getattr(parameter, "bare_type", str)()).removeprefix("list[").removesuffix("]")
