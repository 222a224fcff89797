"""The examples are checked and planned by Terraform, and what came of it is on the page that says what the AWS provider says."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from infra.__main__ import NOT_RUN, main
from infra.errors import NotRunError, PipelineError
from infra.local import real_provider as module
from infra.local.real_provider import FILES, RECORD, Outcome, real_provider, told, written_into
from kinesis_efo_infra.engine import ENGINE
from tests.support.isolated import ROOT

DAY = date(2026, 11, 25)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page."""
    monkeypatch.chdir(ROOT)
    copy = tmp_path / "page.md"
    copy.write_text(RECORD.read_text(encoding="utf-8"), encoding="utf-8")
    return copy


@pytest.mark.long
def test_every_example_is_planned_and_recorded(
    page: Path, provider: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stand-in: what the provider itself says is for those who reach its registry.
    monkeypatch.setenv("TF_REATTACH_PROVIDERS", provider["TF_REATTACH_PROVIDERS"])
    before = page.read_text(encoding="utf-8")
    assert real_provider(page, FILES, lambda: DAY)
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(f"<!-- {ENGINE} -->\n")
    record, _, tail = rest.partition(f"<!-- end of {ENGINE} -->")
    assert before.startswith(head)
    assert before.endswith(tail)
    assert re.match(r"Run on 2026-11-25, at commit [\w.-]+, with Terraform 1\.\d+\.\d+\. ", " ".join(record.split()))
    rows = re.findall(
        r"\| `(kinesis-efo-[\w-]+)` \| valid; (?:\d+ to import, )?(\d+) to create, \d+ to update, 0 to replace, 0 to destroy \|",
        record,
    )
    assert [name for name, _ in rows] == [
        f"kinesis-efo-{each}{suffix}" for each in ("example", "dev", "prod") for suffix in ("", "-bootstrap")
    ]
    assert all(int(created) > 5 for _, created in rows)


def test_refusals_are_recorded(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        Outcome(
            "one", "Terraform 1.11.4, registry.terraform.io/hashicorp/aws 6.25.0", "valid; 3 to create", passed=True
        ),
        Outcome(
            "two",
            "Terraform 1.11.4, registry.terraform.io/hashicorp/aws 6.25.0",
            "Error: Unsupported argument",
            passed=False,
        ),
    ]
    text = told(outcomes, DAY)
    assert "with Terraform 1.11.4, registry.terraform.io/hashicorp/aws 6.25.0." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120
    assert "| `two` | refused, see below |" in text
    assert "`two`:\n\n```text\nError: Unsupported argument\n```" in text
    once = written_into(
        "<!-- cdktf -->\nkept\n<!-- end of cdktf -->\n<!-- cdktn -->\nold\n<!-- end of cdktn -->\n", "cdktn", text
    )
    assert "kept" in once
    assert "old" not in once
    assert written_into(once, "cdktn", text) == once, "the record of before is replaced"
    with pytest.raises(PipelineError, match="has no place for other"):
        written_into(once, "other", text)
    monkeypatch.setattr(module, "_planned", lambda *_: iter(outcomes))
    assert not real_provider(page, FILES[:1], lambda: DAY)


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (
            "Failed to query available provider packages\\n\\ncould not connect to registry.opentofu.org: no such host",
            NOT_RUN,
            (
                "not run: the registry of the AWS provider is out of reach: kinesis-efo-dev: init failed (is the AWS provider installed, "
                "or its registry reachable?): Failed to query available provider packages could not connect to "
                "registry.opentofu.org: no such host"
            ),
        ),
        ("the checksum of the registry does not match", 1, "the checksum of the registry does not match"),
    ],
    ids=["out of reach", "there and wrong"],
)
def test_unreachable_registry_is_not_recorded(
    said: str,
    code: int,
    told: str,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    before = page.read_bytes()
    program = tmp_path / "bin" / "tofu"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf 'Warning: old\\nError: {said}\\n' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    monkeypatch.setattr(module.real_provider, "__defaults__", (page, FILES[1:2], lambda: DAY))
    assert main(["real-provider", "--record", str(page)]) == code
    assert told in caplog.text
    assert (page.read_bytes() == before) is (code == NOT_RUN)


def test_missing_binary_ends_with_not_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "no-such-binary")
    with pytest.raises(NotRunError, match=r"there is no no-such-binary on the PATH"):
        real_provider(page)
