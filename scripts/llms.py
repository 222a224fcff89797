"""Writes what coding assistants read of the site: `llms.txt`, an index of its pages, and `llms-full.txt`, their whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_MOST: Final = 200  # characters of a page's description


def index(nav: Sequence[Any], texts: Mapping[str, str], title: str) -> str:
    """The index: what every program needs, from AGENTS.md, and a line for each page.

    Args:
        nav: The navigation of mkdocs.yml.
        texts: The pages in Markdown, by their path on the site.
        title: What the site is about.
    """
    needed = (ROOT / "AGENTS.md").read_text().partition("## Programs\n")[2].partition("\n## ")[0].strip()
    needed = needed.replace("<!-- excerpt -->\n", "")
    lines = ["# kinesis-efo", "", f"> {title}", "", needed]
    section = ""
    for of, path in pages(nav):
        if of != section:
            lines += ["", f"## {of}", ""]
            section = of
        name, about = _described(texts[path])
        lines.append(f"- [{name}]({path.removesuffix('.md')}.html){about and f': {about}'}")
    return "\n".join([*lines, ""])


def full(nav: Sequence[Any], texts: Mapping[str, str]) -> str:
    """The text of all pages, but for those that are made from docstrings alone."""
    written = [(path, texts[path]) for _, path in pages(nav) if "\n::: " not in texts[path]]
    return "\n\n".join(f"<!-- {path} -->\n\n{text.strip()}" for path, text in written) + "\n"


def pages(nav: Sequence[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """The section and the path of each page.

    >>> list(pages([{"How to": ["index.md", {"Run": [{"On EMR": "emr.md"}]}]}]))
    [('How to', 'index.md'), ('How to', 'emr.md')]
    """
    for entry in nav:
        for name, below in [("", entry)] if isinstance(entry, str) else entry.items():
            if isinstance(below, str):
                yield section, below
            else:
                yield from pages(below, section or name)


def _described(text: str) -> tuple[str, str]:
    """A page's heading, and the first sentence of its text."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    prose = re.sub(
        r"^```.*?^```$|<!--.*?-->", "", text[heading.end() :] if heading else text, flags=re.DOTALL | re.MULTILINE
    )
    found = re.search(r"(?<=\n\n)(?![#>|!<: -])\S.+(?:\n\S.*)*", f"\n{prose}")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(found[0].split())) if found else ""
    sentence = re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
    return heading[1] if heading else "", sentence if len(sentence) <= _MOST else ""
