"""Looks through the HTML of the site's pages, as a hook of mkdocs.yml: names do not break, and nothing in angle brackets vanishes.

`<sequence number>` in Markdown is a tag, which browsers and GitHub leave out. mkdocs.yml is strict: a warning fails `make lint`.
"""

from __future__ import annotations

import logging
import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

VOID: Final = frozenset({"br", "hr", "img", "input", "path", "source"})
TAGS: Final = VOID | frozenset(
    re.findall(
        r"\w+",
        """
        a abbr article autoref b blockquote button code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 kbd label
        li nav ol p picture pre section small span strong sub summary sup svg table tbody td th thead tr ul
        """,
    )
)
"""What Markdown, the theme and mkdocstrings write, and what pages may use."""
SHORT: Final = 32
"""Most characters of a name that is kept in one line: it fits on a phone."""
_NAME: Final = re.compile(r"<code>([^<\s]+)</code>")

_log = logging.getLogger("mkdocs.hooks.site_html")


class _Reader(HTMLParser):
    """Collects tags that are unknown, and those that are opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.strange: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag not in TAGS:
            self.strange.append(self.get_starttag_text() or tag)
        elif tag not in VOID:
            self.open.append(self.get_starttag_text() or tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag not in TAGS:
            self.strange.append(self.get_starttag_text() or tag)

    def handle_endtag(self, tag: str) -> None:
        while tag in TAGS and self.open:
            opened = self.open.pop()
            if re.match(rf"<{tag}\b", opened, re.IGNORECASE):
                return
            self.strange.append(opened)


def strange_tags(html: str) -> list[str]:
    """Tags that browsers leave out, or that swallow what follows.

    >>> strange_tags("<p>AFTER:<sequence number> in <code>&lt;table&gt;</code></p>")
    ['<sequence number>']
    >>> strange_tags("<p>the table <table></p>")
    ['<table>']
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.strange + reader.open


def with_whole_names(html: str) -> str:
    """HTML whose names in code stay in one line if they are short, and else break behind a mark.

    >>> with_whole_names("<code>streamArn</code>, <code>a b</code>")
    '<code class="name">streamArn</code>, <code>a b</code>'
    >>> with_whole_names("<code>spark.sql.streaming.checkpointFileManagerClass</code>")
    '<code>spark.<wbr>sql.<wbr>streaming.<wbr>checkpointFileManagerClass</code>'
    """

    def replaced(code: re.Match[str]) -> str:
        if len(unescape(code[1])) <= SHORT:
            return f'<code class="name">{code[1]}</code>'
        return f"<code>{re.sub(r'(?<=[./:_=])(?=[^./:_=])', '<wbr>', code[1])}</code>"

    return _NAME.sub(replaced, html)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Called by MkDocs with each page."""
    for tag in strange_tags(html):
        _log.warning("%s: %s is no text but a tag; write it as code, or &lt; for <", page.file.src_uri, tag)
    return with_whole_names(html)
