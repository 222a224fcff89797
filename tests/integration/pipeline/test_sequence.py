"""From a pull request to a running job: every step of the pipeline as CI runs it, with local AWS, a fake EMR and a project."""

import shutil
import subprocess
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest

from infra.pipeline.__main__ import main as pipeline
from kinesis_efo_infra.pipeline.bundle import tree_digest
from kinesis_efo_local import LocalAws
from kinesis_efo_tools.emr.packing import find_uv
from tests.integration.pipeline.conftest import Checkout
from tests.support.emr import APPLICATION, FakeEmr, FakeRun
from tests.support.world import repeating

pytestmark = pytest.mark.long

PROJECT = """\
[project]
name = "kinesis-efo"
version = "0.0.1"
requires-python = ">=3.11"
dependencies = ["msgspec==0.22.0"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["thing.py"]
"""
LAKE = {
    "streams": ["orders"],
    "output": "s3://lake/raw",
    "checkpoint": "s3://lake/checkpoints",
    "access": {"kind": "emr-serverless", "application_id": APPLICATION},
}
JOB = {
    "application": "lake",
    "program": "jobs/archive.py",
    "arguments": ["--output", "$output", "--checkpoint", "$checkpoint", "--option", "leaseTimeout=2s"],
    "target": f"serverless:{APPLICATION}",
}
DECLARED = {"project": "shop", "emr": {"serverless": None}, "applications": {"lake": LAKE}, "jobs": [JOB]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project to pack: a small package, and the program of the job."""
    directory = tmp_path / "project"
    (directory / "jobs").mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (directory / "thing.py").write_text("", encoding="utf-8")
    (directory / "jobs" / "archive.py").write_text("print('a job')\n", encoding="utf-8")
    subprocess.run([find_uv(), "lock", "--quiet", "--project", str(directory)], check=True)
    return directory


def reading(aws: LocalAws, emr: FakeEmr, table: str, shards: int) -> AbstractContextManager[None]:
    """Keep the leases as a job would, while a run is live on EMR, and release them when it has ended."""
    dynamodb, counters = aws.client("dynamodb"), count()

    def keep() -> None:
        live = [run.id for run in emr.runs.values() if run.state == "RUNNING"]
        counter = next(counters)
        for number in range(shards) if table in dynamodb.list_tables()["TableNames"] else ():
            key = {"leaseKey": {"S": f"shardId-{number:012}"}}
            item = {**key, "leaseCounter": {"N": str(counter)}, "checkpoint": {"S": "TRIM_HORIZON"}}
            owner = {"leaseOwner": {"S": f"worker:{live[0]}"}} if live else {}
            dynamodb.put_item(TableName=table, Item={**item, **owner})

    return repeating(keep, 0.2)


def test_pull_request_becomes_a_running_job(
    aws: LocalAws,
    emr: FakeEmr,
    checkout: Checkout,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Packing writes into the working directory.
    monkeypatch.chdir(project)
    repository = checkout("seq", **DECLARED)
    environments = ["--directory", str(repository.environments)]
    packing = ["--project", str(project), "--synthesized", str(repository.synthesized)]
    jobs = [*environments, "jobs", "seq", *packing, "--patience", "120"]

    def review(commit: str) -> None:
        """Plan, as for a pull request."""
        if not repository.is_deployed:
            repository.plan(commit)

    def merge(commit: str) -> int:
        """Deploy, as after merging; no step asks a person."""
        repository.apply(f"merge of {commit}", commit)
        shutil.rmtree(repository.plans, ignore_errors=True)
        assert pipeline([*environments, "package", *packing]) == 0
        # From here on, nothing is built.
        pyproject = (project / "pyproject.toml").rename(project / "gone")
        try:
            return pipeline([*jobs, "--handed", tree_digest(repository.synthesized)])
        finally:
            pyproject.rename(project / "pyproject.toml")

    with reading(aws, emr, "shop-seq-lake", shards=2):
        # The first pull request declares everything.
        review("one")
        assert repository.comment() == 0
        assert "Merging plans `one` again, and applies that if it does exactly this" in capsys.readouterr().out
        assert emr.runs == {}
        assert merge("one") == 0
        first = emr.only()
        assert (first.state, first.name) == ("RUNNING", "shop-seq-lake")
        submitted = first.request["jobDriver"]["sparkSubmit"]
        assert submitted["entryPoint"].startswith("s3://shop-seq-111122223333/programs/")
        assert submitted["entryPointArguments"][:2] == ["--manifest", "ssm:///shop/seq/lake"]

        # The second changes the program only: nothing to plan, and the job is replaced.
        (project / "jobs" / "archive.py").write_text("print('a better job')\n", encoding="utf-8")
        review("two")
        assert not repository.plans.exists()
        assert merge("two") == 0
        assert [run.state for run in emr.runs.values()] == ["CANCELLED", "RUNNING"]
        assert first.cancelled, "it was asked to end by itself"

        # The third breaks the job, which ends as soon as it runs; the deployment says so.
        (project / "jobs" / "archive.py").write_text("raise SystemExit(1)\n", encoding="utf-8")
        before = list(emr.runs)

        def fail(run: FakeRun) -> None:
            if run.id not in before and run.state == "RUNNING":
                run.state = "FAILED"

        emr.on_look = fail
        review("three")
        assert merge("three") == 1
