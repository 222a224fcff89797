"""Compares the events that were put with those that were archived. Pure.

Compares the events' ids, and a checksum of ids, partition keys and payloads that does not depend on their order.
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
        # One digest of the whole event: with one per field, two events that swapped a field would have the same sum. The
        # lengths distinguish ("ab", "c") from ("a", "bc").
        name, encoded = id.encode(), (key or "").encode()
        event = b"%d:%d:%b%b%b" % (len(name), len(encoded), name, encoded, payload)
        digest = blake2b(event, digest_size=8).digest()
        self.checksum = (self.checksum + int.from_bytes(digest, "big")) % _MODULUS

    @property
    def count(self) -> int:
        """Number of events, including repeated ones."""
        return self.ids.total()

    @property
    def distinct(self) -> int:
        """Number of different events."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one stream.

    Attributes:
        stream: Its logical name.
        put: The events that were put.
        archived: The events that were archived.
    """

    stream: str
    put: Tally
    archived: Tally

    @property
    def lost(self) -> int:
        """Number of events that are archived less often than they were put."""
        return (self.put.ids - self.archived.ids).total()

    @property
    def surplus(self) -> int:
        """Number of events that are archived more often than they were put."""
        return (self.archived.ids - self.put.ids).total()

    @property
    def altered(self) -> bool:
        """Whether every event is archived once, but with another key or payload."""
        return not self.lost and not self.surplus and self.put.checksum != self.archived.checksum

    @property
    def exact(self) -> bool:
        """Whether nothing is lost, duplicated or altered."""
        return not self.lost and not self.surplus and not self.altered


def compare(put: dict[str, Tally], archived: dict[str, Tally]) -> list[Verdict]:
    """Compare both sides, stream by stream."""
    return [Verdict(name, put.get(name, Tally()), archived.get(name, Tally())) for name in sorted(put | archived)]


def line(verdict: Verdict) -> str:
    """One stream's comparison in one line."""
    put, archived = verdict.put, verdict.archived
    same = f"checksum = {put.checksum:016x}" if put.checksum == archived.checksum else "CHECKSUMS DIFFER"
    return (
        f"{verdict.stream}: {put.count:,} put, {archived.count:,} archived, {archived.distinct:,} distinct, "
        f"{verdict.lost:,} lost, {verdict.surplus:,} too many, {same}"
    )


def sentence(verdicts: list[Verdict], kills: int) -> str:
    """Sum up the verdicts in one line."""
    count = sum(verdict.put.count for verdict in verdicts)
    survived = {0: "", 1: ", with the job killed once on the way"}.get(
        kills, f", with the job killed {kills} times on the way"
    )
    if count == 0:
        return "NOT PROVEN: nothing was put"
    if all(verdict.exact for verdict in verdicts):
        return f"EXACTLY ONCE: all {count:,} events are archived, none lost, none twice{survived}"
    return f"BROKEN: {_faults(verdicts)}{survived}"


def sentence_of_read(verdicts: list[Verdict], seconds: float) -> str:
    """Sum up the comparison of the archive with a batch read in one line.

    Args:
        verdicts: With what is archived as what was put, and what was read as what is archived.
        seconds: How long the batch read took.
    """
    count = sum(verdict.put.count for verdict in verdicts)
    if count and all(verdict.exact for verdict in verdicts):
        return f"THE SAME AGAIN: a batch read of the streams gives the archive's {count:,} events, in {seconds:.0f} s"
    return f"BROKEN: the batch read is not the archive: {_faults(verdicts) or 'nothing is archived'}"


def _faults(verdicts: list[Verdict]) -> str:
    faults = []
    for verdict in verdicts:
        found = [f"{verdict.lost:,} lost"] * bool(verdict.lost) + [f"{verdict.surplus:,} too many"] * bool(
            verdict.surplus
        )
        found += ["content altered"] * verdict.altered
        faults += [f"{verdict.stream}: {', '.join(found)}"] * bool(found)
    return "; ".join(faults)
