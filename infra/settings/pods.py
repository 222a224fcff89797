"""Rules of roles for Kubernetes pods, which use either an OIDC provider or EKS Pod Identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from infra.errors import Fault
from infra.settings.access import Eks, PolicyOnly
from infra.settings.model import Application, Environment


def within(applications: Mapping[str, Application]) -> Iterator[Fault]:
    """Yield faults in one file: an OIDC provider and a cluster, or neither; service accounts that are invalid or have two roles."""
    used: dict[str, str] = {}
    for key, application in applications.items():
        if isinstance(application.access, Eks):
            path = f"applications.{key}.access"
            yield from _faults(path, application.access)
            pods = associated(application)
            if pods and (first := used.setdefault(pods, path)) != path:
                yield Fault(f"{path}.service_account", pods, f"must be associated with one role; {first} has the same")


def associated(application: Application) -> str | None:
    """Return the service account that gets an application's role by Pod Identity; None if there is none, or EMR on EKS creates it."""
    access = application.access
    if not isinstance(access, Eks) or access.cluster is None or access.service_account is None:
        return None
    return f"{access.cluster}/{access.namespace}/{access.service_account}"


def _faults(path: str, access: Eks) -> Iterator[Fault]:
    if access.oidc_provider_arn is None and access.cluster is None:
        rule = "is missing: say the cluster's OIDC provider, or cluster: <name> for EKS Pod Identity"
        yield Fault(f"{path}.oidc_provider_arn", None, rule)
    elif access.oidc_provider_arn is not None and access.cluster is not None:
        rule = "must not come with oidc_provider_arn: a pod has its role through one of them"
        yield Fault(f"{path}.cluster", access.cluster, rule)
    elif access.cluster is None and access.service_account is None:
        rule = "is missing: a role through an OIDC provider needs it; for EMR on EKS, say emr-containers-sa-*"
        yield Fault(f"{path}.service_account", None, rule)
    elif access.cluster is not None and "*" in (access.service_account or ""):
        rule = "must be a whole name: EKS Pod Identity knows no wildcards; leave it out for those of EMR on EKS"
        yield Fault(f"{path}.service_account", access.service_account, rule)


def without_associations(environment: Environment) -> Environment:
    """Return an environment without Pod Identity associations, for the local AWS emulator, which has no EKS."""
    applications = {
        key: application.model_copy(update={"access": PolicyOnly()})
        if isinstance(application.access, Eks) and application.access.cluster
        else application
        for key, application in environment.applications.items()
    }
    return environment.model_copy(update={"applications": applications})
