"""The mark of a checkpoint: an id and a count of micro-batches.

A Spark data source receives neither the path of its checkpoint nor the id of its query. So the offsets in a checkpoint have their own id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_TEXT: Final = re.compile(r"([0-9a-z]{1,32}):([0-9]{1,18})", re.ASCII)


class Mark(NamedTuple):
    """The checkpoint that an offset belongs to (a random id), and how many of its micro-batches have moved a position so far.

    >>> str(Mark("7c1f09ab").moved_on()), Mark.parse("7c1f09ab:812")
    ('7c1f09ab:1', Mark(checkpoint='7c1f09ab', moved=812))
    """

    checkpoint: str
    moved: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that `str` returns."""
        if (found := _TEXT.fullmatch(text)) is None:
            raise ValueError(f"not a kinesis-efo offset: its mark is {text[:80]!r}, expected <id>:<number>")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.checkpoint}:{self.moved}"

    def moved_on(self) -> Self:
        """Return the mark after one more micro-batch that moves a position."""
        return self._replace(moved=self.moved + 1)
