"""The output of commands: the result on stdout, as a table or as JSON; remarks on stderr; and the exit codes.

Standard output has only the result, so that it can be piped.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kinesis_efo.errors import naming, visible

WIDE = 10_000
"""Width of output to a file or a pipe, wide enough that no line is wrapped or truncated."""


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    """Done; every check passed."""
    FAILED = 1
    """An error, with a message on stderr; or a check failed."""
    USAGE = 2
    """The command line itself is wrong."""
    REFUSED = 3
    """Nothing was changed: a check prevented it, or the user declined."""
    BEHIND = 4
    """A measurement is above the threshold on the command line."""
    INCOMPLETE = 5
    """The result is incomplete, because some calls failed."""
    INTERRUPTED = 130
    """Interrupted before the work was complete."""


JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]


OUTPUT: Final = "standard output"
_ERROR: Final = "standard error"


class _Stream(io.FileIO):
    """Standard output or standard error. Error messages name the stream; after the first error, further output is discarded."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name = name
        self._failed = False

    def write(self, data: Any) -> int:
        """Write bytes. Errors on standard error are ignored, because there is no other place to report them."""
        if not self._failed:
            try:
                with naming(self._name):
                    return super().write(data)
            except OSError:
                self._failed = True
                if self._name == OUTPUT:
                    raise
        return len(data)


def name_standard_streams() -> None:
    """Replace sys.stdout and sys.stderr, even if the process started without them, with streams whose I/O errors contain the stream's name."""
    # Replace a closed stream with /dev/null, opened in the wrong mode. Using it still fails, but no file or socket gets its descriptor.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    for name, what in (("stdout", OUTPUT), ("stderr", _ERROR)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # a caller in this process, such as a test, has replaced the stream
        descriptor = os.open(os.devnull, os.O_RDONLY) if stream is None else stream.fileno()
        encoding, errors = getattr(stream, "encoding", "utf-8"), getattr(stream, "errors", "backslashreplace")
        lines = getattr(stream, "line_buffering", True)
        raw = io.BufferedWriter(_Stream(descriptor, what))
        setattr(sys, name, io.TextIOWrapper(raw, encoding, errors, line_buffering=lines))


class _Piped(Console):
    """Writes to a file or a pipe, without the blanks with which tables fill their last column."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects as the base class does, but omit the blanks at the ends of lines."""
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        self.file.flush()


def terminal() -> Console:
    """Return a console on standard output. Markup is disabled, because parts of ARNs look like markup."""
    kind, width = (Console, None) if sys.stdout.isatty() else (_Piped, WIDE)
    return kind(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def answer(as_json: bool, data: Any, view: Callable[[], RenderableType]) -> None:
    """Print a command's result.

    The keys of `data` are a public interface: do not rename or remove them. `view` is called only if its result is printed.
    """
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        terminal().print(view())


def line(data: Any) -> None:
    """Print plain data as one line of JSON."""
    typer.echo(json.dumps(data, separators=(",", ":")))


def remark(text: str) -> None:
    """Print a line on stderr."""
    typer.echo(visible(text), err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType | None]], title: str | None = None) -> Table:
    """Create a table for a terminal.

    In `columns`, `>` before a title aligns the column to the right, for numbers; `=` keeps its cells on one line, for ids. None in a cell
    prints as `-`.
    """
    made = Table(
        box=SIMPLE_HEAD,
        title=title and text(title, "bold"),
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        number, whole = column.startswith(">"), column.startswith("=")
        made.add_column(column.lstrip(">="), justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        made.add_row(*("-" if cell is None else text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def text(content: str, style: str = "", *, keep: str = "", one_line: bool = False) -> Text:
    """Return a text in a style, such as a color, for terminals that support it. Control characters are made visible, except those in `keep`.

    `one_line` truncates the text at the terminal's edge.
    """
    return Text(visible(content, keep), style, overflow="ellipsis" if one_line else None, no_wrap=one_line)


def count(number: int, what: str) -> str:
    """Format a number with its noun.

    >>> count(1, "shard"), count(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def stop(code: ExitCode) -> typer.Exit:
    """Create the exception that ends a command with an exit code."""
    return typer.Exit(int(code))


def missing_data(missing: Mapping[str, Exception]) -> list[dict[str, str]]:
    """Convert the errors of streams to plain data, for JSON. `missing` has the errors by logical name."""
    return [{"stream": name, "error": str(error)} for name, error in missing.items()]
