"""The examples are checked and planned by Terraform, and what came of it is on the page that says what the AWS provider says."""

import logging
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from infra.__main__ import NOT_RUN, main
from infra.local import real_provider as module
from infra.local.real_provider import FILES, RECORD, real_provider
from kinesis_efo_infra.engine import ENGINE
from tests.support.commands import program
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


NOBODY = "could not connect to registry.opentofu.org: no such host"


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (NOBODY, NOT_RUN, rf"not run: the registry of the AWS provider is out of reach: kinesis-efo-dev: .*{NOBODY}"),
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
    tofu = program(tmp_path / "bin" / "tofu", rf"printf 'Warning: old\nError: {said}\n' >&2; exit 1")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(tofu))
    monkeypatch.setattr(module.real_provider, "__defaults__", (page, FILES[1:2], lambda: DAY))
    assert main(["real-provider", "--record", str(page)]) == code
    assert re.search(told, caplog.text)
    assert (page.read_bytes() == before) is (code == NOT_RUN)
