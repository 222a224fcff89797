"""Environment files of a user's own app: where its stacks are deployed, and by whom.

The app declares what its stacks contain. Names have the same form as those of the constructs: `kinesis-efo-<environment>-...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from kinesis_efo_infra.errors import Fault, SettingsError
from kinesis_efo_infra.gate.excuses import FILE as EXCUSES
from kinesis_efo_infra.gate.files import read_yaml, shown
from kinesis_efo_infra.gate.granted import Named
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER, Deployment
from kinesis_efo_infra.pipeline.known_regions import Region
from kinesis_efo_infra.regions import partition

_PROJECT = "kinesis-efo"
_Arn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::(aws|\d{12}):[\w+=,.@/:-]+$")]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
_Account = Annotated[str, StringConstraints(pattern=r"^\d{12}$")]
_Bucket = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
_OWNER, _NAME = "[A-Za-z0-9-]{1,39}", "[A-Za-z0-9_.-]{1,100}"
Repository = Annotated[str, StringConstraints(pattern=rf"^({_OWNER}@\d+/{_NAME}@\d+|{_OWNER}/{_NAME})$")]
"""A GitHub repository, with or without ids: `owner@id/name@id` or `owner/name`."""
WorkflowRef = Annotated[
    str,
    StringConstraints(
        pattern=rf"^{_OWNER}/{_NAME}/\.github/workflows/[\w.-]+\.ya?ml@(refs/(tags|heads)/\S+|[0-9a-f]{{40}})$"
    ),
]
"""A reusable workflow and its version, in the form of the claim `job_workflow_ref` in GitHub's tokens."""

Issuer = Annotated[
    str,
    StringConstraints(
        pattern=r"^token\.actions\.(githubusercontent\.com(/[A-Za-z0-9][A-Za-z0-9-]*)?|[a-z0-9-]+\.ghe\.com)$"
    ),
]
"""An issuer of GitHub's tokens: GitHub's default, or an enterprise's own."""


class Settings(BaseModel):
    """Base class of settings: immutable; unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Pipeline(Settings):
    """The pipeline of an environment: what may plan and apply from CI.

    Attributes:
        repository: GitHub repository: `owner@id/name@id`, or `owner/name`.
        branch: The branch that is deployed.
        after: Environment that must have been deployed before this one.
        workflows: Reusable workflows whose jobs may apply: the current version, and the next one during an upgrade.
        issuer: The issuer of GitHub's tokens, if an enterprise has its own.
        oidc_provider_arn: The account's IAM OIDC provider for this issuer, if declared elsewhere.
        adopt_state_bucket: Whether the state bucket is declared elsewhere.
        extra_policies: Additional managed policies for the role that applies.
    """

    repository: Repository
    branch: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]{1,200}$")] = "main"
    after: _Name | None = None
    workflows: list[WorkflowRef] = []
    issuer: Issuer = GITHUB_ISSUER
    oidc_provider_arn: _Arn | None = None
    adopt_state_bucket: bool = False
    extra_policies: list[_Arn] = []


class Environment(Settings):
    """An environment file.

    Attributes:
        environment: Name of the environment, of its file, and of its stack.
        region: AWS region.
        account_id: The only account that the stack may be deployed to.
        state_bucket: S3 bucket of the Terraform state.
        state_region: Region of the state bucket; default: `region`.
        protected: Whether each deployment needs an approval.
        on_demand_advantage: Whether the account uses Kinesis On-demand Advantage.
        accounts: Other accounts that the stack's policies may give access.
        boundaries: ARNs of additional permissions boundaries that the stack's roles may have.
        identities: Workloads that may assume the stack's roles: `<issuer>:<subject>` of an OIDC provider, or
            `<cluster>/<namespace>/<service account>` of EKS Pod Identity; `*` stands for any characters.
        roles: Names of roles declared elsewhere, to which the stack may attach policies.
        services: AWS services that may assume the stack's roles.
        other_consumers: Names of known consumers on the stack's streams that are declared elsewhere.
        imports: Terraform addresses of resources that the stack imports.
        scaled_elsewhere: Terraform addresses of streams that are scaled elsewhere.
        pipeline: See `Pipeline`; without it, people deploy this environment.
    """

    project: ClassVar[str] = _PROJECT
    environment: _Name
    region: Region
    account_id: _Account
    state_bucket: _Bucket
    state_region: Region | None = None
    protected: bool = False
    on_demand_advantage: bool = False
    accounts: list[_Account] = []
    boundaries: list[_Arn] = []
    identities: list[Annotated[str, StringConstraints(pattern=r"^[\w.-]+[:/][^\s\[\]?]+$")]] = []
    roles: list[Annotated[str, StringConstraints(pattern=r"^[\w+=,.@-]{1,64}$")]] = []
    services: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+$")]] = ["ec2", "emr-serverless", "pods.eks"]
    other_consumers: list[str] = []
    imports: list[str] = []
    scaled_elsewhere: list[str] = []
    pipeline: Pipeline | None = None

    @property
    def boundary(self) -> str:
        """ARN of the permissions boundary that `bootstrap` declares for roles of this environment."""
        return self._iam(f"policy/{_PROJECT}-pipeline/{_PROJECT}-pipeline-{self.environment}-boundary")

    @property
    def state_key(self) -> str:
        """S3 key of the Terraform state in the state bucket."""
        return f"{_PROJECT}/{self.environment}.tfstate"

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which the pipeline's roles recognize the environment's resources."""
        return {"environment": self.environment, "managed-by": _PROJECT}

    @property
    def deployment(self) -> Deployment:
        """The description of the environment's stack for the pipeline."""
        pipeline = self.pipeline
        role = f"role/{_PROJECT}-pipeline/{_PROJECT}-pipeline-{self.environment}"
        return Deployment(
            environment=self.environment,
            github_environment=self.environment,
            stack=self.environment,
            region=self.region,
            account_id=self.account_id,
            state_bucket=self.state_bucket,
            state_key=self.state_key,
            record_key=f"{_PROJECT}/{self.environment}.deployed.json",
            named=Named(
                self.account_id,
                frozenset(self.accounts),
                frozenset({self.boundary, *self.boundaries}),
                identities=frozenset(self.identities),
                roles=frozenset(self.roles),
                services=frozenset(self.services),
            ),
            state_region=self.state_region or "",
            repository=pipeline.repository if pipeline else "",
            branch=pipeline.branch if pipeline else "main",
            after=(pipeline.after if pipeline else None) or "",
            plan_role=self._iam(f"{role}-plan"),
            apply_role=self._iam(f"{role}-apply"),
            protected=self.protected,
            imports=frozenset(self.imports),
            scaled=frozenset(self.scaled_elsewhere),
            on_demand_advantage=self.on_demand_advantage,
            expected=frozenset(self.other_consumers),
        )

    def _iam(self, resource: str) -> str:
        return f"arn:{partition(self.region)}:iam::{self.account_id}:{resource}"


def load(directory: Path = Path("environments")) -> list[Environment]:
    """Read the environment files of a directory.

    Args:
        directory: The directory with the `<environment>.yaml` files.

    Raises:
        SettingsError: There are no files, or files have faults; the error contains all faults.
    """
    files = [path for path in sorted(directory.glob("*.yaml")) if path.name != EXCUSES]
    if not files:
        rule = (
            "holds no environment file; write <environment>.yaml there, or run this in the directory of your CDKTF app"
        )
        raise SettingsError([Fault("", None, rule, shown(directory))])
    environments: list[Environment] = []
    faults: list[Fault] = []
    for path in files:
        try:
            environment = read(path)
        except SettingsError as error:
            faults += error.faults
            continue
        environments.append(environment)
    for name, setting, value, rule in between({each.environment: each for each in environments}):
        faults.append(Fault(setting, value, rule, f"{name}.yaml"))
    if faults:
        raise SettingsError(faults)
    return environments


class _Bootstrapping(Protocol):
    """The settings in `pipeline:` that a bootstrap stack needs."""

    @property
    def oidc_provider_arn(self) -> str | None: ...

    @property
    def adopt_state_bucket(self) -> bool: ...

    @property
    def after(self) -> str | None: ...


class _Bootstrapped(Protocol):
    """Settings that a bootstrap stack needs from an environment file."""

    @property
    def project(self) -> str: ...

    @property
    def account_id(self) -> str: ...

    @property
    def state_bucket(self) -> str: ...

    @property
    def pipeline(self) -> _Bootstrapping | None: ...


def between(environments: Mapping[str, _Bootstrapped]) -> Iterator[tuple[str, str, object, str]]:
    """Yield conflicts between environments: overlapping names, cycles in `after`, resources that two bootstrap stacks would declare.

    Args:
        environments: The environments of one directory, by name.

    Yields:
        Name of the environment, the setting, its value, and the rule that it breaks.
    """
    # Compare environments across regions, because IAM names are global, but not across projects, because names begin with the project.
    for (short, one), (long, other) in permutations(environments.items(), 2):
        together = (one.account_id, one.project) == (other.account_id, other.project)
        if one.pipeline and together and long.startswith(f"{short}-"):
            rule = f"begins like {short}, whose role for applying could change what belongs to {long}: use another name or account"
            yield long, "environment", long, rule
    for name, setting, rule in _declared_once(environments):
        yield name, f"pipeline.{setting}", None, rule
    after = {name: each.pipeline.after for name, each in environments.items() if each.pipeline}
    for name, before in after.items():
        if before is not None and (before not in after or _comes_after_itself(name, after)):
            rule = "must be another environment with a pipeline, which does not come after this one"
            yield name, "pipeline.after", before, rule


def _declared_once(environments: Mapping[str, _Bootstrapped]) -> Iterator[tuple[str, str, str]]:
    """Yield environment, missing setting and rule if two bootstrap stacks would declare the same state bucket or OIDC provider."""
    declared: dict[tuple[str, str], str] = {}
    for name, environment in environments.items():
        pipeline = environment.pipeline
        if pipeline is None:
            continue
        # Compare bucket names across all accounts, because they are globally unique: the account below is "".
        bucket, provider = environment.state_bucket, "the OIDC provider"
        for setting, what, where, wanted in (
            ("oidc_provider_arn", provider, environment.account_id, pipeline.oidc_provider_arn is None),
            ("adopt_state_bucket", bucket, "", not pipeline.adopt_state_bucket),
        ):
            first = declared.setdefault((what, where), name) if wanted else name
            if first != name:
                in_account = f" in account {where}" if where else ""
                yield name, setting, f"is missing: the bootstrap stack of {first} declares {what}{in_account} already"


def _comes_after_itself(name: str, after: Mapping[str, str | None]) -> bool:
    seen, at = {name}, after[name]
    while at is not None and at not in seen:
        seen.add(at)
        at = after.get(at)
    return at is not None


def read(path: Path) -> Environment:
    """Read one environment file.

    Raises:
        SettingsError: The file cannot be read, or has faults.
    """
    place = shown(path)
    try:
        environment = Environment.model_validate(read_yaml(path))
    except ValidationError as error:
        raise SettingsError([_fault(each, place) for each in error.errors(include_url=False)]) from None
    if environment.environment != path.stem:
        rule = f"must be {path.stem!r}, as the file is called"
        raise SettingsError([Fault("environment", environment.environment, rule, place)])
    return environment


def _fault(detail: Any, place: str) -> Fault:
    where = ".".join(map(str, detail["loc"]))
    rule = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    if detail["type"] == "extra_forbidden":
        rule = "is no setting of this file; streams and applications are declared in the program that makes the stack"
    return Fault(where, None if detail["type"] == "missing" else detail["input"], rule, place)
