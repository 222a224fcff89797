"""The managed policies of an application, and its role where the settings ask for one."""

from __future__ import annotations

import hashlib

from infra import iam, names, permissions
from infra.cdk import Construct, IamInstanceProfile, IamPolicy, IamRole, IamRolePolicyAttachment
from infra.constructs.base import policy_document, put
from infra.settings import Eks, EmrEc2, EmrServerless, Environment, RoleAccess


class ReaderAccess(Construct):
    """The policy of an application and, for EMR and EKS, a role that has it.

    Args:
        scope: The parent construct.
        environment: The environment.
        application: Key of the application.
        policy: The permissions granted so far; consumer registration is denied in addition, always.
        serverless_arn: ARN of the environment's application of EMR Serverless, if it has one.
        boundary_arn: Permissions boundary of its role, if the settings name none.
    """

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        application: str,
        policy: iam.Policy,
        serverless_arn: str | None = None,
        boundary_arn: str | None = None,
    ) -> None:
        super().__init__(scope, f"access-{application}")
        settings = environment.applications[application]
        self._environment, self._application = environment, application
        self._serverless_arn, self._boundary_arn = serverless_arn, boundary_arn
        self._place = names.place(application, settings)
        # The name and not the key is in the description: IAM replaces a policy whose description changes.
        self._name = names.application_name(application, settings)
        policy.deny_registration()
        managed = IamPolicy(
            self,
            "policy",
            name=names.policy_name(environment, application),
            description=f"Read Kinesis as {self._name} of {environment.environment}; never register consumers",
            policy=policy_document(self, f"{application}_reader", policy.statements.values()).json,
        )
        self._policy_arn = put(managed, self._place).arn
        self._role_arn = None
        if isinstance(settings.access, RoleAccess):
            self._role_arn = self._role(settings.access)

    @property
    def policy_arn(self) -> str:
        """ARN of the managed policy."""
        return self._policy_arn

    @property
    def role_arn(self) -> str | None:
        """ARN of the role; None where only a policy is declared."""
        return self._role_arn

    def _role(self, access: RoleAccess) -> str:
        trust = policy_document(self, f"{self._application}_trust", [self._trust(access)])
        role = IamRole(
            self,
            "role",
            name=names.role_name(self._environment, self._application),
            description=f"Runtime of {self._name} in {self._environment.environment}",
            assume_role_policy=trust.json,
            permissions_boundary=access.permissions_boundary or self._boundary_arn,
        )
        put(role, self._place)
        # A digest: policies in different paths may share a name, and names may hold characters that Terraform refuses.
        attached = {hashlib.sha256(arn.encode()).hexdigest()[:8]: arn for arn in access.policies}
        for name, arn in {"reader": self._policy_arn, **attached}.items():
            attachment = IamRolePolicyAttachment(self, f"attach-{name}", role=role.name, policy_arn=arn)
            put(attachment, self._place.join(name))
        if isinstance(access, EmrEc2):
            put(IamInstanceProfile(self, "profile", name=role.name, role=role.name), self._place)
        return role.arn

    def _trust(self, access: RoleAccess) -> iam.Statement:
        environment = self._environment
        match access:
            case EmrEc2():
                service = f"ec2.{names.dns_suffix(environment.region)}"
                return iam.Statement("EmrOnEc2", ("sts:AssumeRole",), (), principals={"Service": (service,)})
            case EmrServerless():
                source = names.arn(environment, "emr-serverless", f"/applications/{access.application_id or '*'}")
                if self._serverless_arn and not access.application_id:
                    source = self._serverless_arn
                return iam.Statement(
                    "EmrServerless",
                    ("sts:AssumeRole",),
                    (),
                    principals={"Service": ("emr-serverless.amazonaws.com",)},
                    # Against the confused deputy: only for jobs of this account's applications.
                    conditions=(
                        iam.Condition("StringEquals", "aws:SourceAccount", (environment.account_id,)),
                        iam.Condition("ArnLike", "aws:SourceArn", (source,)),
                    ),
                )
            case Eks():
                issuer = access.oidc_provider_arn.partition("oidc-provider/")[2]
                subject = f"system:serviceaccount:{access.namespace}:{access.service_account}"
                test = "StringLike" if "*" in subject else "StringEquals"
                return iam.Statement(
                    "ServiceAccount",
                    ("sts:AssumeRoleWithWebIdentity",),
                    (),
                    principals={"Federated": (access.oidc_provider_arn,)},
                    conditions=(
                        iam.Condition("StringEquals", f"{issuer}:aud", ("sts.amazonaws.com",)),
                        iam.Condition(test, f"{issuer}:sub", (subject,)),
                    ),
                )


class RolesBoundary(Construct):
    """The boundary of the environment's roles: the pipeline's, else one that is declared here.

    The role that applies may make no role without the pipeline's.

    Args:
        scope: The parent construct.
        environment: The environment.
    """

    def __init__(self, scope: Construct, environment: Environment) -> None:
        super().__init__(scope, "roles-boundary")
        self._arn = names.boundary_arn(environment)
        accesses = [application.access for application in environment.applications.values()]
        needed = any(isinstance(each, RoleAccess) and not each.permissions_boundary for each in accesses)
        if environment.pipeline is None and needed:
            policy = IamPolicy(
                self,
                "policy",
                name=names.roles_boundary_name(environment),
                description=f"The most that roles of {environment.environment} may do, whatever their policies say",
                policy=policy_document(
                    self, names.BOUNDARY.now, permissions.boundary_without_pipeline(environment)
                ).json,
            )
            self._arn = put(policy, names.BOUNDARY).arn

    @property
    def arn(self) -> str:
        """ARN of the boundary."""
        return self._arn


class BatchAccess(Construct):
    """The policy for batch reads of an application's streams: attach it to a role of your own.

    Args:
        scope: The parent construct.
        environment: The environment.
        application: Key of the application.
        policy: The permissions granted so far; consumer registration is denied in addition, always.
    """

    def __init__(self, scope: Construct, environment: Environment, application: str, policy: iam.Policy) -> None:
        super().__init__(scope, f"batch-access-{application}")
        settings = environment.applications[application]
        policy.deny_registration()
        name = names.application_name(application, settings)
        managed = IamPolicy(
            self,
            "policy",
            name=names.batch_policy_name(environment, application),
            description=f"Read stretches of the streams of {name} of {environment.environment}, without its consumers",
            policy=policy_document(self, f"{application}_batch", policy.statements.values()).json,
        )
        self._policy_arn = put(managed, names.place(application, settings).join("batch")).arn

    @property
    def policy_arn(self) -> str:
        """ARN of the managed policy."""
        return self._policy_arn
