"""Writes the checkov gate's findings as SARIF 2.1.0 for GitHub's code scanning.

Each finding is placed at the entry of the environment file that it comes from; checkov's own SARIF points into
synthesized files, which no reviewer sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra import names
from infra.load import DIRECTORY


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed.

    Attributes:
        check: Its id.
        name: What it requires.
        resource: Terraform address of the resource that failed it.
        origin: The stack or plan.
        guideline: URL of an explanation, if there is one.
    """

    check: str
    name: str
    resource: str
    origin: str
    guideline: str | None = None

    def __str__(self) -> str:
        return f"{self.check} {self.name}: {self.resource} in {self.origin}"


def as_sarif(failures: Iterable[Failure], directory: Path = DIRECTORY) -> str:
    """The findings as a SARIF document.

    Args:
        failures: What failed.
        directory: Directory of the environment files; the document names them relative to the project.
    """
    failed = list(failures)
    rules = {each.check: _rule(each) for each in failed}
    run = {
        "tool": {
            "driver": {"name": "checkov", "informationUri": "https://www.checkov.io", "rules": list(rules.values())}
        },
        "results": [_result(each, directory) for each in failed],
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2) + "\n"


def _rule(failure: Failure) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": failure.check, "shortDescription": {"text": failure.name}}
    if failure.guideline:
        rule["helpUri"] = failure.guideline
    return rule


def _result(failure: Failure, directory: Path) -> dict[str, Any]:
    file, line = _place(failure, directory)
    where = {"artifactLocation": {"uri": file}, "region": {"startLine": line}}
    # The finding keeps its identity when lines move.
    fingerprint = hashlib.sha256(f"{failure.check} {failure.resource} {failure.origin}".encode()).hexdigest()
    return {
        "ruleId": failure.check,
        "level": "error",
        "message": {"text": str(failure)},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"finding/v1": fingerprint},
    }


def _place(failure: Failure, directory: Path) -> tuple[str, int]:
    """File and line of the entry that declares a resource, whose Terraform name begins with the entry's key."""
    path = directory / f"{names.environment_of(failure.origin)}.yaml"
    if not path.exists():
        return _relative(directory), 1
    key = failure.resource.rpartition(".")[2].partition("_")[0]
    return _relative(path), _lines(path).get(key, 1)


def _relative(path: Path) -> str:
    root = Path(__file__).parents[1]
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _lines(path: Path) -> dict[str, int]:
    """Line of each entry, by its key."""
    document = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    sections = document.value if isinstance(document, yaml.MappingNode) else []
    return {
        key.value: key.start_mark.line + 1
        for section, entries in reversed(sections)
        if section.value in ("streams", "applications") and isinstance(entries, yaml.MappingNode)
        for key, _ in entries.value
    }
