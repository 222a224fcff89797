"""Checks that the built packages may be released under a tag, and prints the changelog's section for the release page.

python -m scripts.release v1.2.3 dist
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from zipfile import ZipFile

CHANGELOG: Final = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


class NotReleasable(Exception):
    """The packages must not be released under the tag; the message says why, one reason per line."""


def metadata(directory: Path) -> Message:
    """Read the metadata of the wheel in a directory.

    Raises:
        NotReleasable: There is no wheel or no source distribution, or more than one.
    """
    wheels, sources = list(directory.glob("*.whl")), list(directory.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        found = ", ".join(sorted(path.name for path in (*wheels, *sources))) or "neither"
        raise NotReleasable(
            f"{directory} must hold one wheel and one source distribution; it holds {found}: `make dist`"
        )
    with ZipFile(wheels[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(wheel.read(name).decode())


def section(changelog: str, version: str) -> str | None:
    """The changelog's section on a version, without its heading; None if it is empty, undated or missing.

    >>> section("## [Unreleased]\\n\\n## [1.2.0] - 2027-01-31\\n\\n### Added\\n\\n- Much.\\n\\n## [1.1.0] - 2026-12-24\\n", "1.2.0")
    '### Added\\n\\n- Much.'
    """
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return (found[1].strip() or None) if found else None


def notes(tag: str, built: Message, changelog: str) -> str:
    """The changelog's notes on the version that was built.

    Raises:
        NotReleasable: The tag names another version, the changelog has no dated section on it, or the package does not name
            its repository.
    """
    reasons = []
    if tag != f"v{built['Version']}":
        reasons.append(
            f"the tag {tag} is not the version that was built: tag v{built['Version']}, or change the version"
        )
    text = section(changelog, built["Version"])
    if text is None:
        reasons.append(
            f"CHANGELOG.md has nothing under '## [{built['Version']}] - <date>': move there what is under 'Unreleased'"
        )
    if not any(url.startswith("Repository,") for url in built.get_all("Project-URL", [])):
        reasons.append(
            "the package does not say where it comes from: add Repository to [project.urls] in pyproject.toml"
        )
    if reasons or text is None:
        raise NotReleasable("\n".join(reasons))
    return text


def main(arguments: Sequence[str], changelog: Path = CHANGELOG) -> int:
    """Print the notes on standard output and return 0, or the reasons against a release on standard error and return 1."""
    tag, directory = arguments
    try:
        text = notes(tag, metadata(Path(directory)), changelog.read_text(encoding="utf-8"))
    except NotReleasable as error:
        sys.stderr.write(f"not releasable: {error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
