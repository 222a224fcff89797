"""A team's excuses: checks that may fail for a resource, each with a reason and an expiry date.

They are in `excuses.yaml` beside the environment files. This project's own checks cannot be excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kinesis_efo_infra.errors import Fault, SettingsError
from kinesis_efo_infra.gate.failures import Failure
from kinesis_efo_infra.gate.files import read_yaml, shown

FILE = "excuses.yaml"
_LONGEST = timedelta(days=366)


def _not_ours(check: str) -> str:
    if check.startswith("CKV_EFO_"):
        raise ValueError("cannot be excused: it is what this project is for")
    return check


class Excuse(BaseModel):
    """A check that may fail for a resource.

    Attributes:
        check: Id of the check. This project's own checks cannot be excused.
        resource: Terraform address of the resource.
        environment: Name of the environment in which the check may fail; default: any.
        reason: Why the failure is acceptable, for reviewers.
        until: The last day on which the excuse is valid, at most a year from today.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    check: Annotated[str, StringConstraints(pattern=r"^CKV2?_[A-Z]+_\d+$"), AfterValidator(_not_ours)]
    resource: Annotated[str, StringConstraints(pattern=r"^(data\.)?aws_[a-z0-9_]+\.[\w-]+$")]
    environment: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")] | None = None
    reason: Annotated[str, StringConstraints(min_length=10)]
    until: Annotated[date, Field(strict=True)]

    def fits(self, failure: Failure, environment: str | None) -> bool:
        """Whether this excuse covers a failure in an environment (None if the environment is unknown)."""
        # Some checks report a resource without its type. The name is sufficient then, because a check covers only one type.
        kind, _, name = failure.resource.rpartition(".")
        named = failure.resource == self.resource or (
            kind in ("", "resource", "data") and name == self.resource.rpartition(".")[2]
        )
        return self.check == failure.check and named and self.environment in (None, environment)


def load_excuses(directory: Path, today: date) -> list[Excuse]:
    """Read the excuses next to the environment files; empty if there is no such file.

    Raises:
        SettingsError: The file has faults.
    """
    path = directory / FILE
    if not path.exists():
        return []
    place = shown(path)
    written = read_yaml(path) or []
    if not isinstance(written, list):
        raise SettingsError([Fault("", written, "must be a list of excuses", place)])
    excuses, faults = [], []
    for number, entry in enumerate(written):
        try:
            excuse = Excuse.model_validate(entry)
        except ValidationError as error:
            faults += [_fault(number, detail, place) for detail in error.errors(include_url=False)]
            continue
        if excuse.until > today + _LONGEST:
            faults.append(Fault(f"{number}.until", excuse.until.isoformat(), "must be a year from now at most", place))
        excuses.append(excuse)
    if faults:
        raise SettingsError(faults)
    return excuses


def _fault(number: int, detail: Any, place: str) -> Fault:
    where = ".".join(map(str, (number, *detail["loc"])))
    rule = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    return Fault(where, None if detail["type"] == "missing" else detail["input"], rule, place)


def excused(
    failed: Iterable[Failure], excuses: Sequence[Excuse], today: date, environment_of: Any
) -> tuple[list[Failure], list[tuple[Failure, str]]]:
    """Return the failures that are not excused, and the excused failures with the reason for each.

    Args:
        failed: Checks that failed.
        excuses: The team's excuses.
        today: The current day. An expired excuse has no effect, and the failure mentions it.
        environment_of: Returns the environment of a failure's stack or plan.
    """
    still, not_any_more = [], []
    for failure in failed:
        fitting = [each for each in excuses if each.fits(failure, environment_of(failure.origin))]
        valid = [each for each in fitting if each.until >= today]
        if valid:
            not_any_more.append((failure, f"{valid[0].reason} (until {valid[0].until})"))
        elif fitting:
            ended = max(each.until for each in fitting)
            still.append(replace(failure, name=f"{failure.name} (its excuse ended on {ended})"))
        else:
            still.append(failure)
    return still, not_any_more
