"""Options of other systems, and what takes their place here: for error messages, and for the tables of docs/coming-from.md.

They are in elsewhere.txt, which is read only when an option is unknown.
"""

from __future__ import annotations

import pkgutil
from fnmatch import fnmatch
from functools import cache
from typing import NamedTuple


class Foreign(NamedTuple):
    """Options of another system, and what takes their place: our option `here`, or `-`. `system` ends with source or sink.

    One of the `names` that ends with `*` stands for all that begin so and have no row of their own.
    """

    system: str
    names: list[str]
    here: str
    note: str


@cache
def foreign() -> list[Foreign]:
    """Return all options of other systems."""
    rows, system = [], ""
    for line in (pkgutil.get_data(__package__, "elsewhere.txt") or b"").decode().splitlines():
        if line.endswith(":"):
            system = line[:-1]
        elif line and not line.startswith("#"):
            names, here, note = line.split(" |")
            rows.append(Foreign(system, names.split(", "), here.strip(), note.strip()))
    return rows


def answer(kind: str, name: str) -> str | None:
    """Return the end of the message about an option that another system's `kind`, source or sink, has; None if none has it.

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
