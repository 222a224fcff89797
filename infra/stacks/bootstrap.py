"""The bootstrap stack: the state bucket, the OIDC provider for GitHub, and the roles with which a pipeline plans and applies.

An administrator applies it once per environment (see `infra.pipeline.apply_bootstrap`); the pipeline cannot change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.settings.model import Environment, Pipeline
from infra.settings.names import PIPELINE_MANAGED_BY, Names
from infra.stacks import permissions
from infra.stacks.base import deploy_to_aws
from infra.stacks.cdk import (
    App,
    IamOpenidConnectProvider,
    IamPolicy,
    IamRole,
    IamRolePolicyAttachment,
    TerraformOutput,
    TerraformStack,
)
from infra.stacks.constructs import PrivateBucket
from kinesis_efo_infra.base import pin_account, policy_document, put
from kinesis_efo_infra.iam import Statement
from kinesis_efo_infra.key import CustomerKey
from kinesis_efo_infra.places import Place

_KEEP_STATES_DAYS = 365
SESSION_SECONDS = 7200
"""Maximum session duration of the pipeline's roles in seconds: long enough to apply a plan, and to wait for jobs to catch up."""


class BootstrapStack(TerraformStack):
    """The resources that an environment's pipeline needs before it can run; without a pipeline, only the state bucket.

    Args:
        scope: The app.
        environment: The environment.
    """

    def __init__(self, scope: App, environment: Environment) -> None:
        names = Names(environment)
        super().__init__(scope, names.bootstrap_stack_name)
        pin_account(self, environment.account_id, environment.region)
        self._environment = environment
        pipeline = environment.pipeline
        # Use another `managed-by` tag: the apply role may change the environment's keys, but not the key of the state.
        deploy_to_aws(
            self,
            environment,
            names.bootstrap_state_key,
            region=environment.state_region,
            managed_by=PIPELINE_MANAGED_BY,
        )
        if pipeline is None or not pipeline.adopt_state_bucket:
            self._state_bucket()
        if pipeline is not None:
            self._roles(pipeline)

    def _roles(self, pipeline: Pipeline) -> None:
        environment = self._environment
        provider = pipeline.oidc_provider_arn or self._oidc_provider(pipeline)
        policies = {
            kind: self._policy(kind, statements) for kind, statements in permissions.policies(environment).items()
        }
        roles = {
            "plan": self._role(
                "plan",
                permissions.trust_to_plan(environment, provider),
                {kind: policies[kind] for kind in permissions.PLANNING},
            ),
            "apply": self._role(
                "apply",
                permissions.trust_to_apply(environment, provider),
                {
                    **{kind: arn for kind, arn in policies.items() if kind != "boundary"},
                    **{f"extra-{number}": arn for number, arn in enumerate(pipeline.extra_policies)},
                },
            ),
        }
        TerraformOutput(self, "role_arns", value=roles)
        TerraformOutput(self, "boundary_arn", value=policies["boundary"])

    def _state_bucket(self) -> None:
        environment = self._environment
        place = _place("state")
        key = CustomerKey(
            self,
            "key",
            alias=f"{environment.project}/pipeline/{environment.environment}",
            description=f"Terraform states in {environment.state_bucket}",
            # Always protect this key: without it, states cannot be decrypted.
            protected=True,
            place=place,
        )
        PrivateBucket(
            self,
            name=environment.state_bucket,
            key_arn=key.arn,
            expire_days={},
            noncurrent_days=_KEEP_STATES_DAYS,
            protected=environment.protected,
            place=place,
        )

    def _oidc_provider(self, pipeline: Pipeline) -> str:
        # Omit the thumbprint: AWS verifies GitHub's certificate with its own list of certificate authorities.
        provider = IamOpenidConnectProvider(
            self, "github", url=f"https://{pipeline.issuer}", client_id_list=["sts.amazonaws.com"]
        )
        return put(provider, _place("github")).arn

    def _policy(self, kind: str, statements: Sequence[Statement]) -> str:
        place = _place(kind)
        policy = IamPolicy(
            self,
            f"{kind}-policy",
            name=Names(self._environment).pipeline_policy_name(kind),
            path=Names(self._environment).pipeline_path,
            description=f"Pipeline of kinesis-efo in {Names(self._environment).qualified}: {kind}",
            policy=policy_document(self, f"{kind}-document", statements, name=f"pipeline_{place.now}").json,
        )
        return put(policy, place).arn

    def _role(self, kind: str, trust: Statement, policies: Mapping[str, str]) -> str:
        role = IamRole(
            self,
            f"{kind}-role",
            name=Names(self._environment).pipeline_role_name(kind),
            path=Names(self._environment).pipeline_path,
            description=f"Pipeline of kinesis-efo in {Names(self._environment).qualified}: {kind}",
            assume_role_policy=policy_document(self, f"{kind}-trust", [trust], name=f"{kind}_trust").json,
            max_session_duration=SESSION_SECONDS,
        )
        put(role, _place(kind))
        for name, arn in policies.items():
            attachment = IamRolePolicyAttachment(self, f"{kind}-{name}", role=role.name, policy_arn=arn)
            put(attachment, _place(kind).join(_place(name)))
        return role.arn


def _place(name: str) -> Place:
    return Place(name.replace("-", "_"))
