"""Validates and plans this project's stacks with the real AWS provider from its registry, and records versions and results.

This needs no AWS account: requests go to the local AWS emulator. `apply_local` also applies a stack, but does not record the result.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

from infra.errors import NotRunError, PipelineError
from infra.local.up import localized, serving
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from kinesis_efo_infra.engine import ENGINE
from kinesis_efo_infra.pipeline.bundle import Changes
from kinesis_efo_infra.pipeline.local import LocalStack
from kinesis_efo_infra.pipeline.terraform import find_binary, missing_binary

logger = logging.getLogger(__name__)

RECORD = Path("infra/real-provider.md")
"""The Markdown page with the records, one for each synthesis engine."""
FILES = (Path("infra/example.yaml"), *(Path("examples/environments") / each for each in ("dev.yaml", "prod.yaml")))
"""The environment files to check: one with every setting, and two environments with jobs and a pipeline."""
_BLOCK = "<!-- {engine} -->\n{text}<!-- end of {engine} -->"
_MOST = 2000
# Only network errors mean that the check could not run; any other error of the provider is a failure.
OUT_OF_REACH = re.compile(
    r"could not connect to|failed to request discovery|no such host|connection refused|connection reset|timeout"
    r"|TLS handshake|service unavailable",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a stack.

    Attributes:
        stack: Name of the stack.
        versions: Versions of Terraform and of the installed provider; empty if the installation failed.
        said: Summary of the plan, or the error of Terraform or the provider.
        passed: Whether the stack was validated and planned without an error.
    """

    stack: str
    versions: str
    said: str
    passed: bool


def real_provider(
    record: Path = RECORD,
    files: Sequence[Path] = FILES,
    today: Callable[[], date] = lambda: datetime.now(UTC).date(),
) -> bool:
    """Validate and plan the stacks of environments with the AWS provider, record the results, and return whether all passed.

    Args:
        record: The page to write to.
        files: The environment files.
        today: Returns the date for the record.

    Raises:
        NotRunError: Terraform is missing, or the provider's registry cannot be reached; nothing is recorded.
        SettingsError: An environment file has faults.
    """
    if find_binary() is None:
        raise NotRunError(missing_binary())
    with TemporaryDirectory(prefix="kinesis-efo-provider-") as scratch:
        outcomes = [each for path in files for each in _planned(load_environment(path), Path(scratch))]
    for each in outcomes:
        logger.info("%s: %s", each.stack, each.said)
    written = written_into(record.read_text(encoding="utf-8"), ENGINE, told(outcomes, today()))
    record.write_text(written, encoding="utf-8")
    logger.info("recorded in %s: commit it", record)
    return all(each.passed for each in outcomes)


def _planned(environment: Environment, scratch: Path) -> Iterator[Outcome]:
    from infra.stacks.app import synthesize, synthesize_bootstrap

    plugins = scratch / "plugins"
    plugins.mkdir(exist_ok=True)
    with serving(environment) as aws:
        # `localized` omits what needs an AWS account, such as imports. Jobs can be planned without one, so put them back.
        local = localized(environment).model_copy(update={"emr": environment.emr, "jobs": environment.jobs})
        stacks = synthesize([local], scratch, outdir=scratch / "streaming", accepting=True) / "stacks"
        yield _outcome(LocalStack(stacks / Names(environment).stack_name, aws.endpoint_url, plugins))
        if environment.pipeline is not None:
            stacks = synthesize_bootstrap([environment], scratch / "bootstrap") / "stacks"
            yield _outcome(LocalStack(stacks / Names(environment).bootstrap_stack_name, aws.endpoint_url, plugins))


def _outcome(stack: LocalStack) -> Outcome:
    versions = ""
    try:
        stack.begin()
        versions = ", ".join(stack.versions)
        return Outcome(str(stack), versions, f"valid; {Changes.of(stack.plan())}", passed=True)
    except PipelineError as error:
        if not versions and OUT_OF_REACH.search(str(error)):
            raise NotRunError(f"the registry of the AWS provider is out of reach: {error}") from None
        return Outcome(str(stack), versions, str(error)[:_MOST], passed=False)


def told(outcomes: Sequence[Outcome], day: date) -> str:
    """Return the results for all stacks, as Markdown."""
    versions = sorted({each.versions or "versions that were not told" for each in outcomes})
    lines = [
        fill(f"Run on {day}, at commit {_commit()}, with {'; '.join(versions)}.", 120, break_on_hyphens=False),
        "",
        "| stack | `init`, `validate`, `plan` |",
        "|---|---|",
    ]
    lines += [f"| `{each.stack}` | {each.said if each.passed else 'refused, see below'} |" for each in outcomes]
    for each in outcomes:
        if not each.passed:
            lines += ["", f"`{each.stack}`:", "", "```text", each.said, "```"]
    return "\n".join(lines) + "\n"


def written_into(page: str, engine: str, text: str) -> str:
    """Return a page of records in which the record of one engine is replaced.

    Args:
        page: The page.
        engine: The engine; two HTML comments with its name enclose its record.
        text: The new record.

    Raises:
        PipelineError: The page lacks these comments.
    """
    block = re.escape(_BLOCK).replace(re.escape("{engine}"), re.escape(engine)).replace(re.escape("{text}"), ".*?")
    written, count = re.subn(block, lambda _: _BLOCK.format(engine=engine, text=text), page, flags=re.DOTALL)
    if count != 1:
        raise PipelineError(
            f"the page for records has no place for {engine}: {_BLOCK.format(engine=engine, text='')!r}"
        )
    return written


def _commit() -> str:
    ran = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"
