"""The table in README.md of what was run on what, read from the workflows: a cell cannot say more than they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "Spark 4.0, 4.3": ("test",),
    "Spark 4.1": ("sparks", "glue"),
    "Spark 4.2": ("sparks",),
    # GitHub's Ubuntu 24.04 has Python 3.12 and Java 17.
    "Python 3.11": (),
    "Python 3.12": ("test",),
    "Python 3.13": ("glue",),
    "Python 3.14, pandas 3, pytest 9.2": ("newest",),
    "Java 17": ("test",),
    "Java 21": (),
    "Java 25, on Spark 4.3": ("newest",),
    "Spark Connect": ("test",),
    "a cluster of Linux hosts": ("cluster",),
    "macOS": ("quick", "quickstart"),
    "Linux on ARM": (),
    "Kinesis itself": (),
    "EMR, EMR Serverless, EMR on EKS": (),
    "Glue": (),
    "Databricks": (),
}
"""What something runs on, and the targets of make that run it there, any of which is enough; none: no workflow does."""
ONCE: Final = {"Python 3.11": "2026-11-29"}
"""When tests were run by hand, on a developer's machine."""
NOT_YET: Final = frozenset({"macOS", "Python 3.13", "Python 3.14, pandas 3, pytest 9.2", "Java 25, on Spark 4.3"})
"""Whose workflow has not run yet: take a row out once it has."""
_NEVER, _ONCE, _NIGHT, _CHANGE = "never", "once", "every night", "every change"


def table() -> str:
    """The table in Markdown: a row for how often, with what runs so often."""
    often = targets()
    rows: dict[str, list[str]] = {_CHANGE: [], _NIGHT: []}
    for row, wanted in ROWS.items():
        rows.setdefault(_cell(row, wanted, often), []).append(row)
    lines = [f"| {how_often} | {'; '.join(names)} |" for how_often, names in rows.items() if names]
    return "\n".join(["| tests run | on |", "|---|---|", *lines])


def _cell(row: str, wanted: tuple[str, ...], often: Mapping[str, str]) -> str:
    found = {often[target] for target in wanted if target in often and row not in NOT_YET}
    if found:
        return _CHANGE if _CHANGE in found else _NIGHT
    return f"{_ONCE} ({ONCE[row]})" if row in ONCE else f"*{_NEVER}*"


def targets() -> dict[str, str]:
    """How often workflows run each target of make on Linux; those of macOS have to run there."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = _read(path)
        # YAML 1.1 reads the key `on` as true.
        events = workflow[True]
        often = _CHANGE if "pull_request" in events else _NIGHT if "schedule" in events else ""
        for job in workflow["jobs"].values():
            for target in _of_job(job) if often else ():
                if found.get(target) != _CHANGE:
                    found[target] = often
    return found


def _of_job(job: Mapping[str, Any]) -> Iterator[str]:
    matrix = job.get("strategy", {}).get("matrix", {}).get("target", [])
    for step in job.get("steps", []):
        if str(step.get("uses", "")).startswith("./"):
            yield from _of_job(_read(ROOT / step["uses"] / "action.yml")["runs"])
        for words in re.findall(r"\bmake ([^\n&|;]+)", step.get("run", "")):
            for word in words.split():
                yield from matrix if word == '"$TARGET"' else [word]


def _read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found
