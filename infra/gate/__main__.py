"""`python -m infra.gate`: scans synthesized stacks, or plans, and reports failed checks."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from infra.errors import InfraError
from infra.gate.scan import scan_plans, scan_stacks
from infra.settings.load import DIRECTORY, environment_files, load_environment
from infra.settings.names import environment_of
from kinesis_efo_infra.gate.failures import Result
from kinesis_efo_infra.gate.report import report

logger = logging.getLogger(__name__)


def _scan(options: argparse.Namespace) -> Result:
    # Do not use `load_environments`, which would log each warning again.
    environments = [load_environment(path) for path in environment_files(options.directory)]
    return scan_stacks(
        *options.synthesized, bootstrap=options.bootstrap, environments=environments, beside=options.directory
    )


def main(arguments: list[str] | None = None) -> int:
    """Scan stacks or plans, log the results, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.gate", description="Scan synthesized stacks, or plans.")
    parser.add_argument("synthesized", nargs="*", type=Path, default=[Path("cdktf.out")])
    parser.add_argument("--bootstrap", nargs="+", type=Path, default=[], help="synthesized bootstrap stacks")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="environment files (default: %(default)s)")
    parser.add_argument("--plan", nargs="+", type=Path, help="plans as JSON, instead of stacks")
    parser.add_argument("--sarif", type=Path, help="also write what was found as SARIF, for code scanning")
    parser.add_argument("--excused", action="store_true", help="also list what is excused, with the reasons")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        result = scan_plans(options.plan, options.directory) if options.plan else _scan(options)
    except InfraError as error:
        logger.error("error: %s", error)
        return 1
    return report(result, options.directory, environment_of, sarif=options.sarif, excused=options.excused)


if __name__ == "__main__":
    sys.exit(main())
