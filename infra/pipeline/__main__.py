"""`python -m infra.pipeline`: the steps of a pipeline, for any CI system. See docs/pipeline.md.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 drift was found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.gate.scan import ACCEPTED
from infra.pipeline.deployments import deployment_of
from infra.pipeline.jobs import PACKED, Commands, SystemTime, keep_running, pack
from infra.pipeline.pausing import Pause
from infra.settings.budget import idle
from infra.settings.load import DIRECTORY, load_environments
from infra.settings.model import Environment
from kinesis_efo_infra.gate.scan import Accepted
from kinesis_efo_infra.pipeline import filled_in
from kinesis_efo_infra.pipeline.aws import client
from kinesis_efo_infra.pipeline.bill import commitment, table
from kinesis_efo_infra.pipeline.deployment import Deployment
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.prices import prices_of, told
from kinesis_efo_infra.pipeline.steps import add_steps, check_handed, run, say


@dataclass(frozen=True, slots=True)
class Environments:
    """The environment files of a directory, as the pipeline's steps use them.

    Attributes:
        directory: Directory of the environment files.
        accepted: Failures that the gate accepts in the environments' stacks.
    """

    directory: Path
    accepted: Accepted = ACCEPTED

    def deployments(self) -> Sequence[Deployment]:
        """Return the deployments of all environments."""
        return [deployment_of(each) for each in load_environments(self.directory)]

    def deployment(self, environment: str) -> Deployment:
        """Return the deployment of one environment."""
        return deployment_of(self._environment(environment), load_environments(self.directory, warn=False))

    def refuse(self, environment: str) -> None:
        """Reject an environment file that still contains placeholder values of the template."""
        filled_in.refuse(self._environment(environment, warn=False))

    def prepare(self, environment: str) -> Callable[[Plan], None]:
        """Return a function that stops EMR applications before a plan changes them."""
        chosen = self._environment(environment, warn=False)
        pause = Pause(lambda region: client("emr-serverless", region, chosen.account_id), Commands(), SystemTime())
        return lambda plan: pause(chosen, plan)

    def _environment(self, name: str, *, warn: bool = True) -> Environment:
        (environment,) = load_environments(self.directory, [name], warn=warn)
        return environment


def main(arguments: list[str] | None = None) -> int:
    """Run a step, and return its exit code."""
    return run(_parser(), arguments)


def _cost(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment])
    spent = idle(environment, options.synthesized)
    prices = prices_of(environment.region)
    if spent is None or prices is None:
        say(f"Prices of {environment.region} are not known here: they are in another currency.")
        return 0
    lines = [
        f"What {environment.environment} costs a month, while nobody reads or writes:",
        "",
        *table(None, spent),
        "",
    ]
    if environment.on_demand_advantage and (committed := commitment(prices)):
        lines.append(committed)
    if environment.budget_usd is not None:
        lines.append(f"Its budget is {environment.budget_usd:,} USD.")
    say("\n".join([*lines, told(prices, environment.region)]))
    return 0


def _jobs(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment], options.project)
    filled_in.refuse(environment)
    packed = None
    if options.handed:
        check_handed(options)
        packed = options.synthesized / PACKED
    keep_running(environment, options.project, Commands(), SystemTime(), options.patience, packed)
    return 0


def _package(options: argparse.Namespace) -> int:
    # Remove the archives of an earlier synthesis.
    shutil.rmtree(options.synthesized / PACKED, ignore_errors=True)
    for environment in load_environments(options.directory, project=options.project):
        pack(environment, options.project, options.synthesized / PACKED, Commands())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.pipeline", description=__doc__)
    steps: Any = add_steps(parser, Environments, DIRECTORY)
    packing = argparse.ArgumentParser(add_help=False)
    packing.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    packing.add_argument(
        "--project", type=Path, default=Path(), help="directory of the project to pack (default: %(default)s)"
    )
    packed = steps.add_parser(
        "package",
        parents=[packing],
        help="pack the project for all jobs, beside the stacks, before there are credentials",
    )
    packed.set_defaults(run=_package)

    jobs = steps.add_parser(
        "jobs", parents=[packing], help="start the jobs that changed, one after the other, each until it is healthy"
    )
    jobs.add_argument("environment")
    jobs.add_argument(
        "--handed", metavar="DIGEST", help="what `digest` said of the stacks; jobs get the archive that is beside them"
    )
    jobs.add_argument(
        "--patience", type=float, default=1800, metavar="SECONDS", help="time to catch up (default: %(default)s)"
    )
    jobs.set_defaults(run=_jobs)

    spent = steps.add_parser("cost", help="what an environment costs a month while nobody reads or writes, by line")
    spent.add_argument("environment")
    spent.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    spent.set_defaults(run=_cost)
    return parser


if __name__ == "__main__":
    sys.exit(main())
