"""The budget of an environment: the monthly cost, while it is idle, above which a person has to accept the cost.

The accepted cost is stored in `<environment>.budget` beside the environment file, to be reviewed and committed.
"""

from __future__ import annotations

import json
from pathlib import Path

from infra.errors import LedgerError
from infra.settings import addresses
from infra.settings.model import Environment
from infra.settings.names import Names
from kinesis_efo_infra.pipeline.bill import Bill, bill, of_stack, table
from kinesis_efo_infra.pipeline.prices import elsewhere, prices_of, told

_HEADER = """\
# What this environment may cost a month, in US dollars, while nobody reads or writes, although its budget_usd is less.
# Written by: make accept ENV={environment}
"""


def budget_path(directory: Path, environment: Environment) -> Path:
    """Return the path of the file with the accepted cost."""
    return directory / f"{environment.environment}.budget"


def idle(environment: Environment, synthesized: Path) -> Bill | None:
    """Return the monthly cost of an environment while it is idle; None if the region's prices are unknown.

    Args:
        environment: The environment.
        synthesized: Directory with its synthesized stack.
    """
    prices = prices_of(environment.region)
    if prices is None:
        return None
    text = (synthesized / "stacks" / Names(environment).stack_name / "cdk.tf.json").read_text(encoding="utf-8")
    scaled = set(addresses.scaled_elsewhere(environment))
    resources = of_stack(json.loads(text))
    return bill(resources, prices, elsewhere(), advantage=environment.on_demand_advantage, scaled=scaled)


def check(directory: Path, environment: Environment, synthesized: Path) -> None:
    """Check that the cost of an environment does not exceed its budget, or the accepted cost.

    Args:
        directory: Directory of the environment files.
        environment: The environment.
        synthesized: Directory with its synthesized stack.

    Raises:
        LedgerError: The environment costs more.
    """
    budget = environment.budget_usd
    spent = idle(environment, synthesized) if budget is not None else None
    if budget is None or spent is None:
        return
    path = budget_path(directory, environment)
    accepted = _accepted(path)
    if spent.total <= max(budget, accepted or 0):
        return
    name = environment.environment
    above = f"budget_usd of {name} is {budget:,}" + (f", and {accepted:,.2f} was accepted" if accepted else "")
    prices = prices_of(environment.region)
    lines = [*table(None, spent), *([told(prices, environment.region)] if prices else [])]
    listing = "\n".join(f"  {line}" for line in lines)
    raise LedgerError(
        f"{path}: {above}; it would cost {spent.total:,.2f} USD a month while nobody reads or writes:\n{listing}\n"
        f"If that is meant, run `make accept ENV={name}` and commit it"
    )


def accept(directory: Path, environment: Environment, synthesized: Path) -> Path | None:
    """Record the cost of an environment as accepted. If the cost is within the budget, delete an earlier record.

    Returns:
        The path of the record; None if there is none.
    """
    path = budget_path(directory, environment)
    spent = idle(environment, synthesized) if environment.budget_usd is not None else None
    if spent is None or environment.budget_usd is None or spent.total <= environment.budget_usd:
        path.unlink(missing_ok=True)
        return None
    path.write_text(f"{_HEADER.format(environment=environment.environment)}{spent.total:.2f}\n", encoding="utf-8")
    return path


def _accepted(path: Path) -> float | None:
    if not path.exists():
        return None
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")
    ]
    try:
        (line,) = lines
        return float(line)
    except ValueError:
        raise LedgerError(f"{path} must have one line, with dollars; got {lines!r}: run `make accept` again") from None
