"""The pages say what the code says, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from scripts.docs import ROOT, pages

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("examples/fault_injection/README.md", "infra/real-provider.md", "lib/README.md")),
    ROOT / "tests" / "SCENARIOS.md",
]


# Shows 82.
@pytest.mark.parametrize(
    ("path", "text"), list(pages()), ids=lambda value: value.name if isinstance(value, Path) else ""
)
def test_the_tables_are_those_of_the_code(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make docs`"


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings of a page, and the anchors that the page declares."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([\w-]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text.replace("\n", " ")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_paths_in_the_contributing_guide_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:\.github|docs|infra|jobs|lib|scripts|tests)/[\w./-]*)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_listed_attack_has_a_test() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    lines = page.partition("## What an attacker can do\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")][2:]
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(rows) > 30
    for tried, happens, tested in rows:
        named = set(re.findall(r"`(test_\w+)`", tested))
        assert named <= tests, tried
        assert named or not happens or "*open*" in happens or "#what-to-know-when-you-deploy" in happens, tried


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_page_names_its_reader_and_is_short(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# .+\n\nFor ", text), "begin with who it is for, and what they have at the end"
    assert page.name in ("options.md", "command-line.md") or len(text.split()) <= 1_500
