"""The ledger of a protected environment: a committed list of its resources that have an identity, and of its streams' retention.

Terraform's `prevent_destroy` disappears together with the resource that has it, so removing or renaming an entry would destroy its
resource without a warning. Nor does Terraform prevent a shorter retention, which loses records. The ledger, `<environment>.declared`
beside the environment file, turns both into errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.errors import LedgerError
from infra.settings import addresses
from infra.settings.model import Environment, OwnStream
from infra.settings.names import Names, entry_place

logger = logging.getLogger(__name__)

_HEADER = """\
# Everything in this environment that has an identity: its Terraform address, and what AWS knows it by.
# A line that disappears is something that Terraform destroys; where retention_hours falls, older records are lost. A table that
# is retired is not protected from deletion any more, and may disappear next.
# Written by: make accept ENV={environment}
"""
_RETENTION = ".retention_hours"
_RETIRED = ".retired"


def ledger_path(directory: Path, environment: Environment) -> Path:
    """Return the path of an environment's ledger."""
    return directory / f"{environment.environment}.declared"


def check(directory: Path, environment: Environment) -> None:
    """Check that a protected environment declares exactly what its ledger lists. Other environments have no ledger.

    Raises:
        LedgerError: A listed resource is no longer declared, a declared resource is not listed, or a stream's retention differs.
    """
    if not environment.protected:
        return
    path = ledger_path(directory, environment)
    name = environment.environment
    accept = f"make accept ENV={name}"
    if not path.exists():
        raise LedgerError(f"{path}: missing; {name} is protected and needs it: run `{accept}`, and commit it")
    if problems := _changes(path, environment):
        listing = "\n".join(f"  {problem}" for problem in problems)
        raise LedgerError(
            f"{path} and {name}.yaml differ:\n{listing}\nIf all of this is meant, run `{accept}` and commit it"
        )


def _changes(path: Path, environment: Environment) -> list[str]:
    """Return a message for each difference between a ledger and what an environment declares."""
    lines = path.read_text(encoding="utf-8").splitlines()
    listed = dict(_split(line) for line in lines if line and not line.startswith("#"))
    return [*_identities(listed, environment), *_retention(listed, environment), *_retirement(listed, environment)]


def _identities(listed: Mapping[str, str], environment: Environment) -> Iterator[str]:
    """Yield a message for each resource that is no longer declared, or is not listed yet."""
    declared = list(addresses.identities(environment))
    before = {address: what for address, what in listed.items() if not address.endswith((_RETENTION, _RETIRED))}.items()
    now = {(each.address, each.name) for each in declared}
    moved = {(each.before, each.name) for each in declared}
    forgotten = set(addresses.handed_over(environment))
    for address, what in sorted(before - now - moved):
        if address in forgotten:
            yield f"{address} ({what}) is handed over: Terraform forgets it, and leaves it as it is"
            continue
        empty = "Empty it first: no bucket that holds objects is destroyed. " if "s3_bucket" in address else ""
        yield (
            f"{address} ({what}) is not declared any more: Terraform would destroy it, and one of the same name would "
            f"get a new ARN. {empty}Renamed? Keep its name with `name:` and say `moved_from:`"
        )
    for address, what in sorted(now - before):
        yield f"{address} ({what}) is new, or not what it was"


def _retention(listed: Mapping[str, str], environment: Environment) -> Iterator[str]:
    """Yield a message for each stream whose retention differs. A longer one must be listed, too, so that a later reduction is noticed."""
    for each in _kept(environment):
        before = listed.get(each.address) or listed.get(each.before) or ""
        if before.isdigit() and int(before) > int(each.name):
            yield (
                f"{each.address} falls from {before} to {each.name}: records that are older are lost, also those that "
                "no job has read yet"
            )
        elif before != each.name:
            yield f"{each.address} ({each.name}) is new, or not what it was"


def _kept(environment: Environment) -> Iterator[addresses.Identity]:
    """Yield the retention in hours of each declared stream, as lines of the ledger."""
    for key, stream in environment.streams.items():
        if isinstance(stream, OwnStream):
            at = entry_place(key, stream)
            address, before = (f"aws_kinesis_stream.{each}{_RETENTION}" for each in (at.now, at.before))
            yield addresses.Identity(address, str(stream.retention_hours), before)


def _retirement(listed: Mapping[str, str], environment: Environment) -> Iterator[str]:
    """Yield a message for each application that has become `retired`, or is no longer."""
    before = {address for address in listed if address.endswith(_RETIRED)}
    # Skip applications that were removed: `_identities` reports their tables.
    tables = {address.removesuffix(_RETIRED) for address in before} & {
        each.address for each in addresses.identities(environment)
    }
    now = {each.address for each in _retired(environment)}
    for address in sorted(now - before):
        yield f"{address}: its table is not protected from deletion any more; it stays until the application is removed"
    for address in sorted(before - now):
        if address.removesuffix(_RETIRED) in tables:
            yield f"{address}: it is not retired any more: its table is protected from deletion again"


def _retired(environment: Environment) -> Iterator[addresses.Identity]:
    """Yield the lease tables of `retired` applications, as lines of the ledger."""
    for key, application in environment.applications.items():
        if application.retired:
            at = entry_place(key, application)
            address, before = (f"aws_dynamodb_table.{each}{_RETIRED}" for each in (at.now, at.before))
            yield addresses.Identity(address, Names(environment).lease_table_name(key), before)


def accept(directory: Path, environment: Environment) -> Path:
    """Write the ledger of what an environment declares now, log each accepted change, and return the ledger's path."""
    path = ledger_path(directory, environment)
    for change in _changes(path, environment) if path.exists() else ():
        logger.info("accepted: %s", change)
    declared = (*addresses.identities(environment), *_kept(environment), *_retired(environment))
    lines = sorted(f"{each.address} {each.name}" for each in declared)
    path.write_text(_HEADER.format(environment=environment.environment) + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def _split(line: str) -> tuple[str, str]:
    address, _, what = line.strip().partition(" ")
    return address, what
