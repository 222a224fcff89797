"""What the pages on the constructs show runs as it stands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import cdktf
import pytest

from tests.support.pages import ROOT, blocks_of

HOW_TO = ROOT / "docs" / "how-to" / "own-cdktf-app.md"
README = ROOT / "packages" / "kinesis-efo-infra" / "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("page", [HOW_TO, README], ids=lambda path: path.name)
def test_its_programs_synthesize(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Node, which writes the files, stays in the directory in which it was started.
    monkeypatch.setattr(cdktf, "App", partial(cdktf.App, outdir=str(tmp_path)))
    names: dict[str, Any] = {}
    for block in blocks_of(page, "python"):
        exec(block.text, names)
    names["app"].synth()
    assert (tmp_path / "stacks" / "streaming-dev" / "cdk.tf.json").is_file()
    assert names["lake"].manifest.location in page.read_text(encoding="utf-8")
