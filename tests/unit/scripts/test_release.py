"""What may be released, and what not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import kinesis_efo
import kinesis_efo_infra
from scripts.release import PACKAGES, ROOT, NotReleasable, core_metadata, main, notes, section

OURS = ROOT / "CHANGELOG.md"
CORE = ROOT / "packages" / "kinesis-efo-core"

CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.2.0] - 2027-01-31

### Added

- Much.

## [1.1.0]

- Nobody said when.

## [1.0.0] - 2026-12-24

## [0.9.0] - 2026-11-11

- Something.
"""


def built(version: str, url: str) -> Message:
    return message_from_string(
        f"Name: kinesis-efo\nVersion: {version}\nProject-URL: Changelog, x\nProject-URL: {url}\n\n"
    )


HERE, NOWHERE = "Repository, https://example.org/r", "Homepage, https://example.org/h"
OTHER = "is not the version of kinesis-efo that was built: tag v1.2.0"


@pytest.mark.parametrize(
    ("tag", "version", "url", "reasons"),
    [
        ("v1.2.1", "1.2.0", HERE, [OTHER]),
        ("v1.1.0", "1.1.0", HERE, ["nothing under '## [1.1.0] - <date>'"]),
        ("v1.0.0", "1.0.0", HERE, ["nothing under '## [1.0.0] - <date>'"]),
        ("v1.2.0", "1.2.0", NOWHERE, ["add Repository to [project.urls]"]),
        ("v3.0.0", "2.0.0", NOWHERE, ["tag v2.0.0", "[2.0.0]", "add Repository"]),
    ],
)
def test_unready_version_is_refused_with_every_reason(tag: str, version: str, url: str, reasons: list[str]) -> None:
    with pytest.raises(NotReleasable) as refused:
        notes(tag, [built(version, url)], CHANGELOG)
    said = str(refused.value).splitlines()
    assert len(said) == len(reasons)
    assert all(reason in line for reason, line in zip(reasons, said, strict=True))
    with pytest.raises(NotReleasable, match=r"^the tag v1\.2\.0 is not the version of kinesis-efo that was built"):
        notes("v1.2.0", [built("1.2.0", HERE), built("1.1.0", HERE)], CHANGELOG)


def distributions(directory: Path, *versions: str, packages: Sequence[str] = PACKAGES) -> None:
    for package, version in itertools.product(packages, versions):
        with ZipFile(directory / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
            about = f"Name: {package}\nVersion: {version}\nProject-URL: Repository, https://example.org/r\n\nText"
            wheel.writestr(f"{package}-{version}.dist-info/METADATA", about)
        (directory / f"{package}-{version}.tar.gz").touch()


def test_command_prints_notes_or_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (core := tmp_path / "packages" / "kinesis-efo-core").mkdir(parents=True)
    (core / "Cargo.toml").write_text("package.version = '1.2.0'")
    (core / "pyproject.toml").write_text("project = {name = 'kinesis-efo-core'}")
    assert main(["v1.2.0", str(tmp_path)], tmp_path) == 1
    assert "it holds neither" in capsys.readouterr().err
    distributions(tmp_path, "1.2.0", packages=["kinesis_efo"])
    assert main(["v1.2.0", str(tmp_path)], tmp_path) == 1
    assert "of each of kinesis_efo, kinesis_efo_infra; it holds kinesis_efo-1.2.0" in capsys.readouterr().err
    distributions(tmp_path, "1.2.0")
    assert main(["v1.2.0", str(tmp_path)], tmp_path) == 1
    assert "not releasable: kinesis-efo-core does not say where it comes from" in capsys.readouterr().err
    (core / "pyproject.toml").write_text("project = {name = 'kinesis-efo-core', urls.Repository = 'https://x.org'}")
    assert main(["v1.2.0", str(tmp_path)], tmp_path) == 0
    assert capsys.readouterr().out == "### Added\n\n- Much.\n"
    distributions(tmp_path, "1.3.0")
    assert main(["v1.2.0", str(tmp_path)], tmp_path) == 1
    assert (
        "kinesis_efo-1.2.0.tar.gz, kinesis_efo-1.3.0-py3-none-any.whl, kinesis_efo-1.3.0.tar.gz, kinesis_efo_infra-"
        in capsys.readouterr().err
    )


def test_present_version_can_be_released() -> None:
    version = kinesis_efo.__version__
    assert version == kinesis_efo_infra.__version__ == core_metadata(CORE)["Version"], "one tag releases all packages"
    told = section(OURS.read_text(), version)
    assert told is not None, f"CHANGELOG.md has no dated section on {version}"
    unreleased, *numbers = re.findall(r"(?m)^## \[(.*?)\]", OURS.read_text())
    versions = [tuple(map(int, each.split("."))) for each in numbers]
    assert (unreleased, versions) == ("Unreleased", sorted(versions, reverse=True))
    number = numbers[numbers.index(version) + 1].rpartition(".")[0]
    assert told.startswith(f"### Up from {number}, and back"), "what a running job meets comes first"
