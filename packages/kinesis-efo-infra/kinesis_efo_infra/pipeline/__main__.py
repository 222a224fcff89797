"""`kinesis-efo-infra`: creates a repository for your own app, and runs its gate and the steps of its pipeline.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 drift was found.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinesis_efo_infra.errors import Fault, SettingsError
from kinesis_efo_infra.gate.files import shown
from kinesis_efo_infra.gate.granted import Named
from kinesis_efo_infra.gate.report import report
from kinesis_efo_infra.gate.scan import ENVIRONMENTS, NOTHING, Accepted, scan_stacks
from kinesis_efo_infra.pipeline import filled_in, new_repository, publisher
from kinesis_efo_infra.pipeline.deployment import Deployment
from kinesis_efo_infra.pipeline.environment import Environment, load
from kinesis_efo_infra.pipeline.limits import Plan, applications_to_stop
from kinesis_efo_infra.pipeline.local import apply_local
from kinesis_efo_infra.pipeline.steps import add_steps, run

logger = logging.getLogger(__name__)
DIRECTORY = Path("environments")


@dataclass(frozen=True, slots=True)
class Own:
    """A user's repository with its own app: implements the interface `Project` of the pipeline's steps.

    Attributes:
        directory: Directory of the environment files.
        accepted: Failures that the gate accepts in the app's stacks.
    """

    directory: Path
    accepted: Accepted = NOTHING

    def deployments(self) -> Sequence[Deployment]:
        """Return the deployments of all environments."""
        return [each.deployment for each in load(self.directory)]

    def deployment(self, environment: str) -> Deployment:
        """Return the deployment of one environment."""
        return self._environment(environment).deployment

    def refuse(self, environment: str) -> None:
        """Reject an environment file that still contains placeholder values of the template."""
        filled_in.refuse(self._environment(environment))

    def prepare(self, environment: str) -> Callable[[Plan], None]:
        """Return a function that logs which EMR applications someone must stop before a plan can change them."""

        def tell(plan: Plan) -> None:
            for application in applications_to_stop(plan):
                logger.warning(
                    "warning: %s: EMR changes application %s only while it is stopped", environment, application
                )

        return tell

    def _environment(self, name: str) -> Environment:
        found = {each.environment: each for each in load(self.directory)}
        if name not in found:
            rule = f"there is no such environment; {shown(self.directory)} has {', '.join(found)}"
            raise SettingsError([Fault("", name, rule)])
        return found[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    return run(command_line(), arguments)


def _gate(options: argparse.Namespace) -> int:
    deployments = Own(options.directory).deployments()
    named: Mapping[tuple[str, str], Named] = {(ENVIRONMENTS, each.stack): each.named for each in deployments}
    environments = {each.stack: each.environment for each in deployments}
    result = scan_stacks(options.synthesized, named=named, beside=options.directory, environment_of=environments.get)
    return report(result, options.directory, environments.get, sarif=options.sarif, excused=options.excused)


def _apply_local(options: argparse.Namespace) -> int:
    apply_local(options.synthesized / "stacks" / options.stack, options.endpoint)
    return 0


def _new_repository(options: argparse.Namespace) -> int:
    for path in new_repository.write(options.to, options.environment, options.publisher, options.tag, options.engine):
        logger.info("wrote %s", shown(path))
    logger.info("%s says what comes next", shown(options.to / "README.md"))
    if options.publisher == publisher.REPOSITORY:
        logger.warning("warning: nobody has published the workflows yet: %s stands for who will", publisher.REPOSITORY)
    return 0


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kinesis-efo-infra", description=__doc__)
    steps = add_steps(parser, Own, DIRECTORY)
    new = steps.add_parser("new-repository", help="write a repository: an app, its environment, its pipeline")
    new.add_argument("to", type=Path, metavar="DIR", help="its directory; nothing that is there is overwritten")
    new.add_argument("--environment", default="streaming-dev", help="its first environment (default: %(default)s)")
    new.add_argument(
        "--publisher", default=publisher.REPOSITORY, help="whose workflows it calls (default: %(default)s)"
    )
    new.add_argument("--tag", default=publisher.TAG, help="their version (default: %(default)s)")
    new.add_argument("--engine", choices=("cdktf", "cdktn"), default="cdktf", help="cdktn: CDK Terrain")
    new.set_defaults(run=_new_repository)
    local = steps.add_parser("apply-local", help="apply a synthesized stack to a local AWS that runs")
    local.add_argument("stack", help="its name")
    local.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    local.add_argument("--endpoint", default="http://127.0.0.1:4566", help="the local AWS (default: %(default)s)")
    local.set_defaults(run=_apply_local)
    gate = steps.add_parser("gate", help="scan what was synthesized: the positive list, what it grants, and checkov")
    gate.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    gate.add_argument("--sarif", type=Path, help="also write what was found as SARIF, for code scanning")
    gate.add_argument("--excused", action="store_true", help="also list what is excused, with the reasons")
    gate.set_defaults(run=_gate)
    return parser


if __name__ == "__main__":
    sys.exit(main())
