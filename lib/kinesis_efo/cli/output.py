"""How every command answers: tables for people or JSON for scripts, remarks on stderr, and exit codes that mean one thing.

Standard output carries the answer and nothing else, so that it can be piped. Relies on Rich for tables and terminals.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Annotated, Any, TextIO, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Columns assumed where the output is no terminal: nothing is folded or cut for a file or a pipe."""


class ExitCode(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    """Done; what was checked is as it should be."""
    FAILED = 1
    """An error, with a message on stderr; or something that was checked is not as it should be."""
    USAGE = 2
    """The command line itself is wrong."""
    REFUSED = 3
    """Nothing was changed: a guard refused, or the person who was asked said no."""
    BEHIND = 4
    """What was measured is above the threshold that the command line gave."""
    INTERRUPTED = 130
    """Interrupted before the work was complete."""


JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]


def terminal(file: TextIO | None = None) -> Console:
    """A console on a file, standard output by default, that prints texts as they are: ARNs hold what looks like markup."""
    file = sys.stdout if file is None else file
    width = None if file.isatty() else WIDE
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def answer(as_json: bool, data: Any, view: Callable[[], RenderableType]) -> None:
    """Print a command's answer.

    Args:
        as_json: Print `data`; else what `view` makes.
        data: Plain data. Its keys are an interface: they only grow.
        view: Makes the table; called only where it is wanted.
    """
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        terminal().print(view())


def line(data: Any) -> None:
    """Print plain data as one line of JSON: one of many."""
    typer.echo(json.dumps(data, separators=(",", ":")))


def remark(text: str) -> None:
    """Say something on stderr that is not the answer."""
    typer.echo(text, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType | None]], title: str | None = None) -> Table:
    """A table of texts.

    Args:
        columns: Titles. One that begins with `>` is a column of numbers, aligned to the right; with `=`, of ids that are not
            folded where the terminal is narrow.
        rows: Their cells; None prints as `-`.
        title: What stands above.
    """
    made = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False
    )
    for column in columns:
        number, whole = column.startswith(">"), column.startswith("=")
        made.add_column(column.lstrip(">="), justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        made.add_row(*("-" if cell is None else cell for cell in row))
    return made


def painted(text: str, style: str) -> Text:
    """A text in a colour, where the terminal has colours."""
    return Text(text, style)


def count(number: int, what: str) -> str:
    """A number of things, in words.

    >>> count(1, "shard"), count(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def stop(code: ExitCode) -> typer.Exit:
    """The exception that ends a command with that code, for `raise`."""
    return typer.Exit(int(code))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed.

    Args:
        question: What is about to happen, without the question mark.
        yes: It was answered on the command line.

    Raises:
        typer.Exit: The answer was no, or nobody can be asked; with `ExitCode.REFUSED`.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        remark(f"kinesis-efo: {question}? Nobody can be asked here: nothing was changed. Say --yes to do it")
        raise stop(ExitCode.REFUSED)
    if not typer.confirm(f"{question}?", err=True):
        remark("kinesis-efo: nothing was changed")
        raise stop(ExitCode.REFUSED)
