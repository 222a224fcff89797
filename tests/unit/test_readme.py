"""The README says what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from kinesis_efo_local import Settings
from tests.support.missing import make

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", TEXT.replace("\n", " ")))
def test_links_lead_somewhere(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).exists()


def test_its_python_is_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        ast.parse(block)


def test_its_make_targets_exist() -> None:
    for target in set(re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.MULTILINE)):
        asked = subprocess.run([make(), "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "No rule to make target" not in asked.stderr, asked.stderr


def test_its_program_reads_the_local_aws_as_it_stands() -> None:
    local = Settings()
    assert f'orders = "arn:aws:kinesis:{local.region}:{local.account_id}:stream/orders"' in TEXT
    assert "`kinesis-efo local --stream orders`" in TEXT


def test_its_figure_is_that_of_the_comparison() -> None:
    (figure,) = re.findall(r"\[(\d+) s of CPU for a GB\]", TEXT)
    page = (ROOT / "docs" / "how-it-compares.md").read_text()
    assert f"**{figure} s of CPU for a GB** is the third row" in page
    third = [line.split("|") for line in page.splitlines() if line.startswith("| kinesis-efo")][2]
    assert "each 1 s" in third[1]
    assert round(float(third[3].split()[0])) == int(figure)


def test_its_archive_command_is_one_the_job_takes() -> None:
    (command,) = re.findall(r"spark-submit jobs/archive.py (.*)", TEXT)
    source = (ROOT / "jobs" / "archive.py").read_text()
    for flag in re.findall(r"--([a-z-]+)", command):
        assert f'"--{flag}"' in source
