"""Old against new: benchmarks of an earlier version of the library and of this checkout, by turns on one machine.

A run is a process, and a pair is two of them: old and new, then new and old. This checkout's benchmarks and its local AWS measure both
versions. A benchmark that calls inner parts which the earlier version does not have is taken from that version's own checkout.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import CONFIDENCE, SLIP, Ratio
from benchmarks.machine import AWS_PYTHON, ROOT
from tests.support.class_archive import jvm_options

ONCE: Final[dict[str, dict[str, Any]]] = {
    "latency": {"CASES": [["low_latency", 4, []]], "WARM_UP_SECONDS": 20.0, "RUNS": 1, "RUN_SECONDS": 12.0},
    "micro_batch": {"WARM_UP_SECONDS": 8.0, "RUNS": 1, "SECONDS": 12.0},
    "reading": {
        "SIZES": [[1024, 256, 2_000, 86_000, 3.8]],
        "BACKLOGS": [[1024, 48, 2_000, 86_000, None, 4, True], [1024, 16, 2_000, 86_000, None, 64, True]],
        "RUNS": 1,
    },
    "cluster": {"SHARDS": [1000, 8000], "WINDOWS": 2},
    "start": {"RUNS": 1},
    "producer": {"ROUNDS": 1, "WITH_GOALS": []},
}
"""The benchmarks that are compared, and what else their modules are set to: a run is short and gives one value for each figure.

An earlier version's own benchmark ignores names that it does not have. So new cases get a name of their own.
"""
PAIRS: Final = 6
FEWEST_PAIRS: Final = 5
NEVER_JUDGED: Final = ("p99", "the longest")
"""The worst values of a run: they are shown."""

_RUN: Final = """
import json, sys
from importlib import import_module
from statistics import median
benchmark = import_module(sys.argv[1])
if len(sys.argv) > 2:
    vars(benchmark).update(json.loads(sys.argv[2]))
    print(json.dumps([(each.case, each.what, each.unit, median(each.runs)) for each in benchmark.run()]))
"""

What = tuple[str, str, str]
"""Case, what was measured, and unit of a figure."""


class Version(NamedTuple):
    """A version of the library.

    Attributes:
        root: Its checkout, with an environment in `.venv`.
        commit: Its commit, abbreviated.
    """

    root: Path
    commit: str

    def run(self, benchmark: str, *, own: bool) -> dict[What, float]:
        """Run a benchmark once.

        Args:
            benchmark: Its name.
            own: Whether it is taken from this version's checkout.

        Raises:
            RuntimeError: It failed.
        """
        ran = self._python(f"benchmarks.{benchmark}", json.dumps(ONCE[benchmark]), own=own)
        if ran.returncode:
            raise RuntimeError(f"{benchmark} failed with {self.commit}:\n{ran.stderr[-4000:]}")
        return {(case, what, unit): value for case, what, unit, value in json.loads(ran.stdout.splitlines()[-1])}

    def loads(self, benchmark: str) -> bool:
        """Whether a benchmark of this checkout finds all that it imports."""
        return not self._python(f"benchmarks.{benchmark}", own=False).returncode

    def _python(self, *arguments: str, own: bool) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        # JVMs are those of the tests: the optimizing compiler would take minutes to come to rest on a small machine.
        environment["JAVA_TOOL_OPTIONS"] = jvm_options(self.root / ".venv", as_shipped=True)
        # Benchmarks of a version without this package import the local AWS by another name, and use their own.
        if not own or (self.root / "lib" / "kinesis_efo_local").exists():
            environment[AWS_PYTHON] = sys.executable
        return subprocess.run(
            [self.root / ".venv" / "bin" / "python", "-W", "ignore", "-c", _RUN, *arguments],
            cwd=self.root if own else ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


class Comparison(NamedTuple):
    """The values of one figure, pair by pair.

    Attributes:
        benchmark: The name of the benchmark.
        what: The figure.
        old: The earlier version's values.
        new: Those of this checkout.
    """

    benchmark: str
    what: What
    old: list[float]
    new: list[float]

    @property
    def ratio(self) -> Ratio | None:
        """New divided by old, for a throughput old by new, so that more is always slower; None if a value is zero."""
        if not all(value > 0 for value in (*self.old, *self.new)):
            return None
        return Ratio.of(self.new, self.old) if "throughput" in self.what[1] else Ratio.of(self.old, self.new)

    @property
    def slipped(self) -> bool:
        """Whether this checkout certainly takes more than `SLIP` times as much. The worst values of runs are not judged."""
        judged = not any(worst in self.what[1] for worst in NEVER_JUDGED)
        return judged and self.ratio is not None and self.ratio.slipped


def compare(revision: str, names: Sequence[str], pairs: int) -> bool:
    """Print the table of an earlier version and this checkout; returns whether none of its figures has slipped."""
    progress = Console(stderr=True)
    old, new = _earlier(revision), Version(ROOT, _commit("HEAD"))
    busy: list[float] = []
    found: list[Comparison] = []
    left_out: list[str] = []
    for name in names or ONCE:
        own = not old.loads(name)
        runs: dict[Version, list[dict[What, float]]] = {old: [], new: []}
        for version in turns(old, new, pairs):
            busy.append(psutil.cpu_percent(interval=1.0))
            try:
                ran = version.run(name, own=own and version is old)
            except RuntimeError as error:
                if version is new:
                    raise
                left_out.append(f"{name} is not compared, as it fails with {old.commit}: {str(error).splitlines()[-1]}")
                break
            runs[version].append(ran)
            values = ", ".join(f"{what} {value:.4g}" for (_, what, _), value in ran.items())
            progress.print(f"{name} with {version.commit}, {len(runs[version])} of {pairs}: {values}", highlight=False)
        else:
            found += compared(name, runs[old], runs[new])
    console = Console()
    console.width = max(console.width, 160)
    console.print(_table(old, new, found, busy), *left_out, sep="\n")
    return not any(each.slipped for each in found)


def turns(old: Version, new: Version, pairs: int) -> Iterator[Version]:
    """The versions in the order of their runs: each is first in every second pair."""
    for pair in range(pairs):
        yield from (new, old) if pair % 2 else (old, new)


def compared(name: str, old: Sequence[Mapping[What, float]], new: Sequence[Mapping[What, float]]) -> list[Comparison]:
    """The figures that every run of both versions has."""
    common = [what for what in new[0] if all(what in run for run in (*old, *new))]
    if not common:
        raise RuntimeError(
            f"{name}: the two versions have no figure in common; the earlier one has {', '.join(map(str, old[0]))}"
        )
    return [Comparison(name, what, [run[what] for run in old], [run[what] for run in new]) for what in common]


def _earlier(revision: str) -> Version:
    """A version's checkout and environment, in build/against."""
    version = Version(ROOT / "build" / "against" / _commit(revision), _commit(revision))
    if not version.root.exists():
        _call("git", "-C", str(ROOT), "worktree", "prune")
        _call("git", "-C", str(ROOT), "worktree", "add", "--detach", str(version.root), version.commit)
    # Each does nothing if it is done. Versions that have no native core have no such command.
    _call("scripts/setup", "venv", ".venv", "--all-extras", cwd=version.root)
    if shutil.which("cargo") and (version.root / "packages" / "kinesis-efo-core").exists():
        _call("scripts/setup", "core", ".venv", cwd=version.root)
    return version


def _commit(revision: str) -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "--verify", f"{revision}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"AGAINST: {revision!r} is no commit or tag of this repository: {found.stderr.strip()}")
    return found.stdout.strip()


def _call(*command: str, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, stdout=sys.stderr, check=True)


def _table(old: Version, new: Version, found: Sequence[Comparison], busy: Sequence[float]) -> Table:
    dirty = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain"], capture_output=True, check=False).stdout
    table = Table(
        title=f"{new.commit}{' with changes' if dirty else ''} against {old.commit}, {datetime.now(UTC):%Y-%m-%d}",
        caption=f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GB, Python "
        f"{platform.python_version()}; before a run, other programs kept the cores busy by {median(busy):.0f} %, at most {max(busy):.0f} %. "
        f"Ratio: new by old (of a throughput, old by new), with its interval of {CONFIDENCE:.0%} (Wilcoxon's, of the pairs; 94% with five). A median fails if all of the interval lies "
        f"beyond {SLIP}; {' and '.join(NEVER_JUDGED)} are not judged.",
    )
    for column in ("benchmark", "case", "what"):
        table.add_column(column)
    for column in ("old", "new", "ratio", "interval", "pairs"):
        table.add_column(column, justify="right")
    table.add_column("")
    for each in found:
        case, what, unit = each.what
        medians = [f"{median(values):,.4g} {unit}" for values in (each.old, each.new)]
        told = ["", "", str(len(each.old)), "no ratio: a value is 0"]
        if (ratio := each.ratio) is not None:
            verdict = f"[red]{ratio.verdict}: failed" if each.slipped else ratio.verdict
            told = [f"{ratio.estimate:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}", str(ratio.pairs), verdict]
        table.add_row(each.benchmark, case, what, *medians, *told)
    return table


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(": ")[2] if names else platform.machine()
