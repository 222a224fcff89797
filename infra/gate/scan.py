"""Scans environments' stacks and plans, with the failed checks that are accepted for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from infra.gate.named import named_by, named_by_bootstrap_of
from infra.settings.model import Environment
from infra.settings.names import Names, environment_of
from kinesis_efo_infra.gate import scan
from kinesis_efo_infra.gate.failures import Result
from kinesis_efo_infra.gate.granted import Named
from kinesis_efo_infra.gate.scan import BOOTSTRAP, ENVIRONMENTS, Accepted

EXCUSED: Mapping[tuple[str, str, str], str] = {
    (
        ENVIRONMENTS,
        "CKV_AWS_18",
        "artifacts",
    ): "access logs need a bucket of the account's own; CloudTrail data events tell the same",
    (
        BOOTSTRAP,
        "CKV_AWS_18",
        "state",
    ): "access logs need a bucket of the account's own; CloudTrail data events tell the same",
    (
        ENVIRONMENTS,
        "CKV_AWS_144",
        "artifacts",
    ): "archives and programs are built again from their commit, in whatever region",
    (
        BOOTSTRAP,
        "CKV_AWS_144",
        "state",
    ): "a second state in another region could be applied by mistake; old versions are kept",
    (ENVIRONMENTS, "CKV2_AWS_62", "artifacts"): "nothing has to be told of new files",
    (BOOTSTRAP, "CKV2_AWS_62", "state"): "nothing has to be told of a new state",
    (ENVIRONMENTS, "CKV2_AWS_5", "workers"): "the application of EMR Serverless has it, which checkov does not look at",
    **{
        # The first two checks cover stacks; the other two are the same checks for plans.
        (ENVIRONMENTS, check, "roles_boundary"): "a boundary grants nothing: it bounds what a role's policies grant"
        for check in ("CKV_AWS_109", "CKV_AWS_111", "CKV_AWS_289", "CKV_AWS_290")
    },
    (
        BOOTSTRAP,
        "CKV_EFO_1",
        "pipeline_change_data",
    ): "the role that applies registers declared consumers; the jobs' roles are denied it",
}
"""The reason for each accepted failure, by kind of stack, check id and resource name. Each check covers one resource type only."""
FLOOR = 25
"""The minimum number of checks that must pass for each stack or plan."""
ACCEPTED = Accepted(EXCUSED, FLOOR)


def scan_stacks(
    *synthesized: Path,
    bootstrap: Sequence[Path] = (),
    environments: Iterable[Environment] | None = None,
    beside: Path | None = None,
) -> Result:
    """Scan every stack that CDKTF's manifests list, all in one run of checkov.

    Args:
        synthesized: Output directories of CDKTF with environments' stacks.
        bootstrap: Output directories of CDKTF with bootstrap stacks.
        environments: The environments whose settings limit what stacks may grant; other stacks are rejected. None skips this check.
        beside: Directory of the environment files, which also has the team's own resource types, checks and excuses.

    Raises:
        GateError: There is nothing to scan, or the scan cannot be trusted.
    """
    return scan.scan_stacks(
        *synthesized,
        bootstrap=bootstrap,
        named=None if environments is None else named(environments),
        beside=beside,
        environment_of=environment_of,
        accepted=ACCEPTED,
    )


def scan_plans(plans: Sequence[Path], beside: Path | None = None, environment: str | None = None) -> Result:
    """Scan plans. Unlike stacks, they contain the values that Terraform evaluated.

    Args:
        plans: Files with plans, as `terraform show -json` writes them.
        beside: Directory of the environment files, which also has the team's own checks and excuses.
        environment: The environment of the plans, for excuses.

    Raises:
        GateError: There is nothing to scan, or the scan cannot be trusted.
    """
    return scan.scan_plans(plans, beside, environment, ACCEPTED)


def named(environments: Iterable[Environment]) -> Mapping[tuple[str, str], Named]:
    """Return what each stack of the environments may grant, by kind and name of the stack."""
    found: dict[tuple[str, str], Named] = {}
    for each in environments:
        found[ENVIRONMENTS, Names(each).stack_name] = named_by(each)
        if each.pipeline:
            found[BOOTSTRAP, Names(each).bootstrap_stack_name] = named_by_bootstrap_of(each)
    return found
