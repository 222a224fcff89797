"""What the site makes of the repository's pages; that it is whole, `make lint` checks."""

from __future__ import annotations

import pytest

import kinesis_efo
import kinesis_efo_infra
from scripts.site_pages import (
    GROUPS,
    anchor,
    constructs,
    examples,
    python_api,
    with_indents_of_mkdocs,
    with_links_of_the_site,
)

PAGE = "docs/cluster.md"


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("docs/cluster.md", "[sizing](sizing.md#memory)", "[sizing](sizing.md#memory)"),
        ("docs/cluster.md", "[a job](../README.md#a-job)", "[a job](index.md#a-job)"),
        ("README.md", "[how many\nfetchers](docs/sizing.md)", "[how many\nfetchers](sizing.md)"),
        ("tests/SCENARIOS.md", "[tests](../CONTRIBUTING.md)", "[tests](contributing.md)"),
        ("docs/how-to/replay.md", "[a job](../../README.md#a-job)", "[a job](../index.md#a-job)"),
        ("docs/how-to/replay.md", "[upserts](upserts.md)", "[upserts](upserts.md)"),
        ("docs/how-to/replay.md", "[sizing](../sizing.md#memory)", "[sizing](../sizing.md#memory)"),
        ("docs/cluster.md", "[replay](how-to/replay.md)", "[replay](how-to/replay.md)"),
        ("README.md", "![a picture](docs/top.svg)", "![a picture](top.svg)"),
        ("README.md", "[EMR](https://aws.amazon.com/emr/)", "[EMR](https://aws.amazon.com/emr/)"),
        ("README.md", "[below](#options)", "[below](#options)"),
        ("README.md", "[`archive.py`](jobs/archive.py) is", "`archive.py` is"),
        ("README.md", "```\n[code](jobs)\n```\n", "```\n[code](jobs)\n```\n"),
    ],
)  # fmt: skip
def test_links_lead_to_pages_of_the_site(page: str, link: str, there: str) -> None:
    assert with_links_of_the_site(link, page, None) == there


def test_other_files_are_in_the_repository() -> None:
    link = with_links_of_the_site("[`jobs/archive.py`](../jobs/archive.py)", PAGE, "https://git.example/kinesis-efo")
    assert link == "[`jobs/archive.py`](https://git.example/kinesis-efo/blob/HEAD/jobs/archive.py)"


def test_code_in_a_list_stays_in_it() -> None:
    text = "1. Declare it:\n\n   ```yaml\n   streams:\n     orders: 1\n   ```\n\n2. Deploy it.\n\n```sh\n  make\n```\n"
    assert with_indents_of_mkdocs(text) == (
        "1. Declare it:\n\n    ```yaml\n    streams:\n      orders: 1\n    ```\n\n2. Deploy it.\n\n```sh\n  make\n```\n"
    )


def test_an_item_behind_one_of_several_paragraphs_is_an_item() -> None:
    assert with_indents_of_mkdocs("- One\n  goes on.\n\n  More.\n- Two\n") == (
        "- One\n  goes on.\n\n    More.\n\n- Two\n"
    )


def test_anchors_are_those_of_github() -> None:
    assert anchor("`subscribe.maxRetries` & Co: what for?", "-") == "subscribemaxretries--co-what-for"


def test_every_public_name_has_its_place() -> None:
    page = python_api()
    named = [line.removeprefix("::: kinesis_efo.") for line in page.splitlines() if line.startswith(":::")]
    assert sorted(named) == sorted({*kinesis_efo.__all__} - {"__version__"})
    assert {name for names in GROUPS.values() for name in names} <= set(named)


def test_every_public_name_of_the_constructs_has_its_place() -> None:
    named = [
        line.removeprefix("::: kinesis_efo_infra.") for line in constructs().splitlines() if line.startswith(":::")
    ]
    assert sorted(named) == sorted({*kinesis_efo_infra.__all__} - {"__version__"})


def test_programs_are_shown_whole() -> None:
    page = examples()
    assert "## jobs/archive.py" in page
    assert "with job(spark):" in page
