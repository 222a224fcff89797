"""What was put and what was archived, and whether that is the same. Pure; relies on nothing.

Compared are the events themselves, by id, and a checksum over ids, partition keys and payloads that does not depend on order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

_MODULUS: Final = 1 << 64


@dataclass
class Tally:
    """The events of one stream on one side.

    Attributes:
        ids: How often each event was seen.
        checksum: Sum of the events' 64-bit digests, modulo 2**64.
    """

    ids: Counter[str] = field(default_factory=Counter)
    checksum: int = 0

    def add(self, id: str, key: str | None, payload: bytes) -> None:  # noqa: A002
        """Count one event."""
        self.ids[id] += 1
        # One digest over all of an event, or what two events swapped would cancel out in the sum. The lengths keep
        # ("ab", "c") and ("a", "bc") apart.
        name, encoded = id.encode(), (key or "").encode()
        event = b"%d:%d:%b%b%b" % (len(name), len(encoded), name, encoded, payload)
        digest = blake2b(event, digest_size=8).digest()
        self.checksum = (self.checksum + int.from_bytes(digest, "big")) % _MODULUS

    @property
    def count(self) -> int:
        """Events, repeated ones as often as they are."""
        return self.ids.total()

    @property
    def distinct(self) -> int:
        """Different events."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How two sides of one stream compare.

    Attributes:
        stream: Logical name.
        put: What went in.
        archived: What came out.
    """

    stream: str
    put: Tally
    archived: Tally

    @property
    def lost(self) -> int:
        """Events that were put and are not archived as often."""
        return (self.put.ids - self.archived.ids).total()

    @property
    def surplus(self) -> int:
        """Events that are archived more often than they were put."""
        return (self.archived.ids - self.put.ids).total()

    @property
    def altered(self) -> bool:
        """Every event is there once, but a key or a payload is not what was put."""
        return not self.lost and not self.surplus and self.put.checksum != self.archived.checksum

    @property
    def exact(self) -> bool:
        """Nothing lost, nothing twice, nothing altered."""
        return not self.lost and not self.surplus and not self.altered


def compare(put: dict[str, Tally], archived: dict[str, Tally]) -> list[Verdict]:
    """One verdict per stream of either side."""
    return [Verdict(name, put.get(name, Tally()), archived.get(name, Tally())) for name in sorted(put | archived)]


def sentence(verdicts: list[Verdict], kills: int) -> str:
    """The verdicts in one line."""
    count = sum(verdict.put.count for verdict in verdicts)
    survived = {0: "", 1: ", with the job killed once on the way"}.get(
        kills, f", with the job killed {kills} times on the way"
    )
    if count == 0:
        return "NOT PROVEN: nothing was put"
    if all(verdict.exact for verdict in verdicts):
        return f"EXACTLY ONCE: all {count:,} events are archived, none lost, none twice{survived}"
    faults = []
    for verdict in verdicts:
        found = [f"{verdict.lost:,} lost"] * bool(verdict.lost) + [f"{verdict.surplus:,} too many"] * bool(
            verdict.surplus
        )
        found += ["content altered"] * verdict.altered
        faults += [f"{verdict.stream}: {', '.join(found)}"] * bool(found)
    return f"BROKEN: {'; '.join(faults)}{survived}"
