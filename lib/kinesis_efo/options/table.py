"""A table of options: reads texts into a settings object and reports everything that is wrong with them at once."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kinesis_efo.errors import OptionsError

Settings = TypeVar("Settings")


class Refused(ValueError):
    """A value that is well formed but not offered; its message replaces the option's rule."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table of options.

    Attributes:
        name: As documented; matched without regard to case.
        read: Text to value; raises ValueError.
        rule: What the text must be, completing "must be ...".
        default: As documented; in backticks where it can be written as a value.
        meaning: One line for the documentation.
        field: Field of the settings, with a dot for one of a nested object: `aws.region`. Empty where the value is only checked.
        needs: Option without which this one means nothing; `name=value` where it must have that value.
        at_most: Option whose value this one must not exceed.
    """

    name: str
    read: Callable[[str], Any]
    rule: str
    default: str
    meaning: str
    field: str = ""
    needs: str = ""
    at_most: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """The options that a user gave.

    Attributes:
        names: All of them, as documented.
        values: Those that could be read, by name.
    """

    names: Set[str]
    values: Mapping[str, Any]


class OptionTable(Generic[Settings]):
    """The options of one thing.

    Args:
        subject: What has the options, as messages name it.
        settings: What the options become: a dataclass whose fields all have defaults.
        options: The rows.
        ignored: Names, in lower case, that are someone else's.
    """

    def __init__(
        self, subject: str, settings: type[Settings], options: Sequence[Option], ignored: Collection[str] = ()
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._by_name = {option.name: option for option in options}
        self._by_lower_name = {option.name.lower(): option for option in options}
        self._ignored = ignored

    def parse(
        self, texts: Mapping[str, str], contradictions: Callable[[Given], Iterable[str]] = lambda _given: ()
    ) -> Settings:
        """Read Spark's options.

        Args:
            texts: By name, in any case.
            contradictions: Faults that no row of the table can tell alone.

        Raises:
            OptionsError: One or more options are wrong, unknown or missing; all of them are named.
        """
        faults: list[str] = []
        names: set[str] = set()
        values: dict[str, Any] = {}
        for name, text in texts.items():
            option = self._by_lower_name.get(name.lower())
            if option is None:
                if name.lower() not in self._ignored:
                    faults.append(self._unknown(name))
                continue
            names.add(option.name)
            try:
                values[option.name] = option.read(text)
            except ValueError as error:
                reason = str(error) if isinstance(error, Refused) else f"must be {option.rule}"
                faults.append(f"{self._called(option)} {reason}; got {text!r}")
        given = Given(names, values)
        faults += [*contradictions(given), *self._broken_rules(given)]
        if faults:
            raise OptionsError(faults)
        return self._made(values)

    def _called(self, option: Option) -> str:
        return f"{self._subject} option '{option.name}'"

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name.lower(), self._by_lower_name, n=1)
        hint = f"; did you mean '{self._by_lower_name[near[0]].name}'?" if near else ""
        return f"{self._subject} has no option {name!r}{hint}"

    def _broken_rules(self, given: Given) -> Iterator[str]:
        for option in self._by_name.values():
            other, _, wanted = option.needs.partition("=")
            if option.name in given.names and other:
                if not wanted and other not in given.names:
                    yield f"{self._called(option)} needs option '{other}'"
                elif wanted and given.values.get(other) != wanted:
                    yield f"{self._called(option)} needs option '{other}' to be {wanted}"
            if option.at_most and not given.names.isdisjoint({option.name, option.at_most}):
                value, most = (
                    given.values[each.name] if each.name in given.values else each.read(each.default.strip("`"))
                    for each in (option, self._by_name[option.at_most])
                )
                if value > most:
                    yield f"{self._called(option)} must not exceed '{option.at_most}'"

    def _made(self, values: Mapping[str, Any]) -> Settings:
        groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in values.items():
            group, _, field = self._by_name[name].field.rpartition(".")
            if field:
                groups[group][field] = value
        made = self._settings()
        own = groups.pop("", {})
        nested = {group: replace(getattr(made, group), **fields) for group, fields in groups.items()}
        return replace(made, **own, **nested)  # type: ignore[type-var]
