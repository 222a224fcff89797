"""Applies the bootstrap stack of an environment, which also declares the bucket that stores the stack's own state.

The first time, the state is stored in a file, and moved to the bucket once the bucket exists. After an interruption, run the same
command again to continue. An administrator runs it; Terraform shows its plan, and asks for confirmation.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from botocore.exceptions import ClientError

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from infra.settings.model import Environment, Pipeline
from infra.settings.names import PIPELINE_MANAGED_BY, Names
from infra.settings.values import OWNER_TAGS
from kinesis_efo_infra.gate.allowed import in_state
from kinesis_efo_infra.pipeline import comparison
from kinesis_efo_infra.pipeline.aws import asking
from kinesis_efo_infra.pipeline.deployers import DEPLOY, check_rules
from kinesis_efo_infra.pipeline.github import Api
from kinesis_efo_infra.pipeline.record import Records, read_object
from kinesis_efo_infra.pipeline.terraform import Terraform

logger = logging.getLogger(__name__)

_OVERRIDE = "bootstrap_override.tf.json"
_STATE = "bootstrap.tfstate"


def apply_bootstrap(
    environment: Environment,
    synthesized: Path,
    s3: Any,
    iam: Any,
    *,
    github: Api | None = None,
    deploy: Path = DEPLOY,
    approve: bool = False,
    terraform: Callable[[Path], Terraform] = Terraform,
) -> None:
    """Apply the bootstrap stack of an environment, the first time or again.

    Args:
        environment: The environment; without a pipeline, only its state bucket is created.
        synthesized: Directory that `synthesize_bootstrap` wrote; it also stores the state until the bucket exists.
        s3: A boto3 client of S3.
        iam: A boto3 client of IAM.
        github: GitHub's API, to check the protection rules of the repository that deploys; None skips this check.
        deploy: Path of the workflow that deploys.
        approve: Whether to apply without asking for confirmation.
        terraform: Creates a `Terraform` for a directory.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
        PipelineError: GitHub's rules allow others to deploy, the bucket or the OIDC provider for GitHub belongs to something else, or
            Terraform fails.
    """
    names = Names(environment)
    pipeline = environment.pipeline
    if pipeline is None:
        logger.info("%s.yaml has no `pipeline:`: its state bucket alone is made", environment.environment)
    elif github is not None:
        # Check the rules before there is a role that others could assume.
        check_rules(github, deployment_of(environment), deploy)
    else:
        logger.warning(
            "warning: GitHub was not asked for its rules, which decide who deploys; see docs/pipeline-setup.md"
        )
    directory = synthesized / "stacks" / names.bootstrap_stack_name
    runner, state = terraform(directory), directory / _STATE
    with asking(environment.account_id):
        there = _exists(s3, environment.state_bucket)
        if pipeline is not None:
            _provider_is_ours(iam, environment, pipeline)
            _name_is_ours(iam, environment)
            _warn_of_untagged(iam, environment)
        elif there and not state.exists() and not _has_state(s3, environment):
            logger.info("bucket %s is there already, made by somebody else: nothing to do", environment.state_bucket)
            return
    if there and not state.exists():
        _only_ours(s3, environment)
        runner.init(reconfigure=True)
        _tell(runner, names.bootstrap_stack_name)
        runner.apply_now(approve=approve)
        # Create the HMAC key, which the pipeline's roles may read but not write.
        Records(s3).key(deployment_of(environment))
        return
    if pipeline is not None and pipeline.adopt_state_bucket:
        raise PipelineError(
            f"bucket {environment.state_bucket} does not exist, although adopt_state_bucket says so; create it, or "
            "remove adopt_state_bucket"
        )
    override = directory / _OVERRIDE
    try:
        local = {"terraform": {"backend": {"local": {"path": _STATE}}}}
        override.write_text(json.dumps(local), encoding="utf-8")
        runner.init(reconfigure=True)
        runner.apply_now(approve=approve)
    finally:
        override.unlink()
    logger.info("moving the state into s3://%s/%s", environment.state_bucket, names.bootstrap_state_key)
    runner.init(migrate=True)
    for leftover in (state, state.with_suffix(".tfstate.backup")):
        leftover.unlink(missing_ok=True)
    Records(s3).key(deployment_of(environment))


def _only_ours(s3: Any, environment: Environment) -> None:
    """Reject a state that names a provider other than AWS: Terraform would run that provider with an administrator's credentials."""
    bucket, key = environment.state_bucket, Names(environment).bootstrap_state_key
    text = read_object(s3, bucket, key, environment.account_id)
    if text and (faults := in_state(text)):
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(
            f"s3://{bucket}/{key} is no state of this stack; nothing was run. Find out who wrote it, and restore the version "
            f"before:\n{listing}"
        )


def _tell(runner: Terraform, stack: str) -> None:
    """Log a summary of the changes, with a warning for each deletion, before Terraform shows the whole plan and asks for confirmation."""
    with TemporaryDirectory(prefix="kinesis-efo-bootstrap-") as scratch:
        path = Path(scratch) / "plan.tfplan"
        runner.plan(path)
        told = comparison.told(runner.show(path))
    if not told:
        logger.info("%s: nothing changes", stack)
    for each in told:
        logger.log(logging.WARNING if "delete" in each.partition(": ")[2] else logging.INFO, "%s: %s", stack, each)


def _provider_is_ours(iam: Any, environment: Environment, pipeline: Pipeline) -> None:
    """Reject an OIDC provider for GitHub that something else declares, according to its tags. An account can have only one."""
    names = Names(environment)
    if pipeline.oidc_provider_arn is not None:
        return
    arn = names.iam_arn(f"oidc-provider/{pipeline.issuer}")
    try:
        tags = iam.get_open_id_connect_provider(OpenIDConnectProviderArn=arn).get("Tags", [])
    except ClientError:
        # The provider does not exist, or these credentials may not read it; in the latter case, Terraform will fail to create it.
        return
    owner = {tag["Key"]: tag["Value"] for tag in tags}
    ours = {"environment": names.qualified, "managed-by": PIPELINE_MANAGED_BY}
    if {name: owner.get(name) for name in OWNER_TAGS} != ours:
        whose = owner.get("environment", "somebody else")
        raise PipelineError(
            f"account {environment.account_id} has an OIDC provider for GitHub already, that of {whose}, and can have no second "
            f"one; say `oidc_provider_arn: {arn}` under pipeline in {environment.environment}.yaml"
        )


def _warn_of_untagged(iam: Any, environment: Environment) -> None:
    """Warn of roles with the environment's prefix but without owner tags: the apply role could tag such a role, and then change it."""
    prefix = f"{Names(environment).prefix}-"
    for page in iam.get_paginator("list_roles").paginate():
        for name in (str(role["RoleName"]) for role in page["Roles"]):
            if name.startswith(prefix):
                tags = {each["Key"] for each in iam.list_role_tags(RoleName=name)["Tags"]}
                if not tags & set(OWNER_TAGS):
                    logger.warning(
                        "warning: role %s has a name like those of %s and neither tag %s: whoever deploys %s could take it over; "
                        "tag it, or rename it (docs/pipeline-setup.md#who-may-do-what)",
                        name, environment.environment, " nor ".join(OWNER_TAGS), environment.environment,
                    )  # fmt: skip


def _name_is_ours(iam: Any, environment: Environment) -> None:
    """Reject a name that begins like that of another environment, whose apply role could then change this one's roles and policies.

    Environments in one directory are compared when they are loaded; IAM also has the roles of environments in other repositories.
    """
    names = Names(environment)
    name, path = environment.environment, names.pipeline_path
    prefix = names.pipeline_role_name("").removesuffix(f"{name}-")
    pages = iam.get_paginator("list_roles").paginate(PathPrefix=path)
    roles = [str(role["RoleName"]) for page in pages for role in page["Roles"]]
    others = {role.removeprefix(prefix).rpartition("-")[0] for role in roles if role.startswith(prefix)} - {name}
    alike = sorted(each for each in others if each.startswith(f"{name}-") or name.startswith(f"{each}-"))
    if not alike:
        return
    told = (
        f"names of {name} begin like those of {', '.join(alike)}, which has a pipeline in account {environment.account_id} as well: "
        "the one's roles could change what belongs to the other and has no tags"
    )
    if names.pipeline_role_name("apply") not in roles:
        raise PipelineError(f"{told}; use another name, or another account")
    # If both are deployed, only warn: neither can be renamed in place, and the policies to apply improve on the deployed ones.
    logger.warning("warning: %s; move one of them to another name or account (docs/pipeline-setup.md)", told)


def _has_state(s3: Any, environment: Environment) -> bool:
    """Whether the bootstrap stack created the bucket, which then contains the stack's state."""
    try:
        s3.head_object(Bucket=environment.state_bucket, Key=Names(environment).bootstrap_state_key)
    except ClientError:
        return False
    return True


def _exists(s3: Any, bucket: str) -> bool:
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "404":
            return False
        raise PipelineError(
            f"bucket {bucket} cannot be accessed ({code}): it belongs to somebody else, or these credentials may not; "
            "choose another state_bucket, or use an administrator's credentials"
        ) from error
    return True
