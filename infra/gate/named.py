"""What the settings of an environment name, which its stacks may grant."""

from __future__ import annotations

from infra.settings.access import OtherAccount, RoleAccess
from infra.settings.model import Environment
from infra.settings.names import BOUNDARY, Names, parse_arn
from kinesis_efo_infra.gate.granted import Named


def named_by(environment: Environment) -> Named:
    """What the stack of an environment may use."""
    names = Names(environment)
    accesses = [application.access for application in environment.applications.values()]
    others = {each for access in accesses if isinstance(access, OtherAccount) for each in access.principals}
    given = {access.permissions_boundary for access in accesses if isinstance(access, RoleAccess)}
    # Without a pipeline, which brings a boundary, the stack declares one.
    own = f"aws_iam_policy.{BOUNDARY.now}"
    declared = set() if environment.pipeline else {own, f"data.aws_iam_policy_document.{BOUNDARY.now}"}
    arn = names.iam_arn(f"policy/{names.roles_boundary_name}")
    ours = {names.boundary_arn} if environment.pipeline else {f"${{{own}.arn}}", arn}
    return Named(
        account=environment.account_id,
        accounts=frozenset(parse_arn(each).account for each in others),
        boundaries=frozenset(ours | {each for each in given if each}),
        declared=frozenset(declared),
        # Some of checkov's checks are excused by this name.
        reserved=frozenset({BOUNDARY.now} if environment.pipeline else ()),
    )


def named_by_bootstrap_of(environment: Environment) -> Named:
    """What the bootstrap stack of an environment may use: only there, the pipeline's own roles have no boundary."""
    return Named(environment.account_id, frozenset(), frozenset(), unbounded=Names(environment).pipeline_path)
