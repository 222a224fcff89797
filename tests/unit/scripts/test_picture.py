"""README's picture is `top` as it is, and stands alone; that it is the present one, tests/unit/test_docs.py checks."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree as ET

from scripts.docs import ROOT
from scripts.picture import WIDTH, picture


def test_it_is_an_svg_that_loads_nothing() -> None:
    drawn = picture()
    ET.fromstring(drawn)
    assert re.findall(r"url\((?!#)|<image|<script|href=\"(?!#)", drawn) == []


def test_it_is_the_same_whenever_it_is_drawn() -> None:
    assert picture() == picture()


def test_it_shows_what_top_says() -> None:
    texts = re.findall(r"<text [^>]*>(.*?)</text>", picture())
    shown = unescape(" ".join(texts)).replace("\xa0", " ")
    for text in ("orders: 60 shards", "behind", "buffered", "paused", "What to do:", "and 52 shards more"):
        assert text in shown, shown
    assert all(len(unescape(text)) <= WIDTH for text in texts)


def test_with_several_queries_it_has_a_line_for_each() -> None:
    texts = re.findall(r"<text [^>]*>(.*?)</text>", picture(queries=3))
    shown = unescape(" ".join(texts)).replace("\xa0", " ")
    for text in ("checkpoint", "7c1f09ab", "2m37s", "60 shards, 29.8 MiB/s"):
        assert text in shown, shown
    assert "](images/top-queries.svg)" in (ROOT / "docs/command-line.md").read_text()


def test_readme_shows_it() -> None:
    assert "](docs/top.svg)" in (ROOT / "README.md").read_text()
