"""Ends a command that failed: with a message, or one JSON document for scripts, on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from kinesis_efo.errors import KinesisEfoError, UsageError, visible
from kinesis_efo_tools.cli.output import OUTPUT, ExitCode


class CommandExit(Exception):
    """Ends a command with an exit code. `message` has the reason and what the user should do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm a change, unless `yes` (the option --yes) is set.

    `question` has no question mark. Raises CommandExit with `ExitCode.REFUSED` if the answer is no, or stdin is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandExit(
            ExitCode.REFUSED, f"{question}? Standard input is not a terminal: nothing was changed. Use --yes to confirm"
        )
    if not typer.confirm(f"{visible(question)}?", err=True):
        raise CommandExit(ExitCode.REFUSED, "nothing was changed")


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line contains --json, even if it is not valid otherwise."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def fail(error: Exception, *, as_json: bool) -> NoReturn:
    """Print an error, and raise SystemExit with its exit code.

    An unexpected error is a bug: it is raised again, so that Python prints the traceback.
    """
    if isinstance(error, BrokenPipeError) and error.filename == OUTPUT:
        raise SystemExit(int(ExitCode.FAILED))  # the program that read the output has closed the pipe
    kind, code, message = _explained(error)
    document = {"error": {"kind": kind, "exitCode": int(code), "message": message}}
    shown = visible(message, keep="\n")
    typer.echo(json.dumps(document) if as_json else f"kinesis-efo: {shown}", err=True)
    raise SystemExit(int(code)) from None


def _explained(error: Exception) -> tuple[str, int, str]:
    kind = type(error).__name__
    match error:
        case CommandExit():
            return error.code.name.capitalize(), error.code, str(error)
        case UsageError():
            return kind, ExitCode.USAGE, str(error)
        case KinesisEfoError():
            return kind, ExitCode.FAILED, str(error)
    if hasattr(error, "format_message"):  # a usage error from the command-line parser
        return "UsageError", error.exit_code, error.format_message()  # type: ignore[attr-defined]
    from kinesis_efo.aws_errors import CALL_ERRORS, describe
    from kinesis_efo_tools.operate.findings import failed_call

    if not isinstance(error, CALL_ERRORS):
        raise error
    action = f"the call {error.operation_name}" if hasattr(error, "operation_name") else "the call"
    return kind, ExitCode.FAILED, f"{describe(error)}; {failed_call('', error, action).fix}"
