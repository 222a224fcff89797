"""Makes plans, and applies exactly the plan that was reviewed.

Planning only reads. Applying makes no new plan: it takes the reviewed one, after checking that its files are unchanged,
that the commit synthesizes the same configuration, and that the state has not moved. Terraform checks the state, too.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from infra import addresses, names
from infra.checkov_gate import scan_plans
from infra.errors import PipelineError, StalePlanError
from infra.pipeline import cost
from infra.pipeline.bundle import (
    CONFIGURATION,
    PLAN,
    PLAN_JSON,
    PLAN_TEXT,
    Changes,
    Meta,
    configuration_digest,
    file_digest,
    read_meta,
    write_meta,
)
from infra.pipeline.limits import Plan, notes, refusals
from infra.pipeline.prices import prices_of
from infra.pipeline.record import Records
from infra.pipeline.terraform import LOCK_FILE, Terraform
from infra.settings import Environment

logger = logging.getLogger(__name__)

PROVIDERS = Path(__file__).parents[1] / "providers.lock.hcl"
"""Terraform's lock file. If it is committed, `init` installs exactly the provider that it names. See docs/gitops.md."""

Gate = Callable[[Sequence[Path]], Sequence[str]]
"""Scans plans, and returns the checks that failed."""


def checkov(plans: Sequence[Path]) -> Sequence[str]:
    """Scan plans with the checkov gate."""
    return [str(failure) for failure in scan_plans(plans).failed]


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes and applies plans.

    Attributes:
        synthesized: Directory to which `python -m infra` wrote the stacks.
        records: Records of what is deployed.
        gate: Scans a plan.
        prepare: Called with a plan before it is applied.
        terraform: Makes a `Terraform` for a directory.
        providers: A lock file of Terraform, which need not exist.
    """

    synthesized: Path
    records: Records
    gate: Gate = checkov
    prepare: Callable[[Environment, Plan], None] = lambda *_: None
    terraform: Callable[[Path], Terraform] = Terraform
    providers: Path = PROVIDERS

    def is_deployed(self, environment: Environment) -> bool:
        """Whether the synthesized configuration is the one that was applied last."""
        return self.records.load(environment).stack == self._digest(environment)

    def plan(self, environment: Environment, commit: str, out: Path, *, to_apply: bool = True) -> Meta:
        """Plan a stack and write the bundle `<out>/<stack>`.

        Args:
            environment: The environment of the stack.
            commit: The commit that the plan belongs to.
            out: Directory for bundles.
            to_apply: Whether somebody may apply it; else what AWS would refuse does not matter.

        Raises:
            PipelineError: Terraform fails, AWS would refuse something, or checkov finds something in the plan.
        """
        bundle = out / names.stack_name(environment)
        with TemporaryDirectory(prefix="kinesis-efo-plan-") as scratch:
            terraform = self._prepared(self._configuration(environment), self.providers, Path(scratch))
            # Before planning: if the state moves in between, the plan counts as made on the older one, and is refused.
            state = terraform.state_version()
            shutil.rmtree(bundle, ignore_errors=True)
            bundle.mkdir(parents=True)
            any_changes = terraform.plan(bundle / PLAN)
            shown = terraform.show(bundle / PLAN)
            if to_apply:
                _refuse(environment, shown)
            (bundle / PLAN_JSON).write_text(json.dumps(shown), encoding="utf-8")
            (bundle / PLAN_TEXT).write_text(terraform.show_text(bundle / PLAN) + "\n", encoding="utf-8")
            for name in (CONFIGURATION, LOCK_FILE):
                if (Path(scratch) / name).exists():
                    shutil.copy(Path(scratch) / name, bundle / name)
            meta = Meta(
                environment=environment.environment,
                commit=commit,
                configuration=self._digest(environment),
                plan=file_digest(bundle / PLAN),
                lineage=state.lineage,
                serial=state.serial,
                terraform=terraform.version,
                any_changes=any_changes,
                changes=Changes.of(shown),
                notes=tuple(notes(shown)),
                cost=_cost(environment, shown),
            )
        write_meta(bundle, meta)
        self._scan(bundle / PLAN_JSON)
        for note in meta.notes:
            logger.warning("note: %s", note)
        logger.info("%s: %s; plan sha256:%s on %s", names.stack_name(environment), meta.changes, meta.plan, state)
        return meta

    def apply(self, environment: Environment, commits: Collection[str], plans: Path) -> None:
        """Apply the plan that was made for one of these commits, unless its configuration is deployed already.

        Args:
            environment: The environment of the stack.
            commits: The commit to deploy, and the one that was reviewed, if that is another.
            plans: Directory of bundles.

        Raises:
            StalePlanError: There is no such plan, or it is not of this commit, configuration or state.
            PipelineError: The plan was tampered with, does not pass checkov, AWS would refuse it, or applying it fails.
        """
        stack = names.stack_name(environment)
        deployed = self.records.load(environment)
        digest = self._digest(environment)
        if deployed.stack == digest:
            logger.info("%s: this configuration was applied with commit %s already", stack, deployed.commit)
            return
        bundle = plans / stack
        meta = read_meta(bundle)
        self._verify(environment, meta, bundle, commits, digest)
        with TemporaryDirectory(prefix="kinesis-efo-apply-") as scratch:
            terraform = self._prepared(bundle / CONFIGURATION, bundle / LOCK_FILE, Path(scratch))
            if terraform.version != meta.terraform:
                raise StalePlanError(
                    f"{stack} was planned with {meta.terraform}; this is {terraform.version}, which "
                    "cannot apply it: use the same version, or plan again"
                )
            if (state := terraform.state_version()) != meta.state:
                raise StalePlanError(
                    f"the state of {stack} moved after the plan was made: from {meta.state} to {state}. Something else "
                    "was applied meanwhile: plan again, and have that reviewed"
                )
            # Not the bundle's JSON: the scan must see what is applied.
            plan, shown = terraform.show(bundle / PLAN), Path(scratch) / PLAN_JSON
            shown.write_text(json.dumps(plan), encoding="utf-8")
            self._scan(shown)
            _refuse(environment, plan)
            self.prepare(environment, plan)
            logger.info("%s: applying sha256:%s: %s", stack, meta.plan, meta.changes)
            terraform.apply(bundle / PLAN)
        self.records.save(environment, replace(deployed, commit=meta.commit, stack=digest))

    def _verify(
        self, environment: Environment, meta: Meta, bundle: Path, commits: Collection[str], digest: str
    ) -> None:
        stack = names.stack_name(environment)
        if meta.environment != environment.environment:
            raise StalePlanError(
                f"{bundle} holds a plan of {meta.environment}, not of {environment.environment}; plan again"
            )
        if meta.commit not in commits:
            raise StalePlanError(
                f"the plan of {stack} is of commit {meta.commit}, not of {' or '.join(commits)}; plan again"
            )
        if meta.configuration != digest:
            raise StalePlanError(
                f"commit {meta.commit} was planned with another configuration of {stack} than this commit synthesizes: "
                "something else was merged in between. Plan again, and have that reviewed"
            )
        if configuration_digest(bundle / CONFIGURATION) != digest or file_digest(bundle / PLAN) != meta.plan:
            raise PipelineError(f"{bundle} is not what was planned: a file in it differs from its digest; plan again")

    def _prepared(self, configuration: Path, lock: Path, scratch: Path) -> Terraform:
        """Terraform in a fresh directory, where no earlier run has left anything."""
        shutil.copy(configuration, scratch / CONFIGURATION)
        if lock.exists():
            shutil.copy(lock, scratch / LOCK_FILE)
        terraform = self.terraform(scratch)
        terraform.init()
        return terraform

    def _scan(self, plan: Path) -> None:
        if failed := self.gate([plan]):
            raise PipelineError(
                "checkov finds in what Terraform evaluated:\n" + "\n".join(f"  {each}" for each in failed)
            )

    def _configuration(self, environment: Environment) -> Path:
        return self.synthesized / "stacks" / names.stack_name(environment) / CONFIGURATION

    def _digest(self, environment: Environment) -> str:
        return configuration_digest(self._configuration(environment))


def _refuse(environment: Environment, plan: Plan) -> None:
    if refused := refusals(plan, set(addresses.imports(environment))):
        listing = "\n".join(f"  {each}" for each in refused)
        raise PipelineError(f"{names.stack_name(environment)} cannot be applied as planned:\n{listing}")


def _cost(environment: Environment, plan: Plan) -> Sequence[str]:
    region = environment.region
    advantage = environment.on_demand_advantage
    changed = cost.changes(plan, scaled=set(addresses.scaled_elsewhere(environment)))
    return tuple(cost.table(changed, region, prices_of(region), advantage=advantage))
