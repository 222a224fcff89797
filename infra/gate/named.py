"""The accounts, roles and other names in an environment's settings, to which its stacks may grant permissions."""

from __future__ import annotations

from collections.abc import Iterator

from infra.settings.access import Access, Eks, EmrEc2, EmrServerless, OtherAccount, RoleAccess
from infra.settings.model import Environment
from infra.settings.names import BOUNDARY, Names, parse_arn
from kinesis_efo_infra.gate.granted import Named
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER, github_repository
from kinesis_efo_infra.trust import PodIdentity


def named_by(environment: Environment) -> Named:
    """Return the names that an environment's settings allow in its stack."""
    names = Names(environment)
    accesses = [application.access for application in environment.applications.values()]
    others = {each for access in accesses if isinstance(access, OtherAccount) for each in access.principals}
    given = {access.permissions_boundary for access in accesses if isinstance(access, RoleAccess)}
    # With a pipeline, the bootstrap stack declares the boundary; without one, the environment's stack does.
    own = f"aws_iam_policy.{BOUNDARY.now}"
    declared = set() if environment.pipeline else {own, f"data.aws_iam_policy_document.{BOUNDARY.now}"}
    arn = names.iam_arn(f"policy/{names.roles_boundary_name}")
    ours = {names.boundary_arn} if environment.pipeline else {f"${{{own}.arn}}", arn}
    return Named(
        account=environment.account_id,
        accounts=frozenset(parse_arn(each).account for each in others),
        boundaries=frozenset(ours | {each for each in given if each}),
        declared=frozenset(declared),
        # Reserve this name: some failed checks are accepted for a resource with this name (`EXCUSED`).
        reserved=frozenset({BOUNDARY.now} if environment.pipeline else ()),
        identities=frozenset(_identities(environment)),
        topics=frozenset([environment.alarms.sns_topic] if environment.alarms.sns_topic else ()),
        services=frozenset(_services(accesses)),
    )


def _services(accesses: list[Access]) -> Iterator[str]:
    """Yield the AWS services that run jobs, and the one that starts them on a schedule."""
    yield "scheduler"
    for access in accesses:
        match access:
            case EmrEc2():
                yield "ec2"
            case EmrServerless():
                yield "emr-serverless"
            case Eks():
                yield "pods.eks"


def _identities(environment: Environment) -> Iterator[str]:
    """Yield the Kubernetes service accounts for which the environment declares a role, in the format of `Named.identities`."""
    for key, application in environment.applications.items():
        access = application.access
        if isinstance(access, Eks) and access.oidc_provider_arn:
            issuer = access.oidc_provider_arn.partition("oidc-provider/")[2]
            yield f"{issuer}:system:serviceaccount:{access.namespace}:{access.service_account}"
        elif isinstance(access, Eks) and access.cluster:
            pods = PodIdentity(access.cluster, access.namespace, access.service_account)
            for each in pods.service_accounts(environment.account_id, Names(environment).role_name(key)).values():
                yield f"{access.cluster}/{access.namespace}/{each}"


def named_by_bootstrap_of(environment: Environment) -> Named:
    """Return the names allowed in an environment's bootstrap stack, the only one that may declare roles without a boundary."""
    repository = environment.pipeline.repository if environment.pipeline else ""
    forms = {repository, github_repository(repository)[0]} - {""}
    issuer = environment.pipeline.issuer if environment.pipeline else GITHUB_ISSUER
    return Named(
        environment.account_id,
        frozenset(),
        frozenset(),
        unbounded=Names(environment).pipeline_path,
        identities=frozenset(f"{issuer}:repo:{each}:*" for each in forms),
    )
