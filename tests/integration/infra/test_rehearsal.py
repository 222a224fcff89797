"""A deployment is rehearsed in local AWS: by real Terraform with the stand-in provider, and with the real one where it is in reach."""

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from infra.errors import PipelineError
from infra.local.real_provider import OUT_OF_REACH
from infra.settings.model import Environment
from tests.support.environments import EXAMPLE
from tests.support.missing import EVERYTHING, not_here
from tests.support.rehearsal import rehearse

Declare = Callable[..., Environment]


@pytest.fixture
def stand_in(provider: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Terraform uses the stand-in provider."""
    monkeypatch.setenv("TF_REATTACH_PROVIDERS", provider["TF_REATTACH_PROVIDERS"])


@pytest.mark.long
@pytest.mark.usefixtures("stand_in")
def test_stacks_are_applied_changed_and_destroyed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Every setting, but for the environment that this one is deployed after.
    text = re.sub(r"(?m)^  after: .*$", "", EXAMPLE.read_text(encoding="utf-8"))
    (tmp_path / EXAMPLE.name).write_text(text, encoding="utf-8")
    with caplog.at_level(logging.INFO):
        rehearse(tmp_path, "example", tmp_path / "scratch")
    said = [line for line in caplog.messages if line.startswith("kinesis-efo-example")]
    # What the file says; with more retention, a stream and a consumer; without protection. Then the bootstrap stack, in which nothing is protected.
    times = {"streaming": 3, "bootstrap": 1}
    assert [line.partition(": ")[2].partition(",")[0] for line in said] == [
        step
        for count in times.values()
        for step in ("initialized and valid", *["applied", "a second plan is empty"] * count, "destroyed")
    ]
    assert ": applied, 3 to import, " in said[1], "a stream, its consumer and a table were there"
    assert said[1].endswith("0 to replace, 0 to destroy")
    assert said[3].endswith("0 to replace, 0 to destroy")


@pytest.mark.slow
def test_real_provider_applies_an_environment(declare: Declare, tmp_path: Path) -> None:
    """Waits of the provider take minutes, and it has to be downloaded: where that is not asked for, it is not run."""
    if not os.environ.get(EVERYTHING):
        not_here(
            f"Terraform's AWS provider was not tried; `make rehearsal`, or {EVERYTHING}=1, in reach of its registry"
        )
    declare(streams={"orders": {"mode": "provisioned", "shards": 1}}, alarms={"dashboard": False})
    try:
        rehearse(tmp_path, "test", tmp_path / "scratch")
    except PipelineError as error:
        if OUT_OF_REACH.search(str(error)):
            not_here(f"the registry of Terraform's AWS provider is out of reach: {error}")
        raise
