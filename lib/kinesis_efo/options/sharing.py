"""Compares those options that must be the same for all queries that share a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from kinesis_efo.options.source import SOURCE_OPTIONS, SourceOptions

_SECRET: Final = frozenset({"externalId"})


def of_run(options: SourceOptions) -> dict[str, str]:
    """Return the options of a run, by name, as texts to compare and to show. Secrets are replaced with hashes."""
    return {
        option.name: _text(option.name, attrgetter(option.field)(options)) for option in SOURCE_OPTIONS if option.of_run
    }


def differences(run: Mapping[str, str], query: Mapping[str, str]) -> list[str]:
    """Describe why a query cannot share a run: one message for each option that differs. Both arguments come from `of_run`."""
    return [
        f"kinesis-efo option '{name}' is {_shown(name, query.get(name, '-'))} here and {_shown(name, run.get(name, '-'))} in a query of this "
        "Spark program that reads the same stream: queries that share a stream share what reads it, so give all of them the same value"
        for name in sorted(run.keys() | query.keys())
        if run.get(name) != query.get(name)
    ]


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case range():
            return "-" if value == range(1) else f"{value[0]}" if len(value) == 1 else f"{value[0]}-{value[-1]}"
    return hashlib.sha256(str(value).encode()).hexdigest() if name in _SECRET else str(value)


def _shown(name: str, text: str) -> str:
    if text == "-":
        return "not set"
    return "another" if name in _SECRET else text
