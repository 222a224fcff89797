"""Makes plans, and applies a plan if it does what was shown.

Planning only reads. Applying makes a plan of its own, with the credentials that apply it, and compares it with the one
that was shown; of that one, nothing is run. What is planned comes from elsewhere too, so it must be on the positive list.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra import addresses, allowed, granted, names
from infra.checkov_gate import scan_plans
from infra.errors import PipelineError, StalePlanError
from infra.pipeline import comparison, cost
from infra.pipeline.bundle import (
    CONFIGURATION,
    PLAN_JSON,
    PLAN_TEXT,
    Changes,
    Meta,
    configuration_digest,
    read_configuration,
    read_meta,
    read_plan,
    write_meta,
)
from infra.pipeline.limits import Plan, notes, refusals
from infra.pipeline.prices import prices_of
from infra.pipeline.record import Deployed, Records
from infra.pipeline.terraform import LOCK_FILE, StateVersion, Terraform
from infra.settings import Environment

logger = logging.getLogger(__name__)

PROVIDERS = Path(__file__).parents[1] / "providers.lock.hcl"
"""Terraform's lock file. If it is committed, `init` installs exactly the provider that it names. See docs/gitops.md."""
_PLAN = "plan.tfplan"
_MOST_DIFFERENCES = 50

Gate = Callable[[Sequence[Path]], Sequence[str]]
"""Scans plans, and returns the checks that failed."""


def checkov(plans: Sequence[Path]) -> Sequence[str]:
    """Scan plans with the checkov gate."""
    return [str(failure) for failure in scan_plans(plans).failed]


def checkov_beside(directory: Path, environment: str) -> Gate:
    """The checkov gate with the checks and excuses that are beside the environment files.

    Args:
        directory: Directory of the environment files.
        environment: The environment whose plans are scanned.
    """

    def scan(plans: Sequence[Path]) -> Sequence[str]:
        return [str(failure) for failure in scan_plans(plans, directory, environment).failed]

    return scan


@dataclass(frozen=True, slots=True)
class Made:
    """A plan that was made just now.

    Attributes:
        terraform: What made it, and can apply it.
        path: Terraform's own file of it.
        json: The plan, as `terraform show -json` writes it.
        state: The state that it was made on.
        any_changes: Whether applying it changes anything, outputs included.
    """

    terraform: Terraform
    path: Path
    json: Plan
    state: StateVersion
    any_changes: bool

    @property
    def digest(self) -> str:
        """Digest of what it does."""
        return comparison.digest(self.json)


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
        extra: Types of resources that the team has added to those that a stack may have.
    """

    synthesized: Path
    records: Records
    gate: Gate = checkov
    prepare: Callable[[Environment, Plan], None] = lambda *_: None
    terraform: Callable[[Path], Terraform] = Terraform
    providers: Path = PROVIDERS
    extra: Collection[str] = ()

    def is_deployed(self, environment: Environment) -> bool:
        """Whether the synthesized configuration is the one that was applied last, and no deployment has ended half way since."""
        return self._is(self.records.load(environment), environment)

    def plan(
        self,
        environment: Environment,
        commit: str,
        out: Path,
        *,
        to_apply: bool = True,
        repair: bool = False,
        base: str = "",
    ) -> Meta:
        """Plan a stack and write the bundle `<out>/<stack>`.

        Args:
            environment: The environment of the stack.
            commit: The commit that the plan belongs to.
            out: Directory for bundles.
            to_apply: Whether somebody may apply it; else what AWS would refuse does not matter.
            repair: Whether it undoes drift, so that it may be applied although its configuration is deployed already.
            base: The branch that the change is merged into.

        Raises:
            PipelineError: The stack or the plan holds what it may not, Terraform fails, AWS would refuse something, or checkov
                finds something in the plan.
        """
        bundle = out / names.stack_name(environment)
        shutil.rmtree(bundle, ignore_errors=True)
        with TemporaryDirectory(prefix="kinesis-efo-plan-") as scratch:
            made = self._make(environment, Path(scratch))
            if to_apply:
                _refuse(environment, made.json)
            bundle.mkdir(parents=True)
            (bundle / PLAN_JSON).write_text(json.dumps(made.json), encoding="utf-8")
            (bundle / PLAN_TEXT).write_text(made.terraform.show_text(made.path) + "\n", encoding="utf-8")
            meta = Meta(
                environment=environment.environment,
                commit=commit,
                configuration=self._digest(environment),
                plan=made.digest,
                lineage=made.state.lineage,
                serial=made.state.serial,
                terraform=made.terraform.version,
                any_changes=made.any_changes,
                changes=Changes.of(made.json),
                notes=tuple(notes(made.json)),
                cost=_cost(environment, made.json),
                repair=repair,
                base=base,
            )
        write_meta(bundle, meta)
        self._scan(bundle / PLAN_JSON)
        for note in meta.notes:
            logger.warning("note: %s", note)
        logger.info("%s: %s; plan sha256:%s on %s", names.stack_name(environment), meta.changes, meta.plan, made.state)
        return meta

    def apply(
        self, environment: Environment, commits: Collection[str], plans: Path, approved: str | None = None
    ) -> None:
        """Plan, and apply that plan if it does what the shown one does; nothing, if its configuration is deployed already.

        Args:
            environment: The environment of the stack.
            commits: The commit to deploy, and the one that was reviewed, if that is another.
            plans: Directory of bundles: what was shown.
            approved: Digest of the plan that was approved; None for that of the bundle.

        Raises:
            StalePlanError: No plan was shown, or it is of another commit, or the plan of now does something else.
            PipelineError: The stack or the plan holds what it may not or does not pass checkov, AWS would refuse it, or applying
                it fails.
        """
        stack = names.stack_name(environment)
        deployed = self.records.load(environment)
        bundle = plans / stack
        repair = bundle.exists() and read_meta(bundle).repair
        if self._is(deployed, environment) and not repair:
            logger.info("%s: this configuration was applied with commit %s already", stack, deployed.commit)
            return
        meta, shown = read_meta(bundle), read_plan(bundle)
        _verify(environment, meta, bundle, commits)
        with TemporaryDirectory(prefix="kinesis-efo-apply-") as scratch:
            made = self._make(environment, Path(scratch))
            if repair and self._is(deployed, environment) and not made.any_changes:
                logger.info("%s: there is nothing to repair any more", stack)
                return
            if made.terraform.version != meta.terraform:
                raise StalePlanError(
                    f"{stack} was planned with {meta.terraform}; this is {made.terraform.version}, whose state the other may not "
                    "be able to read: use the same version, or plan again"
                )
            self._compare(environment, shown, made, approved)
            _refuse(environment, made.json)
            scanned = Path(scratch) / PLAN_JSON
            scanned.write_text(json.dumps(made.json), encoding="utf-8")
            self._scan(scanned)
            self.prepare(environment, made.json)
            logger.info("%s\n%s", made.terraform.show_text(made.path), _counted(stack, "applying", made))
            # Whatever happens from here on, the next run must look, whatever it is about to deploy.
            self.records.save(environment, replace(deployed, under_way=meta.commit))
            made.terraform.apply(made.path)
        self.records.save(environment, Deployed(commit=meta.commit, stack=self._digest(environment)))

    def _compare(self, environment: Environment, shown: Plan, made: Made, approved: str | None) -> None:
        """Refuse a plan that does something else than the one that was shown or approved."""
        stack = names.stack_name(environment)
        differing = comparison.differences(shown, made.json)
        if differing:
            more = len(differing) - _MOST_DIFFERENCES
            listing = [f"  {each}" for each in differing[:_MOST_DIFFERENCES]] + [f"  and {more} more"] * (more > 0)
            raise StalePlanError(
                f"the plan of {stack} is not what was shown, so that nothing was applied; something else was merged, applied or "
                "changed meanwhile. Plan again, and have that reviewed. What differs:\n" + "\n".join(listing)
            )
        if approved is not None and approved != made.digest:
            raise StalePlanError(
                f"the plan of {stack} is sha256:{made.digest}, and sha256:{approved} was approved; plan again, and have that reviewed"
            )

    def _make(self, environment: Environment, scratch: Path) -> Made:
        """Plan in a fresh directory, where no earlier run has left anything.

        Raises:
            PipelineError: The stack or the plan holds what it may not, or Terraform fails.
        """
        stack = names.stack_name(environment)
        document = read_configuration(self._configuration(environment))
        # Before `init`, which installs what the stack names, and before `plan`, which runs data sources.
        named = granted.Named.by(environment)
        _only_allowed(
            f"{stack}, as it is synthesized,",
            [*allowed.in_stack(document, extra=self.extra), *_elsewhere(environment, document)],
        )
        _only_granted(stack, granted.in_stack(document, named))
        # What was looked at, and not the file, in which a key could be written twice.
        (scratch / CONFIGURATION).write_text(json.dumps(document), encoding="utf-8")
        if self.providers.exists():
            shutil.copy(self.providers, scratch / LOCK_FILE)
        terraform = self.terraform(scratch)
        terraform.init()
        # Before planning: if the state moves in between, the plan counts as made on the older one.
        state = terraform.state_version()
        any_changes = terraform.plan(scratch / _PLAN)
        plan = terraform.show(scratch / _PLAN)
        _only_allowed(f"the plan of {stack}", allowed.in_plan(plan, extra=self.extra))
        _only_granted(f"the plan of {stack}", granted.in_plan(plan, named))
        return Made(terraform, scratch / _PLAN, plan, state, any_changes)

    def _scan(self, plan: Path) -> None:
        if failed := self.gate([plan]):
            raise PipelineError(
                "checkov finds in what Terraform evaluated:\n" + "\n".join(f"  {each}" for each in failed)
            )

    def _is(self, deployed: Deployed, environment: Environment) -> bool:
        return deployed.stack == self._digest(environment) and not deployed.under_way

    def _configuration(self, environment: Environment) -> Path:
        return self.synthesized / "stacks" / names.stack_name(environment) / CONFIGURATION

    def _digest(self, environment: Environment) -> str:
        return configuration_digest(self._configuration(environment))


def _counted(stack: str, doing: str, made: Made) -> str:
    """What a plan does, counted from the plan itself."""
    return f"{stack}: {doing} sha256:{made.digest}: {Changes.of(made.json)}"


def _verify(environment: Environment, meta: Meta, bundle: Path, commits: Collection[str]) -> None:
    """Refuse what was shown for something else, by mistake."""
    if meta.environment != environment.environment:
        raise StalePlanError(
            f"{bundle} holds a plan of {meta.environment}, not of {environment.environment}; plan again"
        )
    if meta.commit not in commits:
        raise StalePlanError(
            f"the plan of {names.stack_name(environment)} is of commit {meta.commit}, not of {' or '.join(commits)}; plan again"
        )


def _elsewhere(environment: Environment, document: Mapping[str, Any]) -> list[str]:
    """Faults of a stack that would keep its state in another place than the environment says, or take over what it does not name."""
    s3 = document.get("terraform", {}).get("backend", {}).get("s3", {})
    there, ours = (s3.get("bucket"), s3.get("key")), (environment.state_bucket, names.state_key(environment))
    faults = [] if there == ours else [f"terraform.backend: its state would be {there}, and must be {ours}"]
    imported = {str(each.get("to")) for each in document.get("import") or []}
    taken = sorted(imported - set(addresses.imports(environment)))
    return faults + [f"import {each}: the environment's file takes nothing over there" for each in taken]


def _only_allowed(what: str, faults: Sequence[str]) -> None:
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(
            f"{what} holds what the positive list (infra/allowed.py) does not have; nothing was run:\n{listing}"
        )


def _only_granted(what: str, faults: Sequence[str]) -> None:
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(f"{what} grants what the settings do not name:\n{listing}")


def _refuse(environment: Environment, plan: Plan) -> None:
    if refused := refusals(plan, set(addresses.imports(environment))):
        listing = "\n".join(f"  {each}" for each in refused)
        raise PipelineError(f"{names.stack_name(environment)} cannot be applied as planned:\n{listing}")


def _cost(environment: Environment, plan: Plan) -> Sequence[str]:
    region = environment.region
    advantage = environment.on_demand_advantage
    scaled = set(addresses.scaled_elsewhere(environment))
    prices = prices_of(region)
    changed = cost.table(cost.changes(plan, scaled=scaled), region, prices, advantage=advantage)
    idle = cost.idle(plan, region, prices, advantage=advantage, scaled=scaled) if prices else []
    return (*changed, *([""] if changed and idle else []), *idle)
