"""The addresses of documentation pages, as messages of the tools name them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import metadata


def address(page: str, section: str = "", urls: Sequence[str] | None = None) -> str:
    """Return the address of a page: on the site that the installed package names as its documentation, otherwise its file.

    `urls` are the package's project URLs, by default those of the installed package.

    >>> address("runbook", "rows-come-late", ["Documentation, https://docs.example.com/1.2/"])
    'https://docs.example.com/1.2/runbook.html#rows-come-late'
    >>> address("runbook", urls=[])
    'docs/runbook.md'
    """
    known = metadata("kinesis-efo").get_all("Project-URL") or [] if urls is None else urls
    sites = dict(each.split(", ", 1) for each in known)
    where = f"{sites['Documentation'].rstrip('/')}/{page}.html" if "Documentation" in sites else f"docs/{page}.md"
    return where + (section and f"#{section}")
