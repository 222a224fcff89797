"""What does not fit on pages, as a real browser shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.browser import browsing


@dataclass(frozen=True, slots=True)
class Overflow:
    """What does not fit on a page.

    Attributes:
        page: Pixels by which the page is wider than its window.
        code: Text of the blocks of code that are wider than their column.
        scrolled: How many tables are wider than their column, and can be scrolled.
        cut: How many are, and cannot.
        names: Names in code that begin on one line and end on the next.
    """

    page: int
    code: list[str]
    scrolled: int
    cut: int
    names: list[str]


def overflows(urls: Sequence[str], width: int) -> list[Overflow]:
    """What does not fit on these pages, in a window of this width, pixels."""
    found = []
    with browsing(urls[0], width) as look:
        for url in urls:
            look(f"open {url}")
            found.append(Overflow(**look("fits")))
    return found
