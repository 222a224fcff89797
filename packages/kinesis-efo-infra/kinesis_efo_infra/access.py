"""IAM managed policies for an application, and a role for its jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import Part, account_of, environment_of, policy_document, put
from kinesis_efo_infra.cdk import (
    Construct,
    EksPodIdentityAssociation,
    IamInstanceProfile,
    IamPolicy,
    IamRole,
    IamRolePolicyAttachment,
)
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.iam import Policy
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.trust import EmrOnEc2, PodIdentity, Trust


class ReaderAccess(Part):
    """An application's managed policy and, if `trust` is given, a role with this policy attached.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        application: The application, as named in descriptions and default names.
        policy: A policy from `policy_for`, to which all grants have been added. A statement that denies registering consumers is added.
        environment: Name of the environment, for descriptions and default names; default: the name of the stack.
        policy_name: Name of the policy; default: `kinesis-efo-<environment>-<application>`.
        trust: Who may assume the role: `EmrOnEc2`, `EmrServerless`, `Glue`, `ServiceAccount` or `PodIdentity`; default: no role.
        role_name: Name of the role; default: the same as the policy's name.
        role_policies: ARNs of additional managed policies for the role, such as for access to checkpoint and output buckets.
        permissions_boundary: ARN of the role's permissions boundary.
        tags: Tags of the declared resources, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: A name is invalid (IAM API reference, CreatePolicy and CreateRole).

    >>> policy = policy_for(stack)
    >>> grant = orders.grant_read(policy, lake)
    >>> access = ReaderAccess(stack, "access", application="lake", policy=policy, trust=EmrServerless())
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        application: str,
        policy: Policy,
        environment: str | None = None,
        policy_name: str | None = None,
        trust: Trust | None = None,
        role_name: str | None = None,
        role_policies: Sequence[str] = (),
        permissions_boundary: str | None = None,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"ReaderAccess {id!r}"
        environment = environment_of(scope, owner, environment)
        policy_name = policy_name or f"kinesis-efo-{environment}-{application}"
        role_name = role_name or policy_name
        checks.text(owner, "policy_name", policy_name, checks.POLICY_NAME, "give policy_name a shorter or simpler one")
        if trust is not None:
            checks.text(owner, "role_name", role_name, checks.ROLE_NAME, "give role_name a shorter or simpler one")
        super().__init__(scope, id, tags)
        self._application, self._environment, self._place = application, environment, place
        self._policy_arn = _declare(
            self,
            policy,
            policy_name,
            f"Read Kinesis as {application} of {environment}; never register consumers",
            f"{place.now}_reader" if place else None,
            place,
        )
        self._role: IamRole | None = None
        if trust is not None:
            self._role = self._declare(role_name, trust, permissions_boundary)
            self._attach(self._role, role_policies)

    @property
    def policy_arn(self) -> str:
        """ARN of the managed policy."""
        return self._policy_arn

    @property
    def role_arn(self) -> str | None:
        """ARN of the role; None if only a policy is declared."""
        return self._role.arn if self._role else None

    @property
    def role_name(self) -> str | None:
        """Name of the role, so that other constructs can grant it more permissions; None if only a policy is declared."""
        return self._role.name if self._role else None

    @property
    def grant_principal(self) -> IamRole:
        """The role that receives permissions granted to this construct. Raises `ArgumentError` if only a policy is declared."""
        if self._role is None:
            raise ArgumentError(f"{self.node.path}: grants need a role; got none: give `trust`, or grant to the policy")
        return self._role

    def _declare(self, name: str, trust: Trust, boundary: str | None) -> IamRole:
        account = account_of(self)
        statement = trust.statement(account, name)
        trusted = policy_document(self, "trust", [statement], name=f"{self._place.now}_trust" if self._place else None)
        role = IamRole(
            self,
            "role",
            name=name,
            description=f"Runtime of {self._application} in {self._environment}",
            assume_role_policy=trusted.json,
            permissions_boundary=boundary,
        )
        put(role, self._place)
        if isinstance(trust, EmrOnEc2):
            put(IamInstanceProfile(self, "profile", name=role.name, role=role.name), self._place)
        if isinstance(trust, PodIdentity):
            self._associate(role, trust, trust.service_accounts(account.account_id, name))
        return role

    def _associate(self, role: IamRole, trust: PodIdentity, service_accounts: Mapping[str, str]) -> None:
        for part, service_account in service_accounts.items():
            association = EksPodIdentityAssociation(
                self,
                f"association-{part}",
                cluster_name=trust.cluster,
                namespace=trust.namespace,
                service_account=service_account,
                role_arn=role.arn,
            )
            put(association, self._place and self._place.join(part))

    def _attach(self, role: IamRole, policies: Sequence[str]) -> None:
        # Use digests as ids: policies in different paths may share a name, and names may contain characters that Terraform rejects.
        attached = {hashlib.sha256(arn.encode()).hexdigest()[:8]: arn for arn in policies}
        for name, arn in {"reader": self._policy_arn, **attached}.items():
            attachment = IamRolePolicyAttachment(self, f"attach-{name}", role=role.name, policy_arn=arn)
            put(attachment, self._place and self._place.join(name))


class BatchAccess(Part):
    """The managed policy for batch reads of an application's streams; attach it to your own role.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        application: The application, as named in the description and the default name.
        policy: A policy from `policy_for`, to which all grants have been added. A statement that denies registering consumers is added.
        environment: Name of the environment, for the description and the default name; default: the name of the stack.
        policy_name: Name of the policy; default: `kinesis-efo-<environment>-<application>@batch`.
        tags: Tags of the declared policy, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: The name is invalid (IAM API reference, CreatePolicy).
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        application: str,
        policy: Policy,
        environment: str | None = None,
        policy_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"BatchAccess {id!r}"
        environment = environment_of(scope, owner, environment)
        policy_name = policy_name or f"kinesis-efo-{environment}-{application}@batch"
        checks.text(owner, "policy_name", policy_name, checks.POLICY_NAME, "give policy_name a shorter or simpler one")
        super().__init__(scope, id, tags)
        description = f"Read stretches of the streams of {application} of {environment}, without its consumers"
        self._policy_arn = _declare(self, policy, policy_name, description, place.now if place else None, place)

    @property
    def policy_arn(self) -> str:
        """ARN of the managed policy."""
        return self._policy_arn


def _declare(
    scope: Part, policy: Policy, name: str, description: str, document: str | None, place: Place | None
) -> str:
    policy.deny_registration()
    statements = policy_document(scope, "document", policy.statements.values(), name=document)
    # The description must not contain construct ids, which may change: Terraform replaces a policy whose description changes.
    managed = IamPolicy(scope, "policy", name=name, description=description, policy=statements.json)
    scope.node.default_child = put(managed, place)
    return managed.arn
