"""A running job goes up to the present code, back to an earlier version that is really run, and up again: every record once.

`make upgrade` runs this on both versions of Spark. The earlier version comes from the history of the repository.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.commands import outcome
from tests.support.world import World, make_world, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.upgrade, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
BEFORE_LASTS = "979fea3701b01671863049dafa8279369c4fceca"
"""The first commit whose offsets name last records. The one before it is the earlier version."""
PART = 300


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    settings = Settings(
        consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0, max_event_records=20
    )
    with LocalAws(settings=settings) as started:
        yield started


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as it was before its offsets named last records."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", f"{BEFORE_LASTS}^", "lib"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.fail(
            f"this test runs an earlier version from the history, and commit {BEFORE_LASTS[:10]}^ is not in this clone: "
            f"`git fetch --unshallow` ({archive.stderr.decode().strip()})",
            pytrace=False,
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    # Spark gives a worker 10 s to come up, and on a busy machine compiling may take as long.
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], check=True)
    return folder / "lib"


class Job:
    """One query, which several versions run one after the other."""

    def __init__(self, world: World, folder: Path, **options: str) -> None:
        self.checkpoint, self.output = folder / "checkpoint", folder / "output"
        self.output.mkdir()
        self._world = world
        self._options = {**world.options, "leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", **options}
        self._put = 0

    @property
    def rows(self) -> list[int]:
        return sorted(number for file in self.output.glob("*.json") for number in json.loads(file.read_text()))

    @property
    def offsets(self) -> list[dict[str, Any]]:
        """The offsets in Spark's log, in order."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]

    def run(self, code: Path) -> None:
        """Let a version read what is there and what comes now, to the last record."""
        self._world.put([(f"k{number}", b"%d" % number) for number in range(self._put, self._put + PART)])
        self._put += PART
        config = {
            "checkpoint": str(self.checkpoint),
            "output": str(self.output),
            "options": self._options,
            "until": self._put,
        }
        ran = outcome(
            [sys.executable, str(PROGRAM), json.dumps(config)],
            seconds=600,
            env={
                **os.environ,
                **self._world.aws.environment,
                "PYTHONPATH": str(code),
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        assert ran.returncode == 0, ran.stderr[-8000:]
        assert ran.stdout.splitlines()[-1] == f"{code}/kinesis_efo/__init__.py", "it is this version that has run"
        wait_until(lambda: "leaseOwner" not in self._world.leases()["#run:orders"], 30, "the lease is free")

    def die_in_the_last_micro_batch(self) -> tuple[Path, str]:
        """Leave the checkpoint as if Spark had died there; returns the file of its rows, and what it holds."""
        last = max(int(file.name) for file in (self.checkpoint / "offsets").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        file = self.output / f"{last}.json"
        rows = file.read_text()
        file.write_text("[]")
        return file, rows


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_a_job_upgrades_rolls_back_and_upgrades_again(aws: LocalAws, earlier: Path, tmp_path: Path, mode: str) -> None:
    world = make_world(aws, tmp_path, {"orders": 2})
    job = Job(world, tmp_path, readMode=mode, maxRecordsPerTrigger="100")
    job.run(earlier)
    assert len(job.offsets) >= 2
    assert not {"lasts", "mark"} & set().union(*job.offsets), "what earlier versions write"
    for code in (ROOT / "lib", earlier, ROOT / "lib"):
        known = len(job.offsets)
        file, rows = job.die_in_the_last_micro_batch()
        job.run(code)
        assert sorted(json.loads(file.read_text())) == sorted(json.loads(rows)), (
            "the same micro-batch, by another version"
        )
        assert job.rows == list(range(len(job.rows))), "each record once"
        later = job.offsets[known:]
        assert later
        marked = [{"lasts", "mark"} <= offset.keys() for offset in later]
        assert any(marked) if code != earlier else not any(marked)
        assert "marks" in world.leases()["#run:orders"], "what earlier versions leave as it is"
    assert len(job.rows) == 4 * PART
    # The version in between wrote offsets without a mark, so that the checkpoint has another one now.
    assert len({offset["mark"].partition(":")[0] for offset in job.offsets if "mark" in offset}) == 2
