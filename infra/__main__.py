"""`python -m infra`: synthesizes environments to Terraform JSON, and prepares and checks them. The `cdktf` command runs it as the app."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.errors import InfraError, NotRunError
from infra.settings.load import DIRECTORY, load_environment, load_environments, load_for_bootstrap
from infra.settings.values import DEFAULT_PROJECT
from kinesis_efo_infra.gate.files import shown
from kinesis_efo_infra.pipeline import filled_in
from kinesis_efo_infra.pipeline.deployment import WORKFLOW

logger = logging.getLogger(__name__)
BOOTSTRAP = Path("cdktf.bootstrap")
NOT_RUN = 75
"""Exit code if a check could not run: EX_TEMPFAIL in sysexits.h."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    options = _parser().parse_args(arguments)
    # The cdktf command line sets this variable. It displays everything on stderr as an error, so log warnings only.
    level = logging.WARNING if "CDKTF_CONTEXT_JSON" in os.environ else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    try:
        match options.command:
            case "new":
                _new(options)
            case "accept":
                _accept(options)
            case "up":
                from infra.local.up import up

                up(options.directory, options.environment, options.port)
            case "apply-local":
                from infra.local.up import apply_local

                apply_local(options.directory, options.environment, options.port)
            case "real-provider":
                from infra.local.real_provider import real_provider

                return 0 if real_provider(options.record) else 1
            case "bootstrap":
                _bootstrap(options)
            case "doctor":
                return _doctor(options)
            case _:
                _synth(options)
    except NotRunError as error:
        logger.error("not run: %s", error)
        return NOT_RUN
    except InfraError as error:
        logger.error("error: %s", error)
        return 1
    return 0


def _new(options: argparse.Namespace) -> None:
    from infra.settings.first import write_first

    path = write_first(options.directory, options.environment, options.project)
    logger.info("wrote %s: give it your account, region and state bucket, and your streams", shown(path))
    if load_environment(path).protected:
        logger.info("%s is protected: then list what it declares with `make accept ENV=%s`", *[options.environment] * 2)


def _accept(options: argparse.Namespace) -> None:
    from infra.settings import budget, ledger
    from infra.stacks.app import synthesize

    (environment,) = load_environments(options.directory, [options.environment], options.programs)
    logger.info("wrote %s", ledger.accept(options.directory, environment))
    if environment.budget_usd is None:
        return
    with TemporaryDirectory(prefix="kinesis-efo-accept-") as scratch:
        synthesized = synthesize([environment], options.directory, outdir=Path(scratch), accepting=True)
        written = budget.accept(options.directory, environment, synthesized)
    if written is not None:
        logger.info("wrote %s", written)


def _synth(options: argparse.Namespace) -> None:
    from infra.stacks.app import synthesize, synthesize_bootstrap

    bootstrap = getattr(options, "bootstrap", False)
    # Do not repeat the warnings: `make synth` has logged them when it synthesized the other stacks.
    wanted = getattr(options, "environments", ())
    environments = load_environments(options.directory, wanted, options.programs, warn=not bootstrap)
    if bootstrap:
        environments = [each for each in environments if each.pipeline]
        written = synthesize_bootstrap(environments, BOOTSTRAP)
        if not environments:
            logger.info("no environment has a pipeline, which would need a bootstrap stack")
            return
    else:
        written = synthesize(environments, options.directory)
    logger.info("synthesized %s into %s", ", ".join(e.environment for e in environments), written)


def _doctor(options: argparse.Namespace) -> int:
    from infra.settings.doctor import Verdict, examine
    from kinesis_efo_infra.pipeline.aws import client

    (environment,) = load_environments(options.directory, [options.environment], options.programs)
    filled_in.refuse(environment)
    found = examine(environment, lambda service, region: client(service, region, environment.account_id))
    told = [each for each in found if each.verdict is not Verdict.OK]
    for each in told:
        logger.info("%s", each)
    wrong = sum(each.verdict is Verdict.WRONG for each in told)
    logger.info(
        "%s: asked AWS %s questions; %s wrong, %s not known",
        environment.environment,
        len(found),
        wrong,
        len(told) - wrong,
    )
    return 1 if wrong else 0


def _bootstrap(options: argparse.Namespace) -> None:
    from infra.pipeline.apply_bootstrap import apply_bootstrap
    from infra.stacks.app import synthesize_bootstrap
    from kinesis_efo_infra.pipeline.aws import client
    from kinesis_efo_infra.pipeline.deployers import workflow_of
    from kinesis_efo_infra.pipeline.deployment import github_host, github_repository
    from kinesis_efo_infra.pipeline.github import Gh

    environment = load_for_bootstrap(options.directory, options.environment)
    filled_in.refuse(environment)
    region = environment.state_region or environment.region
    s3, iam = (client(service, region, environment.account_id) for service in ("s3", "iam"))
    github: Gh | None = None
    if environment.pipeline is not None and not options.unasked:
        repository, _ = github_repository(environment.pipeline.repository)
        github = Gh(repository, github_host(environment.pipeline.issuer))
    synthesized = synthesize_bootstrap([environment], options.out)
    apply_bootstrap(
        environment,
        synthesized,
        s3,
        iam,
        github=github,
        deploy=workflow_of(options.directory, options.deploy),
        approve=options.yes,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="environment files (default: %(default)s)")
    parser.add_argument(
        "--programs",
        type=Path,
        default=Path(),
        metavar="DIRECTORY",
        help="the project that is packed, to which programs of jobs are relative (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command")
    new = commands.add_parser("new", help="write the first file of an environment, to be changed; overwrites nothing")
    new.add_argument("environment")
    new.add_argument(
        "--project",
        default=DEFAULT_PROJECT,
        help="what names begin with, where several projects share an account (default: %(default)s)",
    )
    synth = commands.add_parser("synth", help="write Terraform JSON (the default)")
    synth.add_argument("environments", nargs="*", help="default: all")
    synth.add_argument(
        "--bootstrap", action="store_true", help=f"write the bootstrap stacks of pipelines instead, into {BOOTSTRAP}"
    )
    accept = commands.add_parser(
        "accept", help="record what a protected environment declares in its ledger, and what costs more than its budget"
    )
    accept.add_argument("environment")
    bootstrap = commands.add_parser("bootstrap", help="deploy the bootstrap stack of an environment's pipeline, once")
    bootstrap.add_argument("environment")
    bootstrap.add_argument("--out", type=Path, default=BOOTSTRAP, help="where to synthesize it (default: %(default)s)")
    bootstrap.add_argument("--yes", action="store_true", help="do not ask")
    bootstrap.add_argument(
        "--unasked", action="store_true", help="do not ask GitHub for its rules either, which needs `gh`"
    )
    bootstrap.add_argument(
        "--deploy", default=WORKFLOW, metavar="FILE", help="GitHub's workflow that deploys it (default: %(default)s)"
    )
    doctor = commands.add_parser(
        "doctor", help="ask AWS, with calls that only read, whether what an environment file names is there"
    )
    doctor.add_argument("environment")
    for name, what in (
        ("up", "serve local AWS with what an environment file declares, until Ctrl-C"),
        ("apply-local", "serve local AWS to which Terraform has applied an environment's stack, until Ctrl-C"),
    ):
        local = commands.add_parser(name, help=what)
        local.add_argument("environment")
        local.add_argument(
            "--port", type=int, default=4566, help="port of local AWS; 0 picks a free one (default: %(default)s)"
        )
    real = commands.add_parser(
        "real-provider",
        help="check and plan the examples with the AWS provider of its registry, and record what it said; "
        f"exit code {NOT_RUN} where that is out of reach",
    )
    real.add_argument("--record", type=Path, default=Path("infra/real-provider.md"), help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
