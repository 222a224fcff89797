"""What may be released, and what not."""

import re

import kinesis_efo
import kinesis_efo_infra
from scripts.release import ROOT, core_metadata, section

OURS = ROOT / "CHANGELOG.md"
CORE = ROOT / "packages" / "kinesis-efo-core"


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
