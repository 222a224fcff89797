"""What the pages on the constructs show runs as it stands."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cdktf
import pytest

import kinesis_efo_infra
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


HERE = Path(kinesis_efo_infra.__file__).parent


def test_without_cdktf_the_package_is_named() -> None:
    """`make up` has neither CDKTF nor anything else that is installed."""
    program = """
import kinesis_efo_infra, kinesis_efo_infra.document, kinesis_efo_infra.trust
policy = kinesis_efo_infra.Policy("eu-west-1")
policy.deny_registration()
print(policy.json())
try:
    kinesis_efo_infra.Stream
except kinesis_efo_infra.MissingError as error:
    print(error)
"""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(HERE.parent)}
    # Without the packages that are installed; not `-I`, which would ignore the path as well.
    command = [sys.executable, "-S", "-c", program]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    document, missing = ran.stdout.splitlines()
    assert "NeverRegisterConsumers" in document
    assert "cdktf or cdktn is not installed" in missing
    assert "pip install 'kinesis-efo-infra[cdktf]', or 'kinesis-efo-infra[cdktn]'" in missing
