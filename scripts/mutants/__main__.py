"""Plants one-line faults, one at a time, and runs the tests that reach them. Ends with 1 if a fault survives that is not listed.

    python -m scripts.mutants                              all modules of reading
    python -m scripts.mutants kinesis/frames leases/run    some of them
    python -m scripts.mutants --since main                 only faults in lines that changed since a commit
    python -m scripts.mutants --seams --sample 40          the main suite alone against 40 faults of each module
    python -m scripts.mutants infra/settings/load.py --tests tests/unit/infra

`tests/mutants.toml` lists the faults that survive, and why; `--note` writes those that are new into it, for somebody to give the
reason or write the test.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from scripts.mutants.faults import Mutant, mutants
from scripts.mutants.running import (
    IMPORTING,
    Collected,
    NotPossible,
    Reached,
    collected,
    fails_imported,
    preload,
)

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = ROOT / "lib" / "kinesis_efo"
LISTED: Final = ROOT / "tests" / "mutants.toml"
MARKS: Final = "not (slow or spark or spark40 or spark43 or cluster)"
SEAM_MARKS: Final = "not (spark or spark40 or spark43 or cluster or long)"
SEAMS: Final = (
    "tests/unit/decisions",
    "tests/unit/records",
    "tests/emulator",
    "tests/chaos/test_seeds.py",
    "tests/chaos/test_seeds_ends.py",
    "tests/chaos/test_seeds_loss.py",
    "tests/chaos/test_seeds_program.py",
)
"""Tests of pure decisions and of whole runs in virtual time. They name no class of the center."""
ENOUGH: Final = 6.0
"""Seconds of tests for each fault, the quickest first. What none of them sees, hardly any other one does."""
ENOUGH_FOR_NEW: Final = 60.0
"""The same for a fault that would be a new survivor: it may be one of those that only a slow test sees."""
REMEMBERED: Final = 10
"""How many of the tests that saw faults are tried first."""

AREAS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    (
        "decisions/quiet",
        "kinesis/faults",
        "kinesis/clock",
        "records/decoder",
        "kinesis/recovery",
        "kinesis/polling",
        "records/events",
        "records/frames",
        "records/batches",
        "kinesis/stream",
        "kinesis/ends",
        "kinesis/subscription",
        "kinesis/delivery",
        "fetcher/shortfall",
        "cluster/members",
        "run/assignments",
        "run/probe",
        "run/losses",
        "run/query",
        "run/run",
        "decisions/progress",
        "decisions/rows",
        "decisions/planning",
        "run/gap",
        "run/standing",
        "run/streams",
        "planner/shared_run",
        "planner/program",
        "run/clients",
        "planner/run_link",
        "run/query_planner",
        "cluster/reporter",
        "cluster/remote_fetcher",
        "run/micro_batches",
        "run/serving",
        "run/table",
        "fetcher/fetcher",
    ): (
        *(
            f"tests/unit/{name}"
            for name in ("kinesis", "records", "decisions", "run", "cluster", "planner", "tasks", "fetcher")
        ),
        "tests/emulator",
    ),
    ("clock", "patience"): ("tests/unit/test_clock.py", "tests/unit/test_patience.py", "tests/unit/test_aws.py"),
    ("batch/ending", "batch/ranges", "batch/reading", "batch/planning"): (
        "tests/unit/batch",
        "tests/integration/kinesis/test_batch_reading.py",
    ),
    (
        "leases/search",
        "leases/shard_rows",
        "leases/expiry",
        "leases/owner",
        "leases/renewal",
        "leases/keys",
        "leases/row",
        "leases/run",
        "leases/checkpoints",
    ): ("tests/unit/leases", "tests/emulator"),
}
"""The modules, and the tests of their area."""


def main() -> int:
    arguments = _arguments()
    # Hypothesis' examples are the same for each fault, and more than for each change.
    os.environ.update(CI="1", KINESIS_EFO_EXAMPLES="100")
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "lib"), str(ROOT / "packages" / "kinesis-efo-infra")]
    wanted = [
        name.removeprefix("lib/kinesis_efo/").removesuffix(".py" * name.startswith("lib/kinesis_efo/"))
        for name in arguments.modules
    ]
    areas = _areas(arguments, wanted)
    if unknown := set(wanted) - {name for names in areas for name in names}:
        raise SystemExit(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(sum(areas, ()))}")
    listed = tomllib.loads(LISTED.read_text()) if LISTED.exists() else {}
    known = {name: {entry["fault"] for entry in entries} for name, entries in listed.items()}
    preload()
    new, gone, total = [], [], Counter[str]()
    for names, tests in areas.items():
        planted = {
            name: found for name in names if not wanted or name in wanted if (found := _planted(name, arguments))
        }
        if not planted:
            continue
        marks = SEAM_MARKS if arguments.seams else MARKS
        reached, survived, undecided = collected(
            tests, marks, [_path(name) for name in planted], partial(_judge, planted, known)
        )
        for name, found in planted.items():
            survivors = set(survived[name]) | {
                each for each in undecided[name] if _survives_import(name, found[each], reached)
            }
            total["planted"] += len(found)
            total["survived"] += len(survivors)
            alive = {found[each].name for each in survivors}
            expected = known.get(name, set())
            new += [(name, found[each]) for each in sorted(survivors) if found[each].name not in expected]
            if not (arguments.since or arguments.sample or arguments.tests or arguments.seams):
                gone += [(name, fault) for fault in sorted(expected - alive)]
    print(f"{total['planted']} faults, {total['survived']} survive, {len(new)} of them are not listed")
    for name, each in new:
        print(f"  {_path(name).relative_to(ROOT)}:{each.lines[0]}: {each.name}")
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
    parser.add_argument("--sample", type=int, metavar="N", help="at most N faults of each module")
    parser.add_argument("--seed", default="", help="draws the sample")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these tests instead of those of the area")
    parser.add_argument("--seams", action="store_true", help="run only the tests of decisions and of whole runs")
    parser.add_argument("--note", action="store_true", help="add new survivors to the list")
    return parser.parse_args()


def _areas(arguments: argparse.Namespace, wanted: Sequence[str]) -> Mapping[tuple[str, ...], tuple[str, ...]]:
    tests = SEAMS if arguments.seams else tuple(arguments.tests or ())
    if not tests:
        return AREAS
    return {tuple(wanted) or sum(AREAS, ()): tests}


def _path(name: str) -> Path:
    """The file of a module of the runtime; `name` may also be the path of another file in the repository."""
    path = LIBRARY / f"{name.removesuffix('.py')}.py"
    if not path.exists():
        path = ROOT / name
    if not path.is_file():
        raise SystemExit(f"no such module: {name}")
    return path


def _imported_as(path: Path) -> str:
    for root in (ROOT / "lib", ROOT / "packages" / "kinesis-efo-infra", ROOT):
        if path.is_relative_to(root):
            return ".".join(path.relative_to(root).with_suffix("").parts)
    raise AssertionError(path)


def _planted(name: str, arguments: argparse.Namespace) -> list[Mutant]:
    found = list(mutants(_path(name).read_text()))
    if arguments.since is not None:
        lines = _changed_lines(_path(name), arguments.since)
        found = [each for each in found if not lines.isdisjoint(each.lines)]
    if arguments.sample is not None and arguments.sample < len(found):
        found = random.Random(f"{arguments.seed} {name}").sample(found, arguments.sample)
    return found


def _changed_lines(path: Path, since: str) -> set[int]:
    command = ["git", "diff", "--unified=0", since, "--", str(path)]
    changes = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    lines: set[int] = set()
    for start, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", changes, re.MULTILINE):
        lines.update(range(int(start), int(start) + int(count or 1)))
    return lines


def _judge(
    planted: Mapping[str, list[Mutant]], known: Mapping[str, set[str]], collected: Collected
) -> tuple[Reached, dict[str, list[int]], dict[str, list[int]]]:
    """Plant the faults of some modules in their functions.

    Returns:
        Which tests reach what; the faults that survive; those that only an import of the module can decide about.
    """
    reached = collected.watched()
    if reached.failed:
        # To be watched makes tests slow. One that fails for that would see every fault.
        print(f"left out, since they fail without any fault: {', '.join(reached.failed)}", flush=True)
        for tests in reached.lines.values():
            tests.difference_update(reached.failed)
    survived, undecided = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    killers: list[str] = []
    for name, found in planted.items():
        path, began = _path(name), time.monotonic()
        for number, fault in enumerate(found):
            at_import = not fault.inside or IMPORTING in _tests(path, fault, reached)
            enough = ENOUGH if fault.name in known.get(name, ()) else ENOUGH_FOR_NEW
            tests = _chosen(path, fault, reached, killers, enough)
            try:
                killer = collected.fails(path, fault, tests, reached) if fault.inside and tests else None
            except NotPossible:
                at_import, killer = True, None
            if killer is not None:
                killers = [killer, *(each for each in killers if each != killer)][:REMEMBERED]
            elif at_import:
                undecided[name].append(number)
            else:
                survived[name].append(number)
                _tell(name, fault, "" if tests else " (no test gets there)")
        seconds = time.monotonic() - began
        print(
            f"{name}: {len(found)} faults, {len(survived[name])} survive, {len(undecided[name])} at import, {seconds:.0f} s",
            flush=True,
        )
    return reached, survived, undecided


def _survives_import(name: str, fault: Mutant, reached: Reached) -> bool:
    """Whether no test fails if the module is imported with a fault."""
    path = _path(name)
    if fault.inside:
        tests = _chosen(path, fault, reached, (), ENOUGH)
    else:
        every = {test for (file, _), some in reached.lines.items() if file == str(path) for test in some}
        tests = _quickest(every - {IMPORTING}, path, reached, ENOUGH)
    if tests and fails_imported(
        _imported_as(path),
        path,
        fault.tree,
        tests,
        60 + 5 * sum(reached.seconds[test] for test in tests),
    ):
        return False
    _tell(name, fault, " (at import)" if tests else " (no test gets there)")
    return True


def _tell(name: str, fault: Mutant, why: str) -> None:
    print(f"  {_path(name).relative_to(ROOT)}:{fault.lines[0]}: {fault.name}{why}", flush=True)


def _tests(path: Path, fault: Mutant, reached: Reached) -> set[str]:
    return {test for line in fault.lines for test in reached.lines.get((str(path), line), ())}


def _chosen(path: Path, fault: Mutant, reached: Reached, killers: Sequence[str], enough: float) -> list[str]:
    """The tests that reach a fault: first those that have seen other ones, then the quickest."""
    tests = _tests(path, fault, reached) - {IMPORTING}
    first = [test for test in killers if test in tests]
    return [*first, *_quickest(tests.difference(first), path, reached, enough)]


def _quickest(tests: Iterable[str], path: Path, reached: Reached, enough: float) -> list[str]:
    """The quickest tests, so many seconds of them: those in the module's own file, and as many again of the others."""
    chosen: list[str] = []
    left = {True: enough, False: enough}
    for test in sorted(tests, key=lambda test: (not _is_own(test, path), reached.busy[test], test)):
        own = _is_own(test, path)
        left[own] -= reached.busy[test]
        if left[own] > 0 or not chosen:
            chosen.append(test)
    return chosen


def _is_own(test: str, path: Path) -> bool:
    file = test.partition("::")[0]
    return file.endswith(f"/test_{path.stem}.py") or file == str(path.relative_to(ROOT))


def _note(new: list[tuple[str, Mutant]]) -> None:
    with LISTED.open("a") as file:
        for name, each in new:
            fault = each.name.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'\n[["{name}"]]\nfault = "{fault}"\nwhy = ""\n')


if __name__ == "__main__":
    sys.exit(main())
