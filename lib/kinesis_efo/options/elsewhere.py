"""Options of other systems, and what takes their place here: for error messages, and for the tables of docs/coming-from.md.

They are in elsewhere.txt, which is read only when an option is unknown.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import NamedTuple


class Foreign(NamedTuple):
    """Options of another system, and what takes their place.

    Attributes:
        system: The system and `source` or `sink`, such as `Kafka source`.
        names: Their names. One that ends with `*` stands for all that begin so and have no row of their own.
        here: Our option; `-` if nothing takes their place.
        note: What to know about it, or empty.
    """

    system: str
    names: list[str]
    here: str
    note: str

    def match(self, name: str) -> tuple[int, str]:
        """Return how many characters of a name match, and the name as its system spells it. The name itself beats a prefix."""
        lower = name.lower()
        whole = [(len(name) + 1, each) for each in self.names if each.lower() == lower]
        prefixes = [len(each) - 1 for each in self.names if each.endswith("*") and lower.startswith(each[:-1].lower())]
        return max([*whole, *((length, name) for length in prefixes)], default=(0, ""))


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
    matches = [(*row.match(name), row) for row in foreign() if row.system.endswith(f" {kind}")]
    best = max(length for length, _, _ in matches)
    if not best:
        return None
    found = [(spelling, row) for length, spelling, row in matches if length == best]
    owners = [f"{row.system.removesuffix(f' {kind}')}'s".replace("s's", "s'") for _, row in found]
    spelling, row = found[0]
    here = "leave it out" if row.here == "-" else f"here it is '{row.here}'"
    note = row.note.replace("`", "'")
    return f"'{spelling}' is {' and '.join(owners)}; {here}" + (note and f": {note}")
