"""Declares a command as a class: its fields are the options, its docstring is the help, and calling it does the work.

The implementation is imported when it is called, so that help and completion are quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform, get_type_hints


class Command(Protocol):
    """A command: an object whose fields are the options."""

    def __call__(self) -> None:
        """Run the command."""


C = TypeVar("C", bound=Command)


class Group(NamedTuple):
    """Marks a field whose value is built from several options, as in `Annotated[AwsSettings, Group(aws_settings)]`.

    `make` is a function that has a parameter for each option and returns the field's value.
    """

    make: Callable[..., Any]


@dataclass_transform(kw_only_default=True, frozen_default=True)
def command(register: Callable[[Callable[..., None]], Any]) -> Callable[[type[C]], type[C]]:
    """Create a decorator that turns a class into a dataclass and registers it as a command.

    `register` is Typer's decorator for functions, such as `app.command("list")`.
    """

    def declare(cls: type[C]) -> type[C]:
        made = dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)
        register(_function(made))
        return made

    return declare


def _function(options: type[Command]) -> Callable[..., None]:
    """Return a function that runs the command, with a parameter for each option, as typer expects."""
    # Place the options of groups last, so that the help begins with the command's own options.
    shown = sorted(_options(options), key=lambda each: each[1])
    signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each, _ in shown])

    def carry_out(**values: Any) -> None:
        _made(options, values)()

    carry_out.__doc__, carry_out.__name__ = options.__doc__, options.__name__.lower()
    carry_out.__annotations__ = {each.name: each.annotation for each, _ in shown}
    carry_out.__signature__ = signature  # type: ignore[attr-defined]
    return carry_out


def _parts(make: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Group | None]]:
    """Return the parameters of a class or function, each with the `Group` in its annotation (None if there is none)."""
    hints = get_type_hints(make, include_extras=True)
    for name, each in inspect.signature(make).parameters.items():
        group = next((mark for mark in getattr(hints[name], "__metadata__", ()) if isinstance(mark, Group)), None)
        yield each.replace(annotation=hints[name]), group


def _options(make: Callable[..., Any], depth: int = 0) -> Iterator[tuple[inspect.Parameter, int]]:
    for each, group in _parts(make):
        if group is None:
            yield each, depth
        else:
            yield from _options(group.make, depth + 1)


def _made(make: Callable[..., Any], values: dict[str, Any]) -> Any:
    return make(
        **{each.name: values[each.name] if group is None else _made(group.make, values) for each, group in _parts(make)}
    )
