"""The ledger of a protected environment: a committed list of all its resources that have an identity.

Terraform's `prevent_destroy` goes away together with the resource that carries it, so a renamed or removed entry
would be destroyed without a warning. The ledger, `<environment>.declared` beside the file, makes that an error.
"""

from __future__ import annotations

from pathlib import Path

from infra import names
from infra.errors import LedgerError
from infra.settings import Environment

_HEADER = """\
# Everything in this environment that has an identity: its Terraform address, and what AWS knows it by.
# A line that disappears is a stream, consumer, table or key that Terraform destroys. Written by: python -m infra accept {environment}
"""


def ledger_path(directory: Path, environment: Environment) -> Path:
    """Path of the ledger of an environment."""
    return directory / f"{environment.environment}.declared"


def check(directory: Path, environment: Environment) -> None:
    """Check that a protected environment declares exactly what its ledger lists. Other environments have no ledger.

    Raises:
        LedgerError: A listed resource is not declared any more, or a declared one is not listed.
    """
    if not environment.protected:
        return
    path = ledger_path(directory, environment)
    name = environment.environment
    accept = f"python -m infra accept {name}"
    if not path.exists():
        raise LedgerError(f"{path}: missing; {name} is protected and needs it: run `{accept}`, and commit it")
    listed = {
        _split(line) for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    }
    declared = list(names.identities(environment))
    now = {(each.address, each.name) for each in declared}
    moved = {(each.before, each.name) for each in declared}
    lost = sorted(listed - now - moved)
    new = sorted(now - listed)
    problems = [
        f"{address} ({what}) is not declared any more: Terraform would destroy it, and one of the same name would get "
        "a new ARN. Renamed? Keep its name with `name:` and say `moved_from:`"
        for address, what in lost
    ]
    problems += [f"{address} ({what}) is new, or not what it was" for address, what in new]
    if problems:
        listing = "\n".join(f"  {problem}" for problem in problems)
        raise LedgerError(
            f"{path} and {name}.yaml differ:\n{listing}\nIf all of this is meant, run `{accept}` and commit it"
        )


def accept(directory: Path, environment: Environment) -> Path:
    """Write the ledger of what an environment declares now, and return its path."""
    path = ledger_path(directory, environment)
    lines = sorted(f"{each.address} {each.name}" for each in names.identities(environment))
    path.write_text(_HEADER.format(environment=environment.environment) + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def _split(line: str) -> tuple[str, str]:
    address, _, what = line.strip().partition(" ")
    return address, what
