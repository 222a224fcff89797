"""That the loss search finds what it is for: fixes are reverted one by one, and some seed that passes with the fix fails without it."""

import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.commands import outcome

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = ROOT / "lib" / "kinesis_efo"
REVERTED: Final[list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("reverted.toml").read_text())["reverted"]
SEEDS: Final = 200
FOUND: Final = [each for each in REVERTED if "found_by" in each]


def names(each: dict[str, Any]) -> str:
    return f"{each['row']}: {each['what']}"


@pytest.mark.parametrize("reverted", REVERTED, ids=names)
def test_reverted_lines_are_still_there(reverted: dict[str, Any]) -> None:
    for file, now, _ in reverted["edits"]:
        assert (LIBRARY / file).read_text().count(now) == 1, f"{file} has changed: {now!r}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("reverted", FOUND, ids=names)
def test_reverted_fix_is_found_by_a_seed(reverted: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(LIBRARY, tmp_path / "kinesis_efo", ignore=shutil.ignore_patterns("__pycache__"))
    for file, now, before in reverted["edits"]:
        path = tmp_path / "kinesis_efo" / file
        path.write_text(path.read_text().replace(now, before))
    # The seed that found it when this was written comes first. Another one does once the worlds have changed.
    ahead = [reverted["found_by"], *range(SEEDS)]
    while ahead:
        broken = first_broken(ahead, tmp_path)
        assert broken is not None, f"{SEEDS} seeds find nothing"
        if first_broken([broken], ROOT / "lib") is None:
            return
        ahead = ahead[ahead.index(broken) + 1 :]
    pytest.fail(f"{SEEDS} seeds find nothing")


def first_broken(seeds: list[int], library: Path) -> int | None:
    """The first seed that fails with a library; None if there is none."""
    paths = os.pathsep.join(map(str, (library, ROOT / "lib", ROOT)))
    program = f"from tests.emulator.loss_world import first_broken; print(first_broken({seeds}))"
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    done = outcome([sys.executable, "-c", program], 3600, cwd=ROOT, env=environment, check=True)
    found = done.stdout.split()[-1]
    return None if found == "None" else int(found)
