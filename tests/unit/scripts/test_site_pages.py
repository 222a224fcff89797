"""What the site makes of the repository's pages; that it is whole, `make lint` checks."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import kinesis_efo
import kinesis_efo_infra
from scripts.docs import ROOT
from scripts.site_html import strange_tags
from scripts.site_pages import (
    GROUPS,
    MOVED,
    constructs,
    python_api,
    with_links_of_the_site,
)
from tests.unit.test_docs import anchors


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("docs/cluster.md", "[sizing](sizing.md#memory)", "[sizing](sizing.md#memory)"),
        ("README.md", "[how many\nfetchers](docs/sizing.md)", "[how many\nfetchers](sizing.md)"),
        ("tests/SCENARIOS.md", "[tests](../CONTRIBUTING.md)", "[tests](contributing.md)"),
        ("docs/how-to/replay.md", "[a job](../../README.md#a-job)", "[a job](../index.md#a-job)"),
        ("README.md", "[EMR](https://aws.amazon.com/emr/)", "[EMR](https://aws.amazon.com/emr/)"),
        ("README.md", "[`archive.py`](jobs/archive.py) is", "`archive.py` is"),
        ("README.md", "```\n[code](jobs)\n```\n", "```\n[code](jobs)\n```\n"),
    ],
)  # fmt: skip
def test_links_lead_to_pages_of_the_site(page: str, link: str, there: str) -> None:
    assert with_links_of_the_site(link, page, None) == there
    link = with_links_of_the_site("[`a.py`](../jobs/a.py)", "docs/cluster.md", "https://git.example/kinesis-efo")
    assert link == "[`a.py`](https://git.example/kinesis-efo/blob/HEAD/jobs/a.py)"


@pytest.mark.parametrize(("page", "package"), [(python_api(), kinesis_efo), (constructs(), kinesis_efo_infra)])
def test_public_names_have_their_place(page: str, package: ModuleType) -> None:
    named = re.findall(rf"(?m)^::: {package.__name__}\.(?!errors\.)(.*)$", page)
    assert sorted(named) == sorted({*package.__all__} - {"__version__"})
    assert package is kinesis_efo_infra or {name for names in GROUPS.values() for name in names} <= set(named)


@pytest.mark.parametrize(
    ("html", "strange"),
    [
        ("<p>AT_TIMESTAMP:<ISO 8601 or epoch ms></p>", ["<ISO 8601 or epoch ms>"]),
        ("<p>a name that HTML knows: <table></p>", ["<table>"]),
        ("<p>closed by itself: <name/></p>", ["<name/>"]),
        ("<p>at the end <em>", ["<p>", "<em>"]),
        ('<!-- <name> --><p>&lt;, <code>&lt;stream&gt;</code> <img src="a.svg"> a <br>break<br /></p>', []),
    ],
)
def test_text_lost_between_angle_brackets_is_found(html: str, strange: list[str]) -> None:
    assert strange_tags(html) == strange


def test_moved_pages_lead_to_pages_and_sections() -> None:
    for old, (new, sections) in MOVED.items():
        here = ROOT / "docs" / f"{old}.md"
        assert not here.exists()
        assert (here.parent / f"{new}.md").exists(), old
        for section, page in sections.items():
            assert section in anchors(here.parent / f"{page}.md"), section
