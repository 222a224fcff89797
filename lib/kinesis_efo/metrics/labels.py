"""How many different values an attribute may have: the first so many are told apart, the rest is `other`.

What is in `other` stays there, and what had a label of its own never moves into it: else its whole history would look like a
burst. Not thread-safe. Relies on nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from typing import Final

OTHER: Final = "other"
"""The label of what is not told apart."""

MOST_ERRORS: Final = 32
"""Error codes that are told apart: AWS has few, but a proxy may make up any number."""


class Labels:
    """Hands out labels.

    Args:
        most: How many things are told apart at a time.

    >>> labels = Labels(2)
    >>> [labels.label(shard) for shard in ("a", "b", "c", "a")]
    ['a', 'b', 'other', 'a']
    >>> labels.keep({"b", "c"})
    >>> [labels.label(shard) for shard in ("c", "d", "a")]
    ['other', 'd', None]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: set[Hashable] = set()
        self._other: set[Hashable] = set()
        self._former: set[Hashable] = set()

    def keep(self, alive: AbstractSet[Hashable]) -> None:
        """Take the labels back from all that is not alive any more, and give them back to what is alive again."""
        self._former |= self._own - alive
        self._own &= alive
        again = sorted(self._former & alive, key=str)[: self._most - len(self._own)]
        self._former.difference_update(again)
        self._own.update(again)

    def label(self, thing: Hashable) -> str | None:
        """Its own, or `other`; None for what had its own and has lost it."""
        if thing in self._own:
            return str(thing)
        if thing in self._former:
            return None
        if thing in self._other or len(self._own) >= self._most:
            self._other.add(thing)
            return OTHER
        self._own.add(thing)
        return str(thing)
