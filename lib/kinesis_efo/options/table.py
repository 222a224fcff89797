"""A table of options: parses texts into a settings object, and reports all faults at once."""

from __future__ import annotations

import difflib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kinesis_efo.errors import OptionsError
from kinesis_efo.options.elsewhere import answer
from kinesis_efo.options.readers import refusal

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table of options: its name as documented, matched in any case, and how to `read` its text (ValueError: invalid).

    `rule` completes "must be ..." in messages. `default` is as documented, in backticks if it can be given. `field` is that of the
    settings, such as `aws.region`; empty if the value is only checked. `needs` is an option that this one requires, or `name=value`;
    `at_most`, one whose value it must not exceed. `of_run`: queries that share a run must give the same value. `formerly`: names that
    still work, with a warning.
    """

    name: str
    read: Callable[[str], Any]
    rule: str
    default: str
    meaning: str
    field: str = ""
    needs: str = ""
    at_most: str = ""
    of_run: bool = False
    formerly: tuple[str, ...] = ()


class OptionTable(Generic[Settings]):
    """Parses the options of one subject, such as the source, into `settings`, a dataclass whose fields all have defaults.

    `ignored` are names to skip, in lower case; `removed` names to skip with a warning; `kind` is source or sink, to recognize the options of other systems.
    """

    def __init__(
        self,
        subject: str,
        settings: type[Settings],
        options: Sequence[Option],
        ignored: Collection[str] = (),
        removed: Collection[str] = (),
        kind: str = "source",
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._by_name = {option.name: option for option in options}
        self._by_lower_name = {option.name.lower(): option for option in options}
        self._formerly = {name.lower(): (name, option) for option in options for name in option.formerly}
        self._removed = {name.lower(): name for name in removed}
        self._ignored = {*ignored, *self._removed}
        self._warned: set[str] = set()
        self._kind = kind

    def parse(
        self,
        texts: Mapping[str, str],
        contradictions: Callable[[Mapping[str, Any], Set[str]], Iterable[str]] = lambda _values, _names: (),
    ) -> Settings:
        """Parse options, whose names may be in any case, into settings.

        `contradictions` returns faults that concern several options. It gets the values that could be parsed, and the names of all options
        that were given.
        """
        faults: list[str] = []
        names: set[str] = set()
        values: dict[str, Any] = {}
        for name, given in texts.items():
            option, text = self._current(name, given)
            if option is None:
                if name.lower() not in self._ignored:
                    faults.append(self._unknown(name))
                continue
            if option.name in names:
                faults.append(f"{self._label(option)} is given twice, as {name!r}, too; remove one")
            names.add(option.name)
            try:
                values[option.name] = option.read(text)
            except ValueError as error:
                faults.append(f"{self._label(option)} {refusal(error, option.rule, text)}")
        faults += [*contradictions(values, names), *self._broken_rules(values, names)]
        if faults:
            raise OptionsError(faults)
        return self._filled(values)

    def _current(self, name: str, text: str) -> tuple[Option | None, str]:
        """Return the option with a name, and its text. Log a warning if the name is a former one, or the option was removed."""
        if removed := self._removed.get(name.lower()):
            self._warn(removed, "has no effect any more; remove it, because the next minor version refuses it")
        if not (former := self._formerly.get(name.lower())):
            return self._by_lower_name.get(name.lower()), text
        old, option = former
        self._warn(old, f"is now '{option.name}'; the next minor version refuses the old name")
        # Options in milliseconds became durations.
        return option, f"{text}ms" if old.endswith("Ms") and text.strip().isdigit() else text

    def _warn(self, name: str, what: str) -> None:
        """Log a warning about an option, once in each process."""
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("%s option '%s' %s", self._subject, name, what)

    def _label(self, option: Option) -> str:
        return f"{self._subject} option '{option.name}'"

    def _unknown(self, name: str) -> str:
        if found := answer(self._kind, name):
            return f"{self._subject} option {found}"
        near = difflib.get_close_matches(name.lower(), self._by_lower_name, n=1)
        hint = f"; did you mean '{self._by_lower_name[near[0]].name}'?" if near else ""
        return f"{self._subject} has no option {name!r}{hint}"

    def _broken_rules(self, values: Mapping[str, Any], names: Set[str]) -> Iterator[str]:
        for option in self._by_name.values():
            other, _, wanted = option.needs.partition("=")
            if option.name in names and other:
                if not wanted and other not in names:
                    yield f"{self._label(option)} needs option '{other}'"
                elif wanted and values.get(other) != wanted:
                    yield f"{self._label(option)} needs option '{other}' to be {wanted}"
            if option.at_most and not names.isdisjoint({option.name, option.at_most}):
                value, most = (
                    values[each.name] if each.name in values else each.read(each.default.strip("`"))
                    for each in (option, self._by_name[option.at_most])
                )
                if value > most:
                    yield f"{self._label(option)} must not exceed '{option.at_most}'"

    def _filled(self, values: Mapping[str, Any]) -> Settings:
        groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in values.items():
            group, _, field = self._by_name[name].field.rpartition(".")
            if field:
                groups[group][field] = value
        defaults = self._settings()
        own = groups.pop("", {})
        nested = {group: replace(getattr(defaults, group), **fields) for group, fields in groups.items()}
        return replace(defaults, **own, **nested)  # type: ignore[type-var]
