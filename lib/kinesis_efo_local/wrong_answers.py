"""Wrong responses that servers have been observed to send. Readers must neither lose records nor wait forever because of them.

The setting `wrong_answers` of the local AWS enables them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from random import Random
from typing import Final

KINDS: Final = {
    "quiet": "no records, and 0 ms behind, although records are there",
    "behind": "milliseconds behind although no record is left",
    "last-number": "as the position to go on from, the number of the last record, also where an earlier answer gave a higher one",
    "empty": "empty strings and empty lists in place of what is not there",
    "no-shards": "a list of no shards, although there are some",
}
"""The kinds of wrong answers, with descriptions."""

MOST_BEHIND_MS: Final = 120_000


def parse_kinds(text: str) -> frozenset[str]:
    """Parse a comma-separated list of kinds of wrong answers; `all` stands for all kinds.

    Raises ValueError if a name is not known.
    """
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    if unknown := names - KINDS.keys() - {"all"}:
        raise ValueError(f"{min(unknown)!r} is not a kind of wrong answers: {', '.join(sorted(KINDS))}, all")
    return frozenset(KINDS) if "all" in names else names


class WrongAnswers:
    """Decides which responses are deliberately wrong.

    Args:
        kinds: Enabled kinds of wrong answers (keys of `KINDS`).
        rate: Probability, from 0 to 1, of a wrong answer where a wrong answer is possible.
        in_a_row: Maximum number of consecutive answers that hide records from one reader of a shard, or the shards of one stream.
        random: Source of random numbers.
    """

    def __init__(self, kinds: Collection[str], rate: float, in_a_row: int, random: Random) -> None:
        self._kinds = kinds
        self._rate = rate
        self.in_a_row = in_a_row
        self._random = random
        # A separate generator, so that additional ListShards calls do not change the other responses.
        self._random_of_lists = Random(1)
        self._hidden: Counter[Hashable] = Counter()

    def hides(self, reader: Hashable) -> bool:
        """Whether to hide existing records from a reader."""
        return self._hides("quiet", reader, self._random)

    def hides_shards(self, stream_arn: str) -> bool:
        """Whether to return an empty shard list for a stream."""
        return self._hides("no-shards", stream_arn, self._random_of_lists)

    def lag(self, millis: int) -> int:
        """Return the MillisBehindLatest to report if the correct value is `millis`."""
        return self._random.randint(1, MOST_BEHIND_MS) if not millis and self._strikes("behind") else millis

    @property
    def gives_last_number(self) -> bool:
        """Whether to return the last record's sequence number as the position to continue from, instead of a higher number."""
        return self._strikes("last-number")

    @property
    def writes_empty(self) -> bool:
        """Whether to write absent members of a response as empty strings or lists."""
        return self._strikes("empty")

    def _hides(self, kind: str, what: Hashable, random: Random) -> bool:
        if self._hidden[what] < self.in_a_row and kind in self._kinds and random.random() < self._rate:
            self._hidden[what] += 1
            return True
        del self._hidden[what]
        return False

    def _strikes(self, kind: str) -> bool:
        return kind in self._kinds and self._random.random() < self._rate
