"""The description of a synthesized stack that a pipeline plans, shows to reviewers, applies and checks for drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kinesis_efo_infra.gate.granted import Named

GITHUB_ISSUER = "token.actions.githubusercontent.com"
"""Issuer of the OIDC tokens with which GitHub's workflows identify themselves."""
WORKFLOW = "deploy.yml"
"""The default file name of the workflow that deploys."""

_CONSUMERS = 20
_CONSUMERS_ADVANTAGE = 50  # Kinesis developer guide, enhanced-consumers.html, "On-demand Advantage"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A stack and where it is deployed.

    Attributes:
        environment: Name of the stack's environment.
        github_environment: Name of the GitHub environment, which has the protection rules.
        stack: Name of the stack.
        region: AWS region.
        account_id: The only account that the stack may be deployed to.
        state_bucket: S3 bucket of the Terraform state.
        state_key: S3 key of the Terraform state.
        record_key: S3 key, in the state bucket, of the record of what is deployed.
        state_region: Region of the state bucket; empty if it is `region`.
        repository: GitHub repository that deploys the stack, as `owner@id/name@id` or `owner/name`; empty if people deploy it.
        branch: The branch that is deployed.
        after: Environment that must have been deployed before this one; empty if there is none.
        plan_role: ARN of the role that plans.
        apply_role: ARN of the role that applies.
        protected: Whether each deployment needs an approval.
        named: What the stack may grant, and to whom.
        imports: Terraform addresses of resources that the stack imports.
        scaled: Terraform addresses of streams that are scaled elsewhere.
        on_demand_advantage: Whether the account uses Kinesis On-demand Advantage.
        streams: Names of the stack's own streams, by ARN.
        consumers: Known consumers of the streams in `streams`, as pairs of stream ARN and consumer name.
        expected: Names of consumers that are declared elsewhere; each may be on any stream in `streams`.
    """

    environment: str
    github_environment: str
    stack: str
    region: str
    account_id: str
    state_bucket: str
    state_key: str
    record_key: str
    named: Named
    state_region: str = ""
    repository: str = ""
    branch: str = "main"
    after: str = ""
    plan_role: str = ""
    apply_role: str = ""
    protected: bool = False
    imports: frozenset[str] = frozenset()
    scaled: frozenset[str] = frozenset()
    on_demand_advantage: bool = False
    streams: Mapping[str, str] = field(default_factory=dict)
    consumers: frozenset[tuple[str, str]] = frozenset()
    expected: frozenset[str] = frozenset()

    @property
    def hmac_key(self) -> str:
        """S3 key, in the state bucket, of the object that contains the HMAC key for secrets in plans."""
        return hmac_key(self.state_key)


def hmac_key(state_key: str) -> str:
    """Return the S3 key, in the state bucket, of the object that contains the HMAC key for secrets in plans.

    >>> hmac_key("kinesis-efo/dev.tfstate")
    'kinesis-efo/dev.hmac-key'
    """
    return f"{state_key.removesuffix('.tfstate')}.hmac-key"


def github_repository(given: str) -> tuple[str, str]:
    """Return a GitHub repository as `owner/name`, and its id, which is empty if not given.

    >>> github_repository("acme@1/lake@2"), github_repository("acme/lake")
    (('acme/lake', '2'), ('acme/lake', ''))
    """
    owner, _, name = given.partition("/")
    return f"{owner.partition('@')[0]}/{name.partition('@')[0]}", name.partition("@")[2]


def github_host(issuer: str) -> str:
    """Return the GitHub host whose tokens have this issuer.

    >>> github_host("token.actions.acme.ghe.com"), github_host(f"{GITHUB_ISSUER}/acme")
    ('acme.ghe.com', 'github.com')
    """
    return issuer.removeprefix("token.actions.") if issuer.endswith(".ghe.com") else "github.com"


def deployment_order(deployments: Iterable[Deployment], branch: str | None = None) -> list[Deployment]:
    """Sort the deployments that a pipeline deploys so that each follows the deployment in its `after`; otherwise keep their order.

    The settings have been checked: `after` names one of the deployments, without cycles.

    Args:
        deployments: The deployments; those without a repository are left out.
        branch: Omit deployments from other branches; None for all.
    """
    waiting = {each.environment: each for each in deployments if each.repository and branch in (None, each.branch)}
    ordered: list[Deployment] = []

    def take(deployment: Deployment) -> None:
        if deployment in ordered:
            return
        if before := waiting.get(deployment.after):
            take(before)
        ordered.append(deployment)

    for deployment in waiting.values():
        take(deployment)
    return ordered


def job_parameters(deployment: Deployment) -> Mapping[str, str]:
    """Return the parameters of a deployment's CI job."""
    names = ("environment", "github_environment", "stack", "region", "plan_role", "apply_role")
    return {name: getattr(deployment, name) for name in names}


def consumers_at_most(*, advantage: bool) -> int:
    """Return how many consumers a stream may have.

    Args:
        advantage: Whether the account uses On-demand Advantage.
    """
    return _CONSUMERS_ADVANTAGE if advantage else _CONSUMERS
