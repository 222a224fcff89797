"""The pipeline's commands against local AWS: real Terraform with its state in S3, a stand-in for the AWS provider."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.__main__ import main as infra
from infra.pipeline.__main__ import main as pipeline
from infra.pipeline.deployments import deployment_of
from infra.settings import ledger
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from kinesis_efo_infra.pipeline.bundle import CONFIGURATION, Meta
from kinesis_efo_infra.pipeline.deployment import Deployment
from kinesis_efo_infra.pipeline.drift import look_for_drift
from kinesis_efo_infra.pipeline.plans import PROVIDERS, Gate, Planner
from kinesis_efo_infra.pipeline.record import Deployed, Records
from kinesis_efo_local import LocalAws, Settings
from tests.support.emr import FakeEmr, fake_emr
from tests.support.missing import terraform
from tests.support.moto_gaps import filled
from tests.support.terraform.harness import stand_in
from tests.unit.infra.conftest import prices

REGION, ACCOUNT = "eu-west-1", "111122223333"
# Terraform's S3 backend knows AWS_ENDPOINT_URL, but not that it is no AWS.
BACKEND = ("use_path_style", "skip_credentials_validation", "skip_requesting_account_id", "skip_region_validation")

__all__ = ["prices"]  # a fixture
Document = dict[str, Any]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """Local AWS, which the provider and Terraform's backend work with."""
    terraform()
    settings = Settings(region=REGION, account_id=ACCOUNT, consumer_creating_seconds=0.1)
    with (
        pytest.MonkeyPatch.context() as patch,
        filled(settings.account_id, REGION),
        LocalAws(settings=settings) as local,
        stand_in(tmp_path_factory.mktemp("provider"), local.environment) as environment,
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("TF_CLI_ARGS_init", " ".join(f"-backend-config={each}=true" for each in BACKEND))
        yield local


class Repository:
    """A checkout: environment files, their synthesized stacks, and plans.

    Args:
        directory: Its directory.
        name: Name of the environment; each test needs another one, since tests share local AWS.
        aws: Local AWS.
    """

    def __init__(self, directory: Path, name: str, aws: LocalAws) -> None:
        self.directory, self.name, self.aws = directory, name, aws
        self.environments = directory / "environments"
        self.environments.mkdir()
        self.providers = directory / PROVIDERS
        # The stand-in for the provider is not installed.
        self.providers.write_text(
            'provider "registry.terraform.io/hashicorp/aws" {\n  version = "6.25.0"\n}\n', encoding="utf-8"
        )
        self.synthesized, self.plans = directory / "cdktf.out", directory / "plans"
        self.document: Document = {
            "environment": name,
            "region": REGION,
            "account_id": ACCOUNT,
            "state_bucket": "terraform-state",
            "pipeline": {"repository": "acme/lake"},
            "streams": {"orders": {"mode": "provisioned", "shards": 2}},
            "applications": {"lake": {"streams": ["orders"]}},
        }

    @property
    def stack(self) -> str:
        """Name of the stack."""
        return Names(self.environment).stack_name

    def commit(self, **changes: Any) -> None:
        """Change the environment file, and synthesize it."""
        self.document.update(changes)
        path = self.environments / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(self.document, sort_keys=False), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CDKTF_OUTDIR", str(self.synthesized))
            if self.environment.protected:
                ledger.accept(self.environments, self.environment)
            assert infra(["--directory", str(self.environments), "synth"]) == 0

    @property
    def environment(self) -> Environment:
        """The environment, loaded from its file."""
        return load_environment(self.environments / f"{self.name}.yaml")

    @property
    def deployment(self) -> Deployment:
        """Where the environment is deployed."""
        return deployment_of(self.environment)

    @property
    def configuration(self) -> Path:
        """The synthesized stack."""
        return self.synthesized / "stacks" / self.stack / CONFIGURATION

    def forge(self, change: Callable[[Document], None]) -> None:
        """Change the synthesized stack."""
        stack = json.loads(self.configuration.read_text(encoding="utf-8"))
        change(stack)
        self.configuration.write_text(json.dumps(stack), encoding="utf-8")

    def planner(self, gate: Gate = lambda _: [], **changes: Any) -> Planner:
        """Makes and applies plans, without checkov, which takes seconds."""
        return Planner(self.synthesized, Records(self.aws.client("s3")), self.providers, gate, **changes)

    def plan(self, commit: str, plans: Path | None = None, **options: Any) -> Meta:
        """Plan a commit."""
        return self.planner().plan(self.deployment, commit, plans or self.plans, **options)

    def apply(self, *commits: str, plans: Path | None = None, planner: Planner | None = None) -> None:
        """Apply the plan of a commit."""
        (planner or self.planner()).apply(self.deployment, commits, plans or self.plans)

    def deploy(self, commit: str) -> None:
        """Plan a commit and apply that."""
        self.plan(commit)
        self.apply(commit)

    def drift(self, *asks: Any) -> str | None:
        """The report on what differs from the commit `one`; None if nothing does."""
        return look_for_drift(self.planner(), self.deployment, "one", self.directory / "drift", {}, *asks)

    @property
    def is_deployed(self) -> bool:
        """Whether what is synthesized was applied last."""
        return self.planner().is_deployed(self.deployment)

    @property
    def record(self) -> Deployed:
        """The record of what is deployed."""
        return self.planner().records.load(self.deployment)

    def step(
        self, name: str, *arguments: str, plans: Path | None = None, scanned: bool = False, history: bool = False
    ) -> int:
        """Run a step of the pipeline on the environment; without checkov and Git, unless a test is about these."""
        where = ["--synthesized", str(self.synthesized), "--plans", str(plans or self.plans)]
        with pytest.MonkeyPatch.context() as patch:
            if not scanned:
                patch.setattr("kinesis_efo_infra.pipeline.steps.checkov_beside", lambda *_: lambda _: [])
            if not history:
                patch.setattr("kinesis_efo_infra.pipeline.steps.is_before", lambda *_: False)
            return pipeline(["--directory", str(self.environments), name, self.name, *where, *arguments])

    def comment(self) -> int:
        """Print the comment."""
        return pipeline(["--directory", str(self.environments), "comment", "--plans", str(self.plans)])


Checkout = Callable[..., Repository]


@pytest.fixture
def checkout(aws: LocalAws, tmp_path: Path) -> Checkout:
    """Makes the state bucket, and a repository with an environment file, which is synthesized."""
    s3 = aws.client("s3")
    if not s3.list_buckets()["Buckets"]:
        s3.create_bucket(Bucket="terraform-state", CreateBucketConfiguration={"LocationConstraint": REGION})

    def make(name: str, **changes: Any) -> Repository:
        repository = Repository(tmp_path, name, aws)
        repository.commit(**changes)
        return repository

    return make


@pytest.fixture
def emr(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEmr]:
    with fake_emr() as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        yield served
