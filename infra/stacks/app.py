"""Synthesizes environments to Terraform JSON, without the `cdktf` command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from infra.errors import MissingError
from infra.settings import budget, extra, ledger
from infra.settings.model import Environment
from infra.stacks.bootstrap import BootstrapStack
from infra.stacks.cdk import App
from infra.stacks.streaming import StreamingStack


def synthesize(
    environments: Iterable[Environment],
    directory: Path,
    *,
    outdir: Path | None = None,
    accepting: bool = False,
) -> Path:
    """Write one stack per environment, and return the directory that contains `stacks/<name>/cdk.tf.json`.

    Args:
        environments: The environments to synthesize.
        directory: Directory of the environment files and their ledgers.
        outdir: Output directory; default: `$CDKTF_OUTDIR`, which the `cdktf` command line sets, else `cdktf.out`.
        accepting: Whether to skip the checks of ledgers and budgets: they are about to be accepted, or nothing will be deployed.

    Raises:
        LedgerError: A protected environment does not match its ledger, or an environment costs more than its budget.
    """
    chosen = list(environments)
    checked = [] if accepting else chosen
    for environment in checked:
        ledger.check(directory, environment)
    written = outdir or Path(os.environ.get("CDKTF_OUTDIR", "cdktf.out"))
    app = _app(written)
    for environment in chosen:
        stack = StreamingStack(app, environment)
        extra.build(directory, stack, environment, stack.parts)
    _write(app)
    for environment in checked:
        budget.check(directory, environment, written)
    return written


def synthesize_bootstrap(environments: Iterable[Environment], outdir: Path) -> Path:
    """Write the bootstrap stack of each environment, and return the output directory.

    It must differ from the directory of the other stacks, because only an administrator may deploy bootstrap stacks.
    """
    app = _app(outdir)
    for environment in environments:
        BootstrapStack(app, environment)
    _write(app)
    return outdir


def _app(outdir: Path) -> App:
    # Use an absolute path: Node writes the files, and its working directory may be another.
    return App(outdir=str(outdir.absolute()))


def _write(app: App) -> None:
    try:
        app.synth()
    except RuntimeError as error:
        # CDKTF runs `terraform version` if a resource is imported or moved. This fails if Terraform is missing.
        if "version of terraform" not in str(error):
            raise
        raise MissingError(
            "an environment imports or moves resources, for which CDKTF runs `terraform version`, and that failed: install Terraform 1.10 "
            "or newer, and put it on the PATH"
        ) from None
