"""The addresses of documentation pages, as messages of the tools name them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import distributions


def address(page: str, section: str = "", urls: Sequence[str] | None = None) -> str:
    """Return a page's address on the site that the package's project URLs name as its documentation; without a site, the page's file.

    >>> address("runbook", "rows-come-late", ["Documentation, https://docs.example.com/1.2/"])
    'https://docs.example.com/1.2/runbook.html#rows-come-late'
    """
    if urls is None:
        urls = [url for each in distributions(name="kinesis-efo") for url in each.metadata.get_all("Project-URL") or ()]
    site = dict(each.split(", ", 1) for each in urls).get("Documentation")
    return (f"{site.rstrip('/')}/{page}.html" if site else f"docs/{page}.md") + (section and f"#{section}")
