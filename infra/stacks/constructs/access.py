"""An application's policies, its role if the settings require one, and the permissions boundary of roles."""

from __future__ import annotations

from infra.settings import schedules
from infra.settings.access import Eks, EmrEc2, EmrServerless, RoleAccess
from infra.settings.model import Environment
from infra.settings.names import BOUNDARY, Names, application_name, entry_place
from infra.stacks import permissions
from infra.stacks.cdk import Construct, IamPolicy
from kinesis_efo_infra.access import BatchAccess, ReaderAccess
from kinesis_efo_infra.base import policy_document, put
from kinesis_efo_infra.iam import Policy
from kinesis_efo_infra.trust import EmrOnEc2, PodIdentity, ServiceAccount, Trust
from kinesis_efo_infra.trust import EmrServerless as Serverless


def reader_access(
    scope: Construct,
    environment: Environment,
    key: str,
    policy: Policy,
    *,
    serverless_arn: str | None,
    boundary_arn: str,
) -> ReaderAccess:
    """Declare an application's policy, and its role if the settings require one.

    Args:
        scope: The parent construct.
        environment: The environment.
        key: Key of the application.
        policy: The permissions granted so far.
        serverless_arn: ARN of the environment's EMR Serverless application, if it has one.
        boundary_arn: ARN of the role's permissions boundary, unless the settings name another one.
    """
    names = Names(environment)
    settings = environment.applications[key]
    access = settings.access if isinstance(settings.access, RoleAccess) else None
    return ReaderAccess(
        scope,
        f"access-{key}",
        application=application_name(key, settings),
        environment=environment.environment,
        policy=policy,
        policy_name=names.policy_name(key),
        trust=_trust(environment, access, serverless_arn) if access else None,
        role_name=names.role_name(key),
        role_policies=access.policies if access else (),
        permissions_boundary=(access.permissions_boundary if access else None) or boundary_arn,
        place=entry_place(key, settings),
    )


def batch_access(scope: Construct, environment: Environment, key: str, policy: Policy) -> BatchAccess:
    """Declare the policy for batch reads of an application's streams."""
    settings = environment.applications[key]
    return BatchAccess(
        scope,
        f"batch-access-{key}",
        application=application_name(key, settings),
        environment=environment.environment,
        policy=policy,
        policy_name=Names(environment).batch_policy_name(key),
        place=entry_place(key, settings).join("batch"),
    )


def _trust(environment: Environment, access: RoleAccess, serverless_arn: str | None) -> Trust:
    match access:
        case EmrEc2():
            return EmrOnEc2()
        case EmrServerless():
            if access.application_id:
                resource = f"/applications/{access.application_id}"
                return Serverless(Names(environment).arn("emr-serverless", resource))
            return Serverless(serverless_arn)
        case Eks():
            if access.cluster is not None:
                return PodIdentity(access.cluster, access.namespace, access.service_account)
            assert access.oidc_provider_arn is not None
            assert access.service_account is not None, "checked by pods.within"
            return ServiceAccount(access.oidc_provider_arn, access.namespace, access.service_account)


class RolesBoundary(Construct):
    """The permissions boundary of the environment's roles: the pipeline's; without a pipeline, one that is declared here.

    With a pipeline, the apply role can create only roles that have the pipeline's boundary, or one that the settings name.

    Args:
        scope: The parent construct.
        environment: The environment.
    """

    def __init__(self, scope: Construct, environment: Environment) -> None:
        names = Names(environment)
        super().__init__(scope, "roles-boundary")
        self._arn = names.boundary_arn
        accesses = [application.access for application in environment.applications.values()]
        needed = any(isinstance(each, RoleAccess) and not each.permissions_boundary for each in accesses)
        needed = needed or bool(schedules.scheduled(environment))
        if environment.pipeline is None and needed:
            statements = permissions.boundary_without_pipeline(environment)
            policy = IamPolicy(
                self,
                "policy",
                name=names.roles_boundary_name,
                description=f"The most that roles of {environment.environment} may do, whatever their policies say",
                policy=policy_document(self, "document", statements, name=BOUNDARY.now).json,
            )
            self._arn = put(policy, BOUNDARY).arn

    @property
    def arn(self) -> str:
        """ARN of the boundary."""
        return self._arn
