"""Limits how many values of a metric attribute, such as the shard, have separate labels.

The first values get separate labels; later values share the label `other`.

A value with the label `other` keeps it. A value with a separate label never changes to `other`, where its total would look like a sudden
increase. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from typing import Final

OTHER: Final = "other"
"""The shared label of all values without a separate label."""

MOST_ERRORS: Final = 32
"""Maximum number of error codes with separate labels: AWS has few codes, but a proxy may return any number of others."""


class Labels:
    """Assigns labels to values. At most `most` values have a separate label at a time.

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
        """Withdraw the separate labels of values that are not in `alive`. Restore withdrawn labels of values that are in `alive` again."""
        self._former |= self._own - alive
        self._own &= alive
        again = sorted(self._former & alive, key=str)[: self._most - len(self._own)]
        self._former.difference_update(again)
        self._own.update(again)

    def label(self, value: Hashable) -> str | None:
        """Return the value's separate label, or `other`; None if its separate label was withdrawn."""
        if value in self._own:
            return str(value)
        if value in self._former:
            return None
        if value in self._other or len(self._own) >= self._most:
            self._other.add(value)
            return OTHER
        self._own.add(value)
        return str(value)
