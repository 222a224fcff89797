"""From an empty folder to a deployed stack: a repository of another team, by the targets that the published workflows run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_local import LocalAws
from tests.support.commands import outcome
from tests.support.isolated import CONSTRUCTS, ROOT
from tests.support.missing import make

pytestmark = pytest.mark.long
# What `uv sync` brings: it would fetch a package that nobody has published.
BROUGHT = ("-o", ".venv/.full", "-o", ".venv-pipeline/.full")


@pytest.fixture
def repository(aws: LocalAws, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Writes a repository into an empty folder; runs a target of its Makefile, in which nothing else of this project is."""
    written = outcome(
        [sys.executable, "-m", "kinesis_efo_infra.pipeline", "new-repository", str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CONSTRUCTS)},
    )
    assert written.returncode == 0, written.stderr
    settings = tmp_path / "environments" / "streaming-dev.yaml"
    text = settings.read_text().replace("region: us-east-1", f"region: {aws.settings.region}")
    settings.write_text(text.replace("123456789012", aws.settings.account_id))
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / ".venv-checkov").symlink_to(ROOT / ".venv-checkov")
    place = {"LocationConstraint": "eu-west-1"}
    aws.client("s3").create_bucket(Bucket="acme-terraform-state", CreateBucketConfiguration=place)

    def run(target: str, *variables: str) -> subprocess.CompletedProcess[str]:
        return outcome(
            [make(), "-s", *BROUGHT, target, *variables],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")},
        )

    return run


def succeeds(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_new_repository_deploys_a_stack(
    aws: LocalAws, repository: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    synthesized = repository("synth", "SARIF=checkov.sarif")
    succeeds(synthesized)
    assert "checkov: 0 failed, none excused" in synthesized.stderr
    (matrix,) = json.loads(succeeds(repository("environments", "BRANCH=main")))
    # The stand-in for the provider is not installed.
    (tmp_path / "providers.lock.hcl").write_text("", encoding="utf-8")
    assert matrix["environment"] == matrix["github_environment"] == matrix["stack"] == "streaming-dev"
    assert json.loads(succeeds(repository("environments", "BRANCH=other"))) == []
    handed = f"HANDED={succeeds(repository('digest'))}"

    succeeds(repository("plan", "COMMIT=one", handed))
    shown = succeeds(repository("comment", "ONLY=streaming-dev"))
    assert "| `streaming-dev` | 11 | 0 | 0 | 0 |" in shown
    assert "**The bill of `streaming-dev`:**" in shown
    succeeds(repository("apply", "COMMIT=one", handed))
    assert aws.client("kinesis").describe_stream_summary(StreamName="streaming-dev-orders")
    parameter = aws.client("ssm").get_parameter(Name="/kinesis-efo/streaming-dev/lake", WithDecryption=True)
    manifest = parse_manifest(parameter["Parameter"]["Value"], "ssm:///kinesis-efo/streaming-dev/lake")
    assert manifest.streams["orders"].consumer_arn is not None

    again = repository("plan", "COMMIT=one", handed)
    succeeds(again)
    assert "nothing to plan" in again.stderr
    kinesis = aws.client("kinesis")
    (stream,) = {each.stream_arn for each in manifest.streams.values()}
    kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="stray")
    told = repository("drift", "COMMIT=one", handed).stdout
    assert "**1 consumer that no environment declares**" in told
    assert "/consumer/stray:" in told
    assert "What would put it right" not in told, "nothing that is declared differs"

    (tmp_path / "cdktf.out" / "manifest.json").unlink()
    assert "is not what was handed over" in repository("plan", "COMMIT=two", handed).stderr
