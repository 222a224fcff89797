"""Checks that the built packages may be released under a tag, and prints the changelog's section for the release page.

python -m scripts.release v1.2.3 dist
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from zipfile import ZipFile

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("kinesis_efo", "kinesis_efo_infra")
"""What is published, all with one version and one tag: the library and the constructs, as their files are called."""


class NotReleasable(Exception):
    """The packages must not be released under the tag; the message says why, one reason per line."""


def metadata(directory: Path) -> list[Message]:
    """Read the metadata of the packages' wheels in a directory.

    Raises:
        NotReleasable: There is no wheel or no source distribution of a package, or more than one.
    """
    wheels = {package: list(directory.glob(f"{package}-*.whl")) for package in PACKAGES}
    sources = {package: list(directory.glob(f"{package}-*.tar.gz")) for package in PACKAGES}
    if any(len(found) != 1 for found in (*wheels.values(), *sources.values())):
        found = ", ".join(sorted(path.name for path in (*directory.glob("*.whl"), *directory.glob("*.tar.gz"))))
        raise NotReleasable(
            f"{directory} must hold one wheel and one source distribution of each of {', '.join(PACKAGES)}; "
            f"it holds {found or 'neither'}: `make dist`"
        )
    return [_metadata(wheel) for (wheel,) in wheels.values()]


def core_metadata(core: Path) -> Message:
    """What the wheels of the native core will say: they are built elsewhere, at the same time. `core` is its directory."""
    project = tomllib.loads((core / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = Message()
    found["Name"] = project["name"]
    found["Version"] = tomllib.loads((core / "Cargo.toml").read_text(encoding="utf-8"))["package"]["version"]
    for name, url in project.get("urls", {}).items():
        found["Project-URL"] = f"{name}, {url}"
    return found


def _metadata(path: Path) -> Message:
    with ZipFile(path) as wheel:
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


def notes(tag: str, built: Sequence[Message], changelog: str) -> str:
    """The changelog's notes on the version that was built.

    Args:
        tag: The tag.
        built: Metadata of each package; the changelog is that of the first.
        changelog: Its text.

    Raises:
        NotReleasable: The tag names another version than that of a package, the changelog has no dated section on it, or a
            package does not name its repository.
    """
    reasons = [
        f"the tag {tag} is not the version of {each['Name']} that was built: tag v{each['Version']}, or change the version"
        for each in built
        if tag != f"v{each['Version']}"
    ]
    version = built[0]["Version"]
    text = section(changelog, version)
    if text is None:
        reasons.append(
            f"CHANGELOG.md has nothing under '## [{version}] - <date>': move there what is under 'Unreleased'"
        )
    reasons += [
        f"{each['Name']} does not say where it comes from: add Repository to [project.urls] in its pyproject.toml"
        for each in built
        if not any(url.startswith("Repository,") for url in each.get_all("Project-URL", []))
    ]
    if reasons or text is None:
        raise NotReleasable("\n".join(reasons))
    return text


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Print the notes on standard output and return 0, or the reasons against a release on standard error and return 1."""
    tag, directory = arguments
    try:
        built = [*metadata(Path(directory)), core_metadata(root / "packages" / "kinesis-efo-core")]
        text = notes(tag, built, (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    except NotReleasable as error:
        sys.stderr.write(f"not releasable: {error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
