"""The site in a browser: code and names fit on its pages, at a desk and on a phone."""

import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from scripts.docs import ROOT
from tests.support.overflow import overflows

DIAGRAMS = ("architecture.md", "cluster.md")
MOST = 100
"""Most characters of a line of code: as many fit into the site's column in a window of 1280 pixels."""
DESK = 1280
PHONE = 390
CODE = f"""# A page

## With a table of contents

```python
{"x" * (MOST - 1)}1
```

```text
{"x" * (MOST + 10)}
```
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's theme, styles and hooks over some pages: all options, diagrams, and the widest code that a page may have."""
    pages = tmp_path_factory.mktemp("pages")
    for name in ("options.md", "site.css", *DIAGRAMS):
        shutil.copy(ROOT / "docs" / name, pages)
    (pages / "code.md").write_text(CODE)
    built = tmp_path_factory.mktemp("site")
    build(
        load_config(
            str(ROOT / "mkdocs.yml"),
            docs_dir=str(pages),
            site_dir=str(built),
            nav=[{"Pages": ["options.md", "code.md", *DIAGRAMS]}],
            hooks=[str(ROOT / "scripts" / "site_html.py")],
            plugins=[],
            strict=False,
        )
    )
    return built


def test_code_fits_at_a_desk(site: Path) -> None:
    (found,) = overflows([f"file://{site}/code.html"], DESK)
    assert found.code == ["x" * (MOST + 10) + "\n"]
    assert found.page <= 0


def test_diagrams_fit_at_a_desk(site: Path) -> None:
    for page, found in zip(
        DIAGRAMS, overflows([f"file://{site}/{page[:-3]}.html" for page in DIAGRAMS], DESK), strict=True
    ):
        assert (found.code, found.page <= 0) == ([], True), page


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_option_names_stay_whole_and_tables_scroll_on_phones(site: Path, width: int) -> None:
    (found,) = overflows([f"file://{site}/options.html"], width)
    assert [name for name in found.names if "(" not in name] == []
    assert found.page <= 0
    assert found.cut == 0
    assert (found.scrolled > 0) == (width == PHONE)
