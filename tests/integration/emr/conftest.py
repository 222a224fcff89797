"""EMR as an HTTP server, and beside it an AWS with an application that a job could read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from kinesis_efo_tools.emr.packing import PythonPlatform, _write_launcher, pack
from tests.support.emr import FakeEmr, fake_emr
from tests.support.world import World, make_world
from tests.unit.emr.test_deployment import DOCUMENT

BUCKET = "artifacts"
MANIFEST = "/kinesis-efo/test/lake"
ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.fixture
def emr() -> Iterator[FakeEmr]:
    with fake_emr() as served:
        yield served


@dataclass
class Place:
    """Everything that a job is submitted with and to.

    Attributes:
        emr: EMR.
        world: Streams, consumers and a lease table; the manifest is in Parameter Store too.
        project: A directory with a program in it.
        archive: An environment archive, with nothing in it.
        clients: By service; making one costs more than any test of it.
    """

    emr: FakeEmr
    world: World
    project: Path
    archive: Path
    clients: Mapping[str, Any]

    @property
    def s3(self) -> list[str]:
        """Keys in the bucket."""
        listed = self.clients["s3"].list_objects_v2(Bucket=BUCKET)
        return [each["Key"] for each in listed.get("Contents", [])]

    def deploy(self, **changes: object) -> None:
        """Write down how the application is run, as the infrastructure does."""
        here = {"environment": "test", "region": "us-east-1", "manifest": f"ssm://{MANIFEST}"}
        name, value = f"{MANIFEST}/job", json.dumps({**DOCUMENT, **here, **changes})
        self.clients["ssm"].put_parameter(Name=name, Type="String", Value=value, Overwrite=True)


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(consumer_creating_seconds=0.0)) as local:
        local.client("s3").create_bucket(Bucket=BUCKET)
        yield local


@pytest.fixture(scope="module")
def clients(aws: LocalAws) -> Mapping[str, Any]:
    return {service: aws.client(service) for service in ("s3", "ssm")}


@pytest.fixture
def place(
    aws: LocalAws, clients: Mapping[str, Any], emr: FakeEmr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    for name, value in {**aws.environment, **emr.environment}.items():
        monkeypatch.setenv(name, value)
    world = make_world(aws, tmp_path, {"orders": 1})
    ssm, s3 = clients["ssm"], clients["s3"]
    ssm.put_parameter(Name=MANIFEST, Type="String", Value=world.manifest.read_text(), Overwrite=True)
    project = tmp_path / "project"
    (project / "jobs").mkdir(parents=True)
    (project / "jobs" / "archive.py").write_text("print('a job')\n")
    made = Place(emr, world, project, _empty_archive(tmp_path), clients)
    yield made
    for key in made.s3:
        s3.delete_object(Bucket=BUCKET, Key=key)
    ssm.delete_parameters(Names=[MANIFEST, f"{MANIFEST}/job"])


def _empty_archive(directory: Path) -> Path:
    tree = directory / "tree"
    (tree / "lib").mkdir(parents=True)
    platform = PythonPlatform("3.11", "arm64")
    _write_launcher(tree / "bin" / "python", platform)
    described = {"python": platform.python, "architecture": platform.architecture, "packages": {"kinesis-efo": "0"}}
    (tree / "environment.json").write_text(json.dumps(described))
    pack(tree, directory / "environment.tar.gz")
    return directory / "environment.tar.gz"
