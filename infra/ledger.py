"""What a protected environment has declared before, so that nothing with an identity disappears by a change of names.

Terraform's `prevent_destroy` goes away together with the resource that carries it: an entry that is renamed or dropped
would be destroyed without a word. The ledger, `<environment>.declared` beside the environment file, is committed and reviewed with it.
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
    """Where the ledger of an environment is."""
    return directory / f"{environment.environment}.declared"


def check(directory: Path, environment: Environment) -> None:
    """Compare a protected environment with its ledger; others have none.

    Raises:
        LedgerError: Something on the ledger is not declared any more, or something declared is not on it.
    """
    if not environment.protected:
        return
    path = ledger_path(directory, environment)
    name = environment.environment
    accept = f"python -m infra accept {name}"
    if not path.exists():
        raise LedgerError(f"{path}: missing; {name} is protected, so what it declares is written down: run `{accept}`")
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
    """Write down what an environment declares now. Returns the ledger."""
    path = ledger_path(directory, environment)
    lines = sorted(f"{each.address} {each.name}" for each in names.identities(environment))
    path.write_text(_HEADER.format(environment=environment.environment) + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def _split(line: str) -> tuple[str, str]:
    address, _, what = line.strip().partition(" ")
    return address, what
