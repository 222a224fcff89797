"""What coding assistants read: an index of the site's pages, their text, and the same first facts everywhere."""

from __future__ import annotations

import yaml

from scripts.llms import ROOT, full, index, pages
from scripts.site_pages import OUTSIDE, constructs


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml."""


def site() -> tuple[list[object], dict[str, str]]:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    files = {name: path for path, name in OUTSIDE.items()}
    made = {
        "python.md": constructs(),
        "constructs.md": constructs(),
        "examples.md": "# Programs\n",
        "errors.md": "# E\n",
    }
    return nav, {path: made.get(path) or (ROOT / files.get(path, f"docs/{path}")).read_text() for _, path in pages(nav)}


def test_index_has_every_page_and_the_format() -> None:
    nav, texts = site()
    text = index(nav, texts, "Kinesis for Spark")
    assert text.startswith("# kinesis-efo\n\n> Kinesis for Spark\n\nThe data source is `kinesis-efo`.")
    for path in texts:
        assert f"({path.removesuffix('.md')}.html)" in text
    assert "- [Run jobs on AWS Glue](how-to/glue.html): For teams on Glue 6.0 or newer" in text
    assert "- [Poll instead](how-to/polling.html): For jobs where a second of latency is acceptable" in text
    assert "<!--" not in text
    whole = full(nav, texts)
    assert "# Run jobs on AWS Glue" in whole
    assert "\n::: " not in whole


def test_first_lines_name_the_format() -> None:
    for file in ("README.md", "AGENTS.md"):
        head = (ROOT / file).read_text()[:900]
        assert "kinesis-efo" in head
        assert 'format("kinesis")' in head
