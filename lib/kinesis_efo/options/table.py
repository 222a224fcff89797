"""A table of options, which parses strings into a settings object and reports all errors at once."""

from __future__ import annotations

import difflib
import logging
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from kinesis_efo.errors import OptionsError
from kinesis_efo.options.readers import refusal

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table of options."""

    name: str  # The documented name, which is not case-sensitive
    read: Callable[[str], Any]  # Parses a value; raises ValueError if the value is invalid
    rule: str  # The allowed values, as the rest of the error message "must be ..."
    default: str  # The default as the documentation shows it; in backticks if it is a valid value
    meaning: str
    field: str = ""  # The settings field for the value, such as `aws.region`; empty if the value is only validated
    needs: str = ""  # Another option that must also be set
    of_run: bool = False  # Whether queries that share a run must set the same value
    formerly: tuple[str, ...] = ()  # Old names, which are accepted with a warning
    also: tuple[str, ...] = ()  # Accepted aliases: the names that other Kinesis connectors use for this option
    instead: str = ""  # If this option is obsolete (accepted with a warning): what to use instead


class OptionTable(Generic[Settings]):
    """Parses options into a dataclass.

    Args:
        subject: The name of the source or sink in messages, for example "kinesis-efo sink".
        settings: The dataclass; all of its fields need defaults.
        ignored: Names (in lower case) of options to ignore silently.
        removed: Names of former options, which are ignored with a warning.
    """

    def __init__(
        self,
        subject: str,
        settings: type[Settings],
        options: Sequence[Option],
        ignored: Collection[str] = (),
        removed: Collection[str] = (),
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._by_name = {option.name: option for option in options}
        current = [option for option in options if not option.instead]
        self._by_lower_name = {name.lower(): option for option in current for name in (option.name, *option.also)}
        renamed = "is now '{}'; the next minor version refuses the old name"
        gone = "has no effect any more; remove it, because the next minor version refuses it"
        self._old: dict[str, tuple[str, Option | None, str]] = {name.lower(): (name, None, gone) for name in removed}
        for option in options:
            obsolete = option.instead and f"is obsolete: {option.instead}; the next minor version refuses it"
            old = (option.name, *option.formerly) if obsolete else option.formerly
            self._old |= {name.lower(): (name, option, obsolete or renamed.format(option.name)) for name in old}
        self._ignored = ignored
        self._warned: set[str] = set()

    def parse(
        self,
        texts: Mapping[str, str],
        contradictions: Callable[[Mapping[str, Any], Set[str]], Iterable[str]] = lambda _values, _names: (),
    ) -> Settings:
        """Parse options into settings. Option names are case-insensitive. Raises one `OptionsError` that lists all errors.

        `contradictions` returns error messages about combinations of options. Its arguments are the values that could be parsed, by option
        name, and the names of all options that are set.
        """
        faults: list[str] = []
        names: set[str] = set()
        values: dict[str, Any] = {}
        for name, text in sorted(texts.items()):
            option = self._current(name)
            if option is None:
                if name.lower() not in {*self._ignored, *self._old}:
                    faults.append(self._unknown(name))
                continue
            if option.name in names:
                faults.append(f"{self._label(option)} is given twice, as {name!r}, too; remove one")
            names.add(option.name)
            try:
                values[option.name] = option.read(text)
            except ValueError as error:
                faults.append(f"{self._label(option)} {refusal(error, option.rule, text)}")
        faults += [*contradictions(values, names), *self._broken_rules(names)]
        if faults:
            raise OptionsError(faults)
        return self._filled(values)

    def _current(self, name: str) -> Option | None:
        """Return the option with this name or alias; None if unknown or removed. Logs one warning per process if the name is obsolete."""
        if not (old := self._old.get(name.lower())):
            return self._by_lower_name.get(name.lower())
        spelling, option, what = old
        if spelling not in self._warned:
            self._warned.add(spelling)
            logger.warning("%s option '%s' %s", self._subject, spelling, what)
        return option

    def _label(self, option: Option) -> str:
        return f"{self._subject} option '{option.name}'"

    def _unknown(self, name: str) -> str:
        if found := answer("sink" if self._subject.endswith("sink") else "source", name):
            return f"{self._subject} option {found}"
        near = difflib.get_close_matches(name.lower(), (each for each in self._by_lower_name if "." not in each), n=1)
        hint = f"; did you mean '{self._by_lower_name[near[0]].name}'?" if near else ""
        return f"{self._subject} has no option {name!r}{hint}"

    def _broken_rules(self, names: Set[str]) -> Iterator[str]:
        for option in self._by_name.values():
            if option.name in names and option.needs and option.needs not in names:
                yield f"{self._label(option)} needs option '{option.needs}'"

    def _filled(self, values: Mapping[str, Any]) -> Settings:
        groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in values.items():
            group, _, field = self._by_name[name].field.rpartition(".")
            if field:
                groups[group][field] = value
        defaults = self._settings()
        own = groups.pop("", {})
        for group, fields in groups.items():
            own[group] = replace(own.get(group, getattr(defaults, group)), **fields)
        return replace(defaults, **own)  # type: ignore[type-var]


class Foreign(NamedTuple):
    """Options of another system's source or sink, and this library's option for the same purpose."""

    system: str  # For example "Kafka source" or "Kafka sink"
    names: list[str]  # A name such as `kafka.*` matches all names with this prefix that are not in other rows
    here: str  # This library's option; `-` if there is none
    note: str


@cache
def foreign() -> list[Foreign]:
    """Return all rows of elsewhere.txt, which lists the options of other systems."""
    rows, system = [], ""
    for line in (pkgutil.get_data(__package__, "elsewhere.txt") or b"").decode().splitlines():
        if line.endswith(":"):
            system = line[:-1]
        elif line and not line.startswith("#"):
            names, here, note = line.split(" |")
            rows.append(Foreign(system, names.split(", "), here.strip(), note.strip()))
    return rows


def answer(kind: str, name: str) -> str | None:
    """Return an error message about an option of another system; None if `name` is unknown. `kind` is "source" or "sink".

    >>> answer("source", "topic"), answer("source", "startingoffsets")
    (None, "'startingOffsets' is Kafka's; here it is 'startingPosition': JSON gives each stream and shard its own")
    """
    matches = [
        (("*" not in each, len(each)), each, row)
        for row in foreign()
        for each in row.names
        if row.system.endswith(f" {kind}") and fnmatch(name.lower(), each.lower())
    ]
    if not matches:
        return None
    best = max(rank for rank, _, _ in matches)
    (spelling, row), *others = [(each, row) for rank, each, row in matches if rank == best]
    systems = [each.system.removesuffix(f" {kind}") for each in (row, *(other for _, other in others))]
    owners = " and ".join(f"{system}'" if system.endswith("s") else f"{system}'s" for system in systems)
    here, note = "leave it out" if row.here == "-" else f"here it is '{row.here}'", row.note.replace("`", "'")
    return f"'{name if '*' in spelling else spelling}' is {owners}; {here}" + (note and f": {note}")
