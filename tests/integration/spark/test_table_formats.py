"""Records come into tables of Delta Lake and Iceberg once, by the page's own lines."""

import os
import re
import sys
from pathlib import Path

import pytest

from benchmarks.peers.jars import LOCK, fetch, read_lock
from kinesis_efo_local import LocalAws
from tests.support.commands import outcome
from tests.support.missing import not_here
from tests.support.table_formats import PAGE
from tests.support.world import make_world

FORMATS = read_lock(LOCK.read_text())["tables"]


def test_the_page_names_the_tested_versions() -> None:
    assert set(re.findall(r"--packages (\S+)", PAGE.read_text())) == set(FORMATS.wanted)


@pytest.mark.spark40
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_record_is_in_the_tables_once(local_aws: LocalAws, tmp_path: Path) -> None:
    try:
        jars = fetch(FORMATS.jars)
    except OSError as error:
        not_here(f"Delta Lake and Iceberg are missing, and Maven Central is out of reach: {error}")
    world = make_world(local_aws, tmp_path, ["orders"])
    command = [sys.executable, "-m", "tests.support.table_formats", str(world.manifest), world.streams["orders"]]
    ran = outcome(
        [*command, str(tmp_path), *map(str, jars)],
        seconds=1180,
        env={**os.environ, **local_aws.environment, "PYSPARK_PYTHON": sys.executable},
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
