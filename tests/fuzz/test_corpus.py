"""Replays every input of the corpus, so that what was found once stays fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import COMPARE
from tests.fuzz.targets import TARGETS
from tests.support.agreement import CORE
from tests.support.missing import not_here

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", INPUTS, ids=str)
def test_decoders_keep_their_promises_for_every_input_kept(path: Path) -> None:
    if path.parts[0] in COMPARE and CORE.events is None:
        not_here("kinesis-efo-core is missing or too old; make core")
    TARGETS[path.parts[0]]((CORPUS / path).read_bytes())


def test_every_target_has_a_corpus_and_nothing_else_has() -> None:
    assert {path.parts[0] for path in INPUTS} == TARGETS.keys()
