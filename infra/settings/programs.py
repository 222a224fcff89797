"""Checks the arguments of jobs. The options of a program are parsed from its source; running it would need Spark and AWS.

Programs may use argparse, such as `jobs/archive.py`, or Typer. The arguments of other programs are not checked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import Fault
from infra.settings.model import Job

_ADDED = "--manifest"
_FLAGS = ("store_true", "store_false", "store_const", "append_const", "count")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a program.

    Attributes:
        names: Names of the option, such as `--output`.
        takes_value: Whether a value follows it.
        required: Whether the program refuses to run without it.
    """

    names: tuple[str, ...]
    takes_value: bool = True
    required: bool = False


def within(jobs: Mapping[int, Job], project: Path) -> Iterator[Fault]:
    """Yield faults of jobs whose program does not exist, or would reject the arguments.

    Args:
        jobs: The valid jobs of a file, by their indexes in the file.
        project: Directory to which the paths of programs are relative.
    """
    for number, job in jobs.items():
        path, program = f"jobs.{number}", project / job.program
        try:
            options = command_line(program.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            rule = (
                f"cannot be read in {project.resolve()} ({_why(error)}): name a program of the project that is packed"
            )
            yield Fault(f"{path}.program", job.program, rule)
            continue
        except SyntaxError as error:
            yield Fault(f"{path}.program", job.program, f"is no Python: {error.msg} in line {error.lineno}")
            continue
        if options is not None:
            yield from _arguments(path, job, options)


def command_line(source: str) -> Sequence[Option] | None:
    """Return the options of a program; None if its source does not define them clearly, or it has positional arguments as well.

    Args:
        source: Source code of the program.

    Raises:
        SyntaxError: The program is not valid Python.

    >>> command_line("parser.add_argument('--output', required=True)")
    [Option(names=('--output',), takes_value=True, required=True)]
    >>> command_line("print('takes what comes')")
    """
    tree = ast.parse(source)
    commands = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _is_command(each)]
    added = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and _called(each) == "add_argument"]
    others = {_called(each) for each in ast.walk(tree) if isinstance(each, ast.Call)}
    if "unrecognized arguments" in source:
        others.discard("parse_known_args")  # the program rejects unknown options by its own code
    if len(commands) == 1 and not added:
        found = [_of_typer(*each) for each in _parameters(commands[0])]
    elif added and not commands and not {"parse_known_args", "add_subparsers"} & others:
        found = [_of_argparse(each) for each in added]
    else:
        return None
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _arguments(path: str, job: Job, options: Sequence[Option]) -> Iterator[Fault]:
    by_name = {name: option for option in options for name in option.names}
    offered = ", ".join(option.names[0] for option in options)
    if _ADDED not in by_name:
        rule = f"must take {_ADDED}, by which it is told what to read; it takes {offered}"
        yield Fault(f"{path}.program", job.program, rule)
    given = {_ADDED}
    place = 0
    while place < len(job.arguments):
        text, where = job.arguments[place], f"{path}.arguments.{place}"
        name, equals, _ = text.partition("=")
        option = by_name.get(name)
        place += 1
        if option is None:
            rule = f"is no option of {job.program}, which takes {offered}"
            yield Fault(where, text, rule if text.startswith("-") else f"is the value of no option; {rule}")
            continue
        given.update(option.names)
        if option.takes_value and not equals:
            if place == len(job.arguments):
                yield Fault(where, text, f"must be followed by a value, or {job.program} refuses to run")
            place += 1
    for option in options:
        if option.required and not given.intersection(option.names):
            rule = f"is missing {option.names[0]}, without which {job.program} refuses to run"
            yield Fault(f"{path}.arguments", list(job.arguments), rule)


def _is_command(function: ast.FunctionDef) -> bool:
    return any(_metadata(each.annotation) for each in _all(function.args))


def _all(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, bool]]:
    """Yield each parameter of a function, and whether it has a default."""
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    for number, each in enumerate(placed):
        yield each, number >= len(placed) - len(arguments.defaults)
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield each, default is not None


def _of_typer(parameter: ast.arg, has_default: bool) -> Option | None:
    found = _metadata(parameter.annotation)
    if found is None or _called(found[1]) != "Option":
        return None
    kind, call = found
    types = {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}
    if "tuple" in types or any(each.arg in (None, "count", "is_flag", "flag_value") for each in call.keywords):
        return None
    names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    flag = "bool" in types
    if not names:
        plain = parameter.arg.replace("_", "-")
        names = [f"--{plain}", *([f"--no-{plain}"] if flag else [])]
    # Typer declares the two names of a flag as `--on/--off`.
    parts = [part for name in names for part in name.split("/")]
    return Option(tuple(parts), takes_value=not flag, required=not has_default)


def _metadata(annotation: ast.expr | None) -> tuple[ast.expr, ast.Call] | None:
    """Return the type, and the call of `typer.Option` or `typer.Argument`, in an `Annotated[...]`; None for other annotations."""
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return None
    kind, *extra = annotation.slice.elts
    for each in extra:
        if isinstance(each, ast.Call) and _called(each) in ("Option", "Argument"):
            return kind, each
    return None


def _of_argparse(call: ast.Call) -> Option | None:
    names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    given = {each.arg: each.value for each in call.keywords}
    if len(names) != len(call.args) or not all(name.startswith("-") for name in names) or None in given:
        return None
    action, required = given.get("action"), given.get("required")
    literal = action is None or isinstance(action, ast.Constant)
    if "nargs" in given or not literal or not (required is None or isinstance(required, ast.Constant)):
        return None
    flag = isinstance(action, ast.Constant) and action.value in _FLAGS
    needed = isinstance(required, ast.Constant) and bool(required.value)
    return Option(tuple(sorted(names, key=len, reverse=True)), takes_value=not flag, required=needed)


def _called(call: ast.expr) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _why(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
