"""Writes the checkov gate's findings as SARIF 2.1.0 for GitHub's code scanning.

Each finding points to the entry of the environment file that caused it; checkov's own SARIF points to synthesized files, which reviewers do
not see.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from kinesis_efo_infra.gate.failures import Failure


def as_sarif(
    failures: Iterable[Failure], directory: Path, environment_of: Callable[[str], str | None], place: str = ""
) -> str:
    """Return the findings as a SARIF document.

    Args:
        failures: Checks that failed.
        directory: Directory of the environment files.
        environment_of: Returns the environment of a stack or plan.
        place: The current directory, relative to the root of its repository; paths in the document are relative to that root. `place`
            also becomes the document's category, because GitHub keeps one document per tool, commit and category.
            Source: docs.github.com, "SARIF support for code scanning", "runAutomationDetails object".
    """
    failed = list(failures)
    rules = {each.check: _rule(each) for each in failed}
    run = {
        "tool": {
            "driver": {"name": "checkov", "informationUri": "https://www.checkov.io", "rules": list(rules.values())}
        },
        "results": [_result(each, directory, environment_of(each.origin), place) for each in failed],
        **({"automationDetails": {"id": f"{place}/"}} if place else {}),
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2) + "\n"


def _rule(failure: Failure) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": failure.check, "shortDescription": {"text": failure.name}}
    if failure.guideline:
        rule["helpUri"] = failure.guideline
    return rule


def _result(failure: Failure, directory: Path, environment: str | None, place: str) -> dict[str, Any]:
    file, line = _place(failure, directory, environment)
    where = {"artifactLocation": {"uri": str(Path(place) / file)}, "region": {"startLine": line}}
    # Leave out the line number, so that the finding keeps its identity when lines move.
    fingerprint = hashlib.sha256(f"{failure.check} {failure.resource} {failure.origin}".encode()).hexdigest()
    return {
        "ruleId": failure.check,
        "level": "error",
        "message": {"text": str(failure)},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"finding/v1": fingerprint},
    }


def _place(failure: Failure, directory: Path, environment: str | None) -> tuple[str, int]:
    """Return the file and line of the entry that declares a resource. The resource's Terraform name begins with the entry's key."""
    path = directory / f"{environment}.yaml"
    if not path.exists():
        return _relative(directory), 1
    key = failure.resource.rpartition(".")[2].partition("_")[0]
    return _relative(path), _lines(path).get(key, 1)


def _relative(path: Path) -> str:
    there, root = path.absolute(), Path.cwd()
    return str(there.relative_to(root) if there.is_relative_to(root) else there)


def _lines(path: Path) -> dict[str, int]:
    """Return the line number of each stream and application in an environment file, by its key."""
    document = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    sections = document.value if isinstance(document, yaml.MappingNode) else []
    return {
        key.value: key.start_mark.line + 1
        for section, entries in reversed(sections)
        if section.value in ("streams", "applications") and isinstance(entries, yaml.MappingNode)
        for key, _ in entries.value
    }
