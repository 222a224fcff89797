"""Fuzzes targets, one after the other: `python -m tests.fuzz [--seconds N] [target ...]`.

Stores an input that breaks a promise in `tests/fuzz/corpus/<target>`, where a test replays it from then on. Looks for inputs that
reach new code: of Python, with atheris (group `fuzz`); or of the native core, with the programs of `scripts/fuzz-core`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
TARGETS = sorted(path.name for path in CORPUS.iterdir())
TOKENS = Path(__file__).parent / "tokens.dict"
"""What the fuzzer puts into its inputs; it would not guess the names of an event."""
COMPARE = {"core", "values"}
"""Targets that do nothing but compare the native core with Python."""


def fuzz(target: str, seconds: int, found: Path) -> None:
    """Fuzz in this process; the fuzzer ends it."""
    import atheris

    # atheris instruments modules when they are imported first.
    with atheris.instrument_imports(include=["kinesis_efo.kinesis", "kinesis_efo.http2"]):
        from tests.fuzz.targets import TARGETS

    atheris.Setup([sys.argv[0], *arguments(target, seconds, found)], TARGETS[target])
    atheris.Fuzz()


def arguments(target: str, seconds: int, found: Path) -> list[str]:
    """What libFuzzer is told."""
    found.mkdir(parents=True, exist_ok=True)
    return [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        f"-dict={TOKENS}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={CORPUS / target}/",
        str(found),
        str(CORPUS / target),
    ]


def main() -> int:
    """Run each target in a separate process, because the fuzzer does not return."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the decoders.")
    parser.add_argument("targets", nargs="*", help=f"any of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=int, default=120, help="time for each target (120)")
    parser.add_argument(
        "--found", type=Path, default=Path(".fuzz"), help="directory for inputs that reach new code (.fuzz)"
    )
    parser.add_argument("--programs", type=Path, help="directory of the programs that fuzz the native core")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    known = [target for target in TARGETS if asked.programs is None or (asked.programs / target).exists()]
    if unknown := set(asked.targets) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if asked.here:
        fuzz(asked.targets[0], asked.seconds, asked.found / asked.targets[0])
    broken = []
    wanted = asked.targets or known
    if asked.programs is None and COMPARE.intersection(wanted) and not find_spec("kinesis_efo_core"):
        sys.stderr.write(f"kinesis-efo-core is missing; make core: left out: {', '.join(sorted(COMPARE))}\n")
        wanted = [target for target in wanted if target not in COMPARE]
    for target in wanted:
        if asked.programs is None:
            limits = ["--seconds", str(asked.seconds), "--found", str(asked.found)]
            fuzzer = [sys.executable, "-m", "tests.fuzz", "--here", *limits, target]
        else:
            fuzzer = [str(asked.programs / target), *arguments(target, asked.seconds, asked.found / target)]
        if subprocess.run(fuzzer, check=False).returncode:
            broken.append(target)
    if broken:
        sys.stderr.write(f"promises broken: {', '.join(broken)}; the inputs are in {CORPUS}/<target>/crash-*\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
