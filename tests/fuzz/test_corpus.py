"""Replays every input of the corpus, so that what was found once stays fixed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.fuzz.__main__ import COMPARE
from tests.fuzz.targets import TARGETS
from tests.support.agreement import CORE
from tests.support.missing import not_here

CORPUS = Path(__file__).parent / "corpus"
FUZZ = Path(__file__).parents[2] / "packages" / "kinesis-efo-core" / "fuzz"
INPUTS = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", INPUTS, ids=str)
def test_decoders_keep_their_promises_for_every_input_kept(path: Path) -> None:
    if path.parts[0] in COMPARE and CORE.core is None:
        not_here("kinesis-efo-core is missing; make core")
    TARGETS[path.parts[0]]((CORPUS / path).read_bytes())


def test_every_target_has_a_corpus_and_nothing_else_has() -> None:
    assert {path.parts[0] for path in INPUTS} == TARGETS.keys()


def test_each_program_fuzzes_the_target_of_its_name() -> None:
    programs = tomllib.loads((FUZZ / "Cargo.toml").read_text(encoding="utf-8"))["bin"]
    for program in programs:
        assert re.findall(r'load\("(\w+)"\)', (FUZZ / program["path"]).read_text()) == [program["name"]]
    names = [program["name"] for program in programs]
    assert names == sorted(path.stem for path in (FUZZ / "fuzz_targets").iterdir())
    # The others do not call the core.
    assert set(names) == TARGETS.keys() - {"aggregate", "http2", "records"}
