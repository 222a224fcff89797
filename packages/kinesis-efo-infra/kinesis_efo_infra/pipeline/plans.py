"""Makes plans, and applies a plan only if it makes the changes that were shown to reviewers.

Planning only reads. Applying makes a new plan, with the credentials that apply it, and compares it with the plan that was shown, which
itself is never run. A synthesized stack is not trusted either: everything in it must be on the allowlist.
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

from kinesis_efo_infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.gate import allowed, granted
from kinesis_efo_infra.gate.scan import NOTHING, Accepted, scan_plans, scannable
from kinesis_efo_infra.pipeline import comparison, cost
from kinesis_efo_infra.pipeline.bundle import (
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
from kinesis_efo_infra.pipeline.deployment import Deployment
from kinesis_efo_infra.pipeline.limits import Plan, notes, of_another_account, refusals
from kinesis_efo_infra.pipeline.prices import prices_of
from kinesis_efo_infra.pipeline.record import Deployed, Records
from kinesis_efo_infra.pipeline.terraform import LOCK_FILE, StateVersion, Terraform

logger = logging.getLogger(__name__)

PROVIDERS = "providers.lock.hcl"
"""Terraform's lock file, beside the directory of the environment files: `init` installs exactly the provider that it names."""
_PLAN = "plan.tfplan"
_MOST_DIFFERENCES = 50

Gate = Callable[[Sequence[Path]], Sequence[str]]
"""A function that scans plans, and returns a line for each check that failed."""


def checkov(plans: Sequence[Path]) -> Sequence[str]:
    """Scan plans with the checkov gate."""
    return [str(failure) for failure in scan_plans(plans).failed]


def checkov_beside(directory: Path, environment: str, accepted: Accepted = NOTHING) -> Gate:
    """Return the checkov gate with the team's checks and excuses, which are beside the environment files.

    Args:
        directory: Directory of the environment files.
        environment: The environment whose plans are scanned.
        accepted: Checks that may fail, in addition to those that a team excuses.
    """

    def scan(plans: Sequence[Path]) -> Sequence[str]:
        return [str(failure) for failure in scan_plans(plans, directory, environment, accepted).failed]

    return scan


@dataclass(frozen=True, slots=True)
class Made:
    """A plan that was just made, and what is needed to apply it.

    Attributes:
        terraform: The `Terraform` that created it and can apply it.
        path: Terraform's plan file.
        json: The plan, as `terraform show -json` writes it.
        shown: The part of the plan that is shown and compared.
        state: Version of the state that the plan is based on.
        any_changes: Whether applying the plan changes anything, including outputs.
    """

    terraform: Terraform
    path: Path
    json: Plan
    shown: Plan
    state: StateVersion
    any_changes: bool

    @property
    def digest(self) -> str:
        """Digest of the plan's changes."""
        return comparison.digest(self.shown)

    def text(self) -> str:
        """Return the plan as text, as Terraform writes it, but without secrets."""
        return comparison.redacted(self.terraform.show_text(self.path), comparison.secrets(self.json))


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes and applies plans.

    Attributes:
        synthesized: CDKTF's output directory with the synthesized stacks.
        records: Records of what is deployed.
        providers: Path of Terraform's lock file.
        gate: Scans a plan.
        prepare: Called with a plan before it is applied.
        terraform: Creates a `Terraform` for a directory.
        extra: Resource types that the team adds to the allowlist.
        asks: Checks with AWS whether it would reject a plan, and returns the reasons.
        is_before: Whether the first of two commits is an ancestor of the second.
    """

    synthesized: Path
    records: Records
    providers: Path
    gate: Gate = checkov
    prepare: Callable[[Plan], None] = lambda *_: None
    terraform: Callable[[Path], Terraform] = Terraform
    extra: Collection[str] = ()
    asks: Callable[[Plan], Sequence[str]] = lambda _: ()
    is_before: Callable[[str, str], bool] = lambda *_: False

    def is_deployed(self, deployment: Deployment) -> bool:
        """Whether the synthesized configuration is the one that was applied last, and no deployment has failed midway since."""
        return self._is(self.records.load(deployment), deployment)

    def plan(
        self,
        deployment: Deployment,
        commit: str,
        out: Path,
        *,
        to_apply: bool = True,
        repair: bool = False,
    ) -> Meta:
        """Plan a stack and write the bundle `<out>/<stack>`.

        Args:
            deployment: The stack and where it is deployed.
            commit: The commit that the plan belongs to.
            out: Directory for bundles.
            to_apply: Whether the plan may be applied later. If not, checkov and the checks for what AWS would reject are skipped.
            repair: Whether the plan undoes drift, so that it may be applied although its configuration is already deployed.

        Raises:
            PipelineError: The stack or the plan contains or grants something that is not allowed, Terraform fails, AWS would reject a
                change, or a checkov check fails.
        """
        bundle = out / deployment.stack
        shutil.rmtree(bundle, ignore_errors=True)
        with TemporaryDirectory(prefix="kinesis-efo-plan-") as scratch:
            made = self._make(deployment, Path(scratch))
            if to_apply:
                refuse_unsafe(deployment, made.json, self.asks)
            bundle.mkdir(parents=True)
            (bundle / PLAN_JSON).write_text(json.dumps(made.shown), encoding="utf-8")
            (bundle / PLAN_TEXT).write_text(made.text() + "\n", encoding="utf-8")
            meta = Meta(
                environment=deployment.environment,
                commit=commit,
                configuration=self._digest(deployment),
                plan=made.digest,
                lineage=made.state.lineage,
                serial=made.state.serial,
                terraform=made.terraform.version,
                any_changes=made.any_changes,
                changes=Changes.of(made.json),
                notes=tuple(notes(made.json)),
                cost=_cost(deployment, made.json),
                repair=repair,
            )
            write_meta(bundle, meta)
            if to_apply:
                _scan(self.gate, Path(scratch), made.json)
        for note in meta.notes:
            logger.warning("note: %s", note)
        logger.info("%s: %s; plan sha256:%s on %s", deployment.stack, meta.changes, meta.plan, made.state)
        return meta

    def apply(self, deployment: Deployment, commits: Sequence[str], plans: Path, approved: str | None = None) -> None:
        """Make a plan, and apply it if it equals the plan that was shown. Does nothing if the configuration is already deployed.

        Args:
            deployment: The stack and where it is deployed.
            commits: The commit to deploy, followed by the reviewed one if it differs.
            plans: Directory with the bundles of the shown plans.
            approved: Digest of the plan that was scanned and approved; None if there is none: the new plan is then scanned before applying.

        Raises:
            StalePlanError: No plan was shown, it belongs to another commit, or the new plan differs.
            PipelineError: A later commit is already deployed, the stack or the plan contains or grants something that is not allowed, a
                checkov check fails, AWS would reject a change, or applying fails.
        """
        stack, commit = deployment.stack, commits[0]
        deployed = self.records.load(deployment)
        for later in {deployed.commit, deployed.under_way} - {"", *commits}:
            # Rerunning the workflow of an old commit must not undo later changes, although its plan was reviewed.
            if self.is_before(commit, later):
                raise PipelineError(
                    f"{stack}: commit {commit} is older than {later}, which was deployed; nothing was applied. Deploy the head of "
                    f"{deployment.branch}; to go back, revert the later commit there"
                )
        bundle = plans / stack
        repair = bundle.exists() and read_meta(bundle).repair
        if self._is(deployed, deployment) and not repair:
            logger.info("%s: this configuration was applied with commit %s already", stack, deployed.commit)
            # There is nothing to apply, but record this commit as deployed, so that older commits can no longer be deployed.
            self.records.save(deployment, replace(deployed, commit=commit))
            return
        meta, shown = read_meta(bundle), read_plan(bundle)
        _verify(deployment, meta, bundle, commits)
        with TemporaryDirectory(prefix="kinesis-efo-apply-") as scratch:
            made = self._make(deployment, Path(scratch))
            if repair and self._is(deployed, deployment) and not made.any_changes:
                logger.info("%s: there is nothing to repair any more", stack)
                self.records.save(deployment, replace(deployed, commit=commit))
                return
            if made.terraform.version != meta.terraform:
                raise StalePlanError(
                    f"{stack} was planned with {meta.terraform}; this is {made.terraform.version}, whose state the other may not "
                    "be able to read: use the same version, or plan again"
                )
            self._compare(deployment, shown, made, approved)
            refuse_unsafe(deployment, made.json, self.asks)
            # A plan that was approved by its digest need not be scanned here, where checkov could read credentials: it was already
            # scanned in a job without them.
            if approved is None:
                _scan(self.gate, Path(scratch), made.json)
            self.prepare(made.json)
            logger.info("%s\n%s", made.text(), _counted(stack, "applying", made))
            # If this run ends midway, `under_way` makes the next run plan again, even if the configuration is unchanged.
            self.records.save(deployment, replace(deployed, under_way=commit))
            made.terraform.apply(made.path)
        self.records.save(deployment, Deployed(commit=commit, stack=self._digest(deployment)))

    def _compare(self, deployment: Deployment, shown: Plan, made: Made, approved: str | None) -> None:
        """Reject a plan that differs from the one that was shown or approved."""
        stack = deployment.stack
        differing = comparison.differences(shown, made.shown)
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

    def _make(self, deployment: Deployment, scratch: Path) -> Made:
        """Plan in a new directory, without files of earlier runs.

        Raises:
            PipelineError: The stack or the plan contains or grants something that is not allowed, or Terraform fails.
        """
        stack, key = deployment.stack, self.records.key(deployment)
        document = self._write_stack(deployment, scratch)
        # Check the state before `init`, which installs every provider that the stack or the state refers to.
        if state := self.records.state(deployment):
            _only_allowed(f"the state of {stack}", allowed.in_state(state), "run")
        # Another process may change the state after its providers were checked. Then the lock file keeps `init` from installing others.
        if not self.providers.exists():
            raise PipelineError(
                f"{self.providers} is missing, which says by hashes which provider may run: `make providers "
                f"ENV={deployment.environment}` writes it; look at it, and commit it"
            )
        shutil.copy(self.providers, scratch / LOCK_FILE)
        terraform = self.terraform(scratch)
        terraform.init()
        # Read the version before planning: if the state changes in between, the plan counts as based on the older version.
        version = terraform.state_version()
        any_changes = terraform.plan(scratch / _PLAN)
        plan = terraform.show(scratch / _PLAN)
        _only_allowed(f"the plan of {stack}", allowed.in_plan(plan, extra=self.extra), "applied")
        # Check this first: otherwise, each ARN in another environment's state would be reported as one of a foreign account.
        if refused := of_another_account(plan, (deployment.account_id, *deployment.named.accounts)):
            raise PipelineError(f"{stack} cannot be planned: {refused[0]}")
        _only_granted(f"the plan of {stack}", granted.in_plan(plan, deployment.named))
        return Made(terraform, scratch / _PLAN, plan, comparison.shown(plan, document, key), version, any_changes)

    def _write_stack(self, deployment: Deployment, scratch: Path) -> Mapping[str, Any]:
        """Write a stack to `scratch`, but only if everything in it is allowed: Terraform then installs and runs its providers."""
        stack, document = deployment.stack, read_configuration(self._configuration(deployment))
        _only_allowed(
            f"{stack}, as it is synthesized,",
            [*allowed.in_stack(document, extra=self.extra), *_elsewhere(deployment, document)],
            "run",
        )
        _only_granted(stack, granted.in_stack(document, deployment.named))
        # Write the document that was checked, instead of copying the file, which could contain a key twice.
        (scratch / CONFIGURATION).write_text(json.dumps(document), encoding="utf-8")
        return document

    def lock(self, deployment: Deployment) -> None:
        """Rewrite the lock file for the provider that the stack names.

        Raises:
            PipelineError: The stack contains or grants something that is not allowed, or the provider's registry cannot be reached.
        """
        with TemporaryDirectory(prefix="kinesis-efo-lock-") as directory:
            scratch = Path(directory)
            self._write_stack(deployment, scratch)
            self.providers.write_text(self.terraform(scratch).lock(), encoding="utf-8")
        logger.info("wrote %s", self.providers)

    def _is(self, deployed: Deployed, deployment: Deployment) -> bool:
        return deployed.stack == self._digest(deployment) and not deployed.under_way

    def _configuration(self, deployment: Deployment) -> Path:
        return self.synthesized / "stacks" / deployment.stack / CONFIGURATION

    def _digest(self, deployment: Deployment) -> str:
        return configuration_digest(self._configuration(deployment))


def scan_shown(bundle: Path, configuration: Path, gate: Gate, approved: str | None = None) -> None:
    """Scan a plan that was shown. This needs no credentials, so checkov can run where there are none.

    Args:
        bundle: Directory that `Planner.plan` wrote.
        configuration: File with the stack's Terraform JSON.
        gate: Scans the plan.
        approved: Digest that the plan must have; None for any.

    Raises:
        StalePlanError: The digest differs, or there is no plan.
        PipelineError: A checkov check fails.
    """
    shown = read_plan(bundle)
    if approved and approved != (found := comparison.digest(shown)):
        raise StalePlanError(
            f"the plan in {bundle} is sha256:{found}, and sha256:{approved} was to be scanned; plan again"
        )
    with TemporaryDirectory(prefix="kinesis-efo-scan-") as scratch:
        _scan(gate, Path(scratch), scannable(shown, read_configuration(configuration)))


def _scan(gate: Gate, scratch: Path, plan: Plan) -> None:
    scanned = scratch / PLAN_JSON
    scanned.write_text(json.dumps(plan), encoding="utf-8")
    if failed := gate([scanned]):
        raise PipelineError("checkov finds in what Terraform evaluated:\n" + "\n".join(f"  {each}" for each in failed))


def _counted(stack: str, doing: str, made: Made) -> str:
    """Describe a plan by its digest and the numbers of its changes."""
    return f"{stack}: {doing} sha256:{made.digest}: {Changes.of(made.json)}"


def _verify(deployment: Deployment, meta: Meta, bundle: Path, commits: Collection[str]) -> None:
    """Reject a bundle of another environment or commit."""
    if meta.environment != deployment.environment:
        raise StalePlanError(
            f"{bundle} holds a plan of {meta.environment}, not of {deployment.environment}; plan again"
        )
    if meta.commit not in commits:
        raise StalePlanError(
            f"the plan of {deployment.stack} is of commit {meta.commit}, not of {' or '.join(commits)}; plan again"
        )


def _elsewhere(deployment: Deployment, document: Mapping[str, Any]) -> list[str]:
    """Return faults of a stack whose account, region, state or imports differ from those of the environment."""
    backend = document.get("terraform", {}).get("backend")
    s3 = backend.get("s3") if isinstance(backend, Mapping) else None
    there = (s3.get("bucket"), s3.get("key")) if isinstance(s3, Mapping) else None
    ours = (deployment.state_bucket, deployment.state_key)
    faults = [] if there == ours else [f"terraform.backend: its state would be {there}, and must be {ours}"]
    provider = document.get("provider", {}).get("aws") if isinstance(document.get("provider"), Mapping) else None
    for each in provider if isinstance(provider, list) else [provider]:
        where = (each.get("region"), each.get("allowed_account_ids")) if isinstance(each, Mapping) else None
        if where != (deployment.region, [deployment.account_id]):
            here = (deployment.region, [deployment.account_id])
            faults.append(f"provider.aws: it would work in {where}, and must in {here}")
    written = document.get("import") or []
    # A single `import` block may be an object instead of a list.
    blocks = written if isinstance(written, list) else [written]
    imported = {str(each.get("to") if isinstance(each, Mapping) else each) for each in blocks}
    taken = sorted(imported - deployment.imports)
    return faults + [f"import {each}: the environment's file takes nothing over there" for each in taken]


def _only_allowed(what: str, faults: Sequence[str], undone: str) -> None:
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(
            f"{what} holds what the positive list (kinesis_efo_infra/gate/allowed.py) does not have; nothing was {undone}:\n{listing}"
        )


def _only_granted(what: str, faults: Sequence[str]) -> None:
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(f"{what} grants what the settings do not name:\n{listing}")


def refuse_unsafe(deployment: Deployment, plan: Plan, asks: Callable[[Plan], Sequence[str]] = lambda _: ()) -> None:
    if refused := [*refusals(plan, deployment.imports), *asks(plan)]:
        listing = "\n".join(f"  {each}" for each in refused)
        raise PipelineError(f"{deployment.stack} cannot be applied as planned:\n{listing}")


def _cost(deployment: Deployment, plan: Plan) -> Sequence[str]:
    region = deployment.region
    advantage = deployment.on_demand_advantage
    scaled = deployment.scaled
    prices = prices_of(region)
    changed = cost.table(cost.changes(plan, scaled=scaled), region, prices, advantage=advantage)
    idle = cost.idle(plan, region, prices, advantage=advantage, scaled=scaled) if prices else []
    return (*changed, *([""] if changed and idle else []), *idle)
