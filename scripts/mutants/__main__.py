"""Plants one-line faults, one at a time, and runs the tests that reach them. Ends with 1 if a fault survives that is not listed.

    python -m scripts.mutants                              all modules of reading
    python -m scripts.mutants kinesis/frames leases/run    some of them
    python -m scripts.mutants --since main                 only faults in lines that changed since a commit

`tests/mutants.toml` lists the faults that survive, and why; `--note` writes those that are new into it, for somebody to give the
reason or write the test.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

from scripts.mutants.faults import Mutant, mutants
from scripts.mutants.running import Reached, fails, preload, watch

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = ROOT / "lib" / "kinesis_efo"
LISTED: Final = ROOT / "tests" / "mutants.toml"
MARKS: Final = "not (slow or spark or spark40 or spark43 or cluster)"
ENOUGH: Final = 10.0
"""Seconds of tests for each fault, the quickest first. What none of them sees, hardly any other one does."""

AREAS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    (
        "kinesis/frames",
        "kinesis/events",
        "kinesis/records",
        "kinesis/recovery",
        "kinesis/backoff",
        "kinesis/subscription",
        "kinesis/polling",
        "kinesis/quiet",
    ): ("tests/unit/kinesis",),
    ("batch/planning", "batch/reading", "batch/stretches", "batch/ending"): (
        "tests/unit/batch",
        "tests/integration/kinesis/test_batch_reading.py",
    ),
    (
        "leases/run",
        "leases/checkpoints",
        "leases/keeper",
        "leases/row",
        "leases/decision",
        "leases/watch",
        "leases/expiry",
        "leases/cleanup",
        "leases/owner",
    ): ("tests/unit/leases",),
}
"""The modules, and the tests of their area."""


def main() -> int:
    arguments = _arguments()
    # Hypothesis' examples are the same for each fault.
    os.environ["CI"] = "1"
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "lib"), str(ROOT / "packages" / "kinesis-efo-infra")]
    wanted = [name.removesuffix(".py").removeprefix("lib/kinesis_efo/") for name in arguments.modules]
    if unknown := set(wanted) - {name for names in AREAS for name in names}:
        raise SystemExit(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(sum(AREAS, ()))}")
    listed = tomllib.loads(LISTED.read_text()) if LISTED.exists() else {}
    preload()
    new, gone, total = [], [], Counter[str]()
    for names, tests in AREAS.items():
        planted = {
            name: found for name in names if not wanted or name in wanted if (found := _planted(name, arguments.since))
        }
        if not planted:
            continue
        reached = watch([_path(name) for name in planted], tests, MARKS)
        if reached.failed:
            raise SystemExit(f"tests fail without any fault: {', '.join(reached.failed)}")
        for name, found in planted.items():
            survivors = _survivors(name, found, reached, total)
            known = {entry["fault"] for entry in listed.get(name, [])}
            new += [(name, each) for each in survivors if each.name not in known]
            if not arguments.since:
                alive = {each.name for each in survivors}
                gone += [(name, fault) for fault in sorted(known - alive)]
    print(f"{total['planted']} faults, {total['survived']} survive, {len(new)} of them are not listed")
    for name, each in new:
        print(f"  lib/kinesis_efo/{name}.py:{each.lines[0]}: {each.name}")
    if gone:
        print(f"{LISTED.name} lists {len(gone)} that do not survive any more:")
        for name, fault in gone:
            print(f"  {name}: {fault}")
    if arguments.note:
        _note(new)
    return 1 if new or gone else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help="such as kinesis/frames; all by default")
    parser.add_argument("--since", metavar="COMMIT", help="only faults in lines that changed since then")
    parser.add_argument("--note", action="store_true", help="add new survivors to the list")
    return parser.parse_args()


def _path(name: str) -> Path:
    return LIBRARY / f"{name}.py"


def _planted(name: str, since: str | None) -> list[Mutant]:
    found = list(mutants(_path(name).read_text()))
    if since is None:
        return found
    lines = _changed_lines(_path(name), since)
    return [each for each in found if not lines.isdisjoint(each.lines)]


def _changed_lines(path: Path, since: str) -> set[int]:
    command = ["git", "diff", "--unified=0", since, "--", str(path)]
    changes = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    lines: set[int] = set()
    for start, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", changes, re.MULTILINE):
        lines.update(range(int(start), int(start) + int(count or 1)))
    return lines


def _survivors(name: str, found: list[Mutant], reached: Reached, total: Counter[str]) -> list[Mutant]:
    path, module = _path(name), f"kinesis_efo.{name.replace('/', '.')}"
    began, survivors = time.monotonic(), []
    every = sorted({test for (file, _), tests in reached.lines.items() if file == str(path) for test in tests})
    if fails(module, path, ast.parse(path.read_text()), every, 600):
        raise SystemExit(f"{name}: its tests fail in a fork without any fault")
    for each in found:
        tests = {test for line in each.lines for test in reached.lines.get((str(path), line), ())}
        if not each.inside:
            tests = set(every)
        rounds = [chosen for some in _rounds(tests, path) if (chosen := _quickest(some, reached))]
        if not any(fails(module, path, each.tree, chosen, _allowed(chosen, reached)) for chosen in rounds):
            survivors.append(each)
            print(f"  {name}.py:{each.lines[0]}: {each.name}{'' if rounds else ' (no test gets there)'}", flush=True)
    print(f"{name}: {len(found)} faults, {len(survivors)} survive, {time.monotonic() - began:.0f} s", flush=True)
    total["planted"] += len(found)
    total["survived"] += len(survivors)
    return survivors


def _rounds(tests: set[str], path: Path) -> tuple[set[str], set[str]]:
    """The tests in the module's own file, which mostly do, and the others: collecting them all takes longer than running them."""
    own = {test for test in tests if f"/test_{path.stem}.py::" in test}
    return own, tests - own


def _allowed(tests: list[str], reached: Reached) -> float:
    return 15 + 5 * sum(reached.seconds[test] for test in tests)


def _quickest(tests: set[str], reached: Reached) -> list[str]:
    chosen, seconds = [], 0.0
    for test in sorted(tests, key=lambda test: (reached.seconds[test], test)):
        seconds += reached.seconds[test]
        if chosen and seconds > ENOUGH:
            break
        chosen.append(test)
    return chosen


def _note(new: list[tuple[str, Mutant]]) -> None:
    with LISTED.open("a") as file:
        for name, each in new:
            fault = each.name.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'\n[["{name}"]]\nfault = "{fault}"\nwhy = ""\n')


if __name__ == "__main__":
    sys.exit(main())
