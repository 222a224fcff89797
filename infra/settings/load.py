"""Loads environment files, and reports all their faults at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from infra.errors import Fault, SettingsError
from infra.settings import programs, rules
from infra.settings.between import between_environments
from infra.settings.model import Application, Environment, Head, Job, Settings, stream_model
from kinesis_efo_infra.gate.excuses import FILE as EXCUSES
from kinesis_efo_infra.gate.files import read_yaml, shown
from kinesis_efo_infra.pipeline.environment import read

logger = logging.getLogger(__name__)
_Model = TypeVar("_Model", bound=Settings)
_CALLED = {"protect": "protected", "adopt_lease_table": "import_lease_table", "import": "import_existing"}
"""Maps former names of settings, and common mistakes, to the current names, for error messages."""
_UNDECLARABLE = dict.fromkeys(
    ("record_distribution", "record_distribution_strategy"),
    "cannot be declared: no AWS provider for CDKTF or CDK Terrain knows a stream's RecordDistributionStrategy. Leave it out, and say "
    "`aws kinesis update-stream-record-distribution-strategy --stream-arn <its ARN> --record-distribution-strategy AUTO` once an "
    "on-demand stream is deployed; later deployments leave it as it is",
)
"""Error messages for settings that Kinesis supports, but that Terraform cannot set, by name."""

DIRECTORY = Path(__file__).parents[1] / "environments"
"""The default directory of environment files."""


def load_environments(
    directory: Path = DIRECTORY, only: Iterable[str] = (), project: Path | None = None, *, warn: bool = True
) -> list[Environment]:
    """Read the environment files of a directory, and return all environments, or those in `only`.

    All files are read and checked against each other in any case.

    Args:
        directory: Directory with `<environment>.yaml` files.
        only: Names of the environments to return; empty for all.
        project: Directory to which the paths of jobs' programs are relative; without it, the programs are not checked.
        warn: Whether to log warnings.

    Raises:
        SettingsError: A file has faults, or a named environment does not exist.
    """
    only, there = list(only), shown(directory)
    files = {path.stem: path for path in environment_files(directory)}
    wanted = only or list(files)
    faults = [
        Fault("", name, f"there is no such environment; {there} has {', '.join(files)}")
        for name in wanted
        if files and name not in files
    ]
    if not files:
        first = next(iter(only), "dev")
        rule = f"holds no environment file; write a first one with `make new ENV={first}`, and change it"
        faults.append(Fault("", None, rule, there))
    for ledger in sorted(directory.glob("*.declared")):
        if ledger.stem not in files:
            rule = (
                f"lists what {ledger.stem} declared, whose file is gone: it would stay, be billed and be watched by nothing. Bring "
                f"{ledger.stem}.yaml back; or destroy it (docs/pipeline.md#remove-an-environment), and remove this file"
            )
            faults.append(Fault("", None, rule, shown(ledger)))
    environments: dict[str, Environment] = {}
    for name, path in files.items():
        try:
            environments[name] = load_environment(path, project)
        except SettingsError as error:
            faults += error.faults
    faults += between_environments(environments)
    if faults:
        raise SettingsError(faults)
    for name in wanted if warn else ():
        for warning in rules.warnings(environments[name], datetime.now(UTC).date()):
            logger.warning("warning: %s: %s", files[name], warning)
    return [environments[name] for name in wanted]


def load_for_bootstrap(directory: Path, name: str) -> Environment:
    """Read an environment file for its bootstrap stack. The file may also be that of a user's own app, without streams or applications.

    Args:
        directory: Directory with `<environment>.yaml` files.
        name: Name of the environment.

    Raises:
        SettingsError: A file has faults, or the environment does not exist.
    """
    path = directory / f"{name}.yaml"
    if path.exists() and not re.search(r"^(streams|applications):", path.read_text(encoding="utf-8"), re.MULTILINE):
        own = read(path)
        head = own.model_dump(
            exclude_defaults=True,
            exclude={
                "accounts",
                "boundaries",
                "identities",
                "imports",
                "other_consumers",
                "pipeline",
                "roles",
                "scaled_elsewhere",
            },
        )
        pipeline = own.pipeline.model_dump() if own.pipeline else None
        faults: list[Fault] = []
        # Check the settings again: this project's model is stricter than `kinesis_efo_infra.pipeline.environment`.
        checked = _check(Environment, {**head, "pipeline": pipeline, "streams": {}, "applications": {}}, "", faults)
        if checked is None:
            raise SettingsError([Fault(fault.path, fault.value, fault.rule, shown(path)) for fault in faults])
        return checked
    (environment,) = load_environments(directory, [name])
    return environment


def environment_files(directory: Path) -> list[Path]:
    """Return the environment files of a directory, sorted by name. The file with the excuses is left out."""
    return [path for path in sorted(directory.glob("*.yaml")) if path.name != EXCUSES]


def load_environment(path: Path, project: Path | None = None) -> Environment:
    """Read one environment file.

    Args:
        path: Path of the file.
        project: Directory to which the paths of jobs' programs are relative; without it, the programs are not checked.

    Raises:
        SettingsError: The file cannot be read, or has faults; the error lists all faults found.
    """
    place = shown(path)
    document = read_yaml(path)
    evaluated = list(_evaluated(document))
    draft = _parse(document)
    draft.faults += evaluated
    if draft.head is not None and draft.head.environment != path.stem:
        rule = f"must be {path.stem!r}, as the file is called"
        draft.faults.append(Fault("environment", draft.head.environment, rule))
    draft.faults += rules.within_environment(draft)
    if project is not None:
        draft.faults += programs.within(draft.jobs, project)
    if draft.faults or draft.head is None:
        raise SettingsError([Fault(fault.path, fault.value, fault.rule, place) for fault in draft.faults])
    return draft.environment()


def _evaluated(value: Any, path: str = "") -> Iterator[Fault]:
    """Yield faults of texts with `${` or `%{`: Terraform would evaluate them, and could insert values of other resources."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            where = f"{path}.{name}" if path else str(name)
            yield from _evaluated(each, where)
            if isinstance(name, str):
                yield from _evaluated(name, where)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _evaluated(each, f"{path}.{number}")
    elif isinstance(value, str) and ("${" in value or "%{" in value):
        yield Fault(path, value, "must have no ${ or %{, which Terraform would evaluate: write the value out")


def _parse(document: Any) -> rules.Draft:
    """Check each entry separately, so that a fault in one entry does not hide a fault in another."""
    draft = rules.Draft()
    if not isinstance(document, dict):
        draft.faults.append(Fault("", document, "must be a mapping with environment, region, streams, applications"))
        return draft
    entries = {"streams": document.pop("streams", None), "applications": document.pop("applications", None)}
    jobs = document.pop("jobs", None) or []
    draft.head = _check(Head, document, "", draft.faults)
    for section, written in entries.items():
        if not isinstance(written, dict) or not written:
            draft.faults.append(Fault(section, written, "must be a mapping with at least one entry"))
            continue
        for key, entry in written.items():
            path = f"{section}.{key}"
            draft.faults += rules.key_faults(section, key)
            draft.written[section].add(str(key))
            if section == "streams":
                if stream := _check(stream_model(entry), entry or {}, path, draft.faults):
                    draft.streams[str(key)] = stream
            elif application := _check(Application, entry or {}, path, draft.faults):
                draft.applications[str(key)] = application
    if not isinstance(jobs, list):
        draft.faults.append(Fault("jobs", jobs, "must be a list"))
        return draft
    for number, entry in enumerate(jobs):
        if job := _check(Job, entry or {}, f"jobs.{number}", draft.faults):
            draft.jobs[number] = job
    return draft


def _check(model: type[_Model], entry: Any, path: str, faults: list[Fault]) -> _Model | None:
    if not isinstance(entry, Mapping):
        faults.append(Fault(path, entry, "must be a mapping"))
        return None
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        faults += [_fault(model, detail, path) for detail in error.errors(include_url=False)]
        return None


def _fault(model: type[Settings], detail: Any, path: str) -> Fault:
    # Remove the names of union branches from pydantic's location: they are not part of the path in the file.
    branches = (
        "literal[",
        "constrained-str",
        "function-",
        "policy",
        "emr-ec2",
        "emr-serverless",
        "eks",
        "other-account",
    )
    steps = [str(step) for step in detail["loc"] if not str(step).startswith(branches)]
    where = ".".join([*([path] if path else []), *steps])
    match detail["type"]:
        case "missing":
            return Fault(where, None, "is missing")
        case "extra_forbidden" if known := _CALLED.get(where.rpartition(".")[2]):
            return Fault(where, detail["input"], f"is called {known}")
        case "extra_forbidden" if rule := _UNDECLARABLE.get(where.rpartition(".")[2]):
            return Fault(where, detail["input"], rule)
        case "extra_forbidden":
            known = ", ".join(model.model_fields)
            hint = f"; {model.__name__} has {known}" if len(steps) == 1 else ""
            return Fault(where, detail["input"], f"is not a known setting{hint}")
        case "string_pattern_mismatch":
            return Fault(where, detail["input"], f"must match {detail['ctx']['pattern']}")
        case "string_type":
            return Fault(where, detail["input"], "must be a text (put it in quotes)")
        case "value_error":
            return Fault(where, detail["input"], str(detail["ctx"]["error"]))
        case _:
            message = (
                detail["msg"]
                .replace("Input should", "must")
                .replace("List should", "must")
                .replace("Input tag", "the kind")
            )
            return Fault(where, detail["input"], message)
