"""The permissions of the pipeline's plan and apply roles, and the permissions boundary of the roles that the pipeline creates.

Permissions are limited to resources with the environment's prefix (or with names from its settings), to keys with its tags, and to its
own state. They allow the actions that Terraform's AWS provider calls for the declared resources, according to the Service Authorization
Reference. The resource is `*` only for actions that do not support resource-level permissions.
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.errors import Fault, SettingsError
from infra.settings.model import Environment
from infra.settings.rules import POLICY_CHARACTERS
from infra.stacks.permissions.applying import change_access, change_data, change_keys
from infra.stacks.permissions.bounding import boundary, boundary_without_pipeline, trust_to_apply, trust_to_plan
from infra.stacks.permissions.planning import read, read_access, read_data
from infra.stacks.permissions.running import run_jobs
from kinesis_efo_infra.iam import Statement, policy_json

PLANNING = ("read", "read-access")
"""Names of the plan role's policies, as in the result of `policies`."""

__all__ = [
    "PLANNING",
    "boundary",
    "boundary_without_pipeline",
    "change_access",
    "change_data",
    "change_keys",
    "policies",
    "read",
    "run_jobs",
    "trust_to_apply",
    "trust_to_plan",
]


def policies(environment: Environment) -> Mapping[str, list[Statement]]:
    """Return the pipeline's managed policies, by the last part of their names. There are several, because IAM limits a policy's size.

    Raises:
        SettingsError: A policy exceeds IAM's size limit.
    """
    found = {
        "read": read_data(environment),
        "read-access": read_access(environment),
        "change-data": change_data(environment),
        "change-access": change_access(environment),
        "change-keys": change_keys(environment),
        **({"run-jobs": run_jobs(environment)} if environment.emr else {}),
        "boundary": boundary(environment),
    }
    rule = (
        f"what it may do must fit managed policies ({POLICY_CHARACTERS} characters); give streams, tables and roles names that "
        "begin with the environment's, or split the environment"
    )
    sizes = [len(policy_json(statements)) for statements in found.values()]
    file = f"{environment.environment}.yaml"
    if faults := [Fault("pipeline", f"{size} characters", rule, file) for size in sizes if size > POLICY_CHARACTERS]:
        raise SettingsError(faults)
    return found
