"""The fenced blocks of the pages for users, each with what a comment above it says.

A block is run or checked by a test (tests/unit/test_pages.py, tests/integration/spark/test_pages.py), or the comment says why not:
`<!-- excerpt -->` for a part of something, `<!-- needs AWS -->` for what this machine does not have.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "examples/fault_injection/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
MARKERS: Final = re.compile(r"excerpt|needs [A-Z][\w ]+")
_BLOCK: Final = re.compile(
    r"^( *)(?:<!-- (?P<marker>.+?) -->\n\1)?```(?P<language>\w+)\n(?P<text>.*?)^\1```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: The page's path in the repository.
        line: Where the block's text begins.
        language: What is written behind the fence.
        text: The text, without the indentation of its fence.
        marker: What the comment above it says; None without one.
    """

    page: str
    line: int
    language: str
    text: str
    marker: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> Iterator[Block]:
    """The blocks of all pages in any of these languages."""
    for path in PAGES:
        yield from blocks_of(path, *languages)


def blocks_of(path: Path, *languages: str) -> Iterator[Block]:
    """The blocks of a page in any of these languages."""
    text = path.read_text()
    for found in _BLOCK.finditer(text):
        if found["language"] in languages:
            line = text.count("\n", 0, found.start("text")) + 1
            page = str(path.relative_to(ROOT))
            yield Block(page, line, found["language"], textwrap.dedent(found["text"]), found["marker"])
