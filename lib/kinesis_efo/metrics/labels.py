"""Limits the number of values of an attribute: the first things get separate labels, all further things share `other`.

A thing in `other` stays there. A thing with its own label never moves to `other`, where its previous counts would look like a burst.
Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from typing import Final

OTHER: Final = "other"
"""The shared label of all things without a separate label."""

MOST_ERRORS: Final = 32
"""Maximum number of error codes with separate labels: AWS has few codes, but a proxy may invent any number."""


class Labels:
    """Assigns labels to things. At most `most` things have a separate label at a time.

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
        """Withdraw the labels of things that are not in `alive`, and restore the labels of things that are in `alive` again."""
        self._former |= self._own - alive
        self._own &= alive
        again = sorted(self._former & alive, key=str)[: self._most - len(self._own)]
        self._former.difference_update(again)
        self._own.update(again)

    def label(self, thing: Hashable) -> str | None:
        """Return the thing's own label, or `other`; None if its own label was withdrawn."""
        if thing in self._own:
            return str(thing)
        if thing in self._former:
            return None
        if thing in self._other or len(self._own) >= self._most:
            self._other.add(thing)
            return OTHER
        self._own.add(thing)
        return str(thing)
