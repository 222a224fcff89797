"""Schedules of jobs: the syntax of EventBridge Scheduler's expressions, and rules for jobs with a schedule.

Source: EventBridge Scheduler user guide, "Schedule types".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo, available_timezones

from infra.errors import Fault
from infra.settings.access import EmrServerless
from infra.settings.model import Application, Environment, Job

_NAME_CHARACTERS = 64  # EventBridge Scheduler API reference, CreateSchedule, Name
_RATE = re.compile(r"rate\((\d+) (minute|hour|day)(s?)\)")
_CRON = re.compile(r"cron\((.*)\)")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS: tuple[tuple[str, int, int, Sequence[str]], ...] = (
    ("minutes", 0, 59, ()),
    ("hours", 0, 23, ()),
    ("day-of-month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day-of-week", 1, 7, _DAYS),
    ("year", 1970, 2199, ()),
)
_SPECIAL = {"day-of-month": r"\?|L|LW|\d{1,2}W", "day-of-week": r"\?|L|[1-7]L|[1-7]#[1-5]"}
_PROGRAM = "jobs/archive.py"
_ENDS = "--available-now"


def scheduled(environment: Environment) -> Sequence[Job]:
    """Return the jobs that have a schedule."""
    return [job for job in environment.jobs if job.schedule is not None]


def expression_fault(text: str) -> str | None:
    """Return what is wrong with a schedule expression, as the end of a sentence; None if it is valid.

    >>> expression_fault("rate(15 minutes)"), expression_fault("cron(0 6 ? * MON-FRI *)")
    (None, None)
    >>> expression_fault("rate(1 minutes)")
    'must be singular for 1, as AWS wants it: rate(1 minute)'
    """
    if rate := _RATE.fullmatch(text):
        number, unit, plural = int(rate[1]), rate[2], bool(rate[3])
        if number == 0:
            return "must be more often than never: give rate a number from 1"
        if (number == 1) == plural:
            what = "singular for 1" if plural else "plural for more than 1"
            return f"must be {what}, as AWS wants it: rate({number} {unit}{'' if plural else 's'})"
        return None
    if cron := _CRON.fullmatch(text):
        return _cron_fault(cron[1].split())
    if text.startswith("at("):
        return "must come again: rate(...) or cron(...); to run a job once, say `kinesis-efo emr submit --now`"
    return "must be rate(<number> <minutes|hours|days>) or cron(<six fields>), as rate(15 minutes) or cron(0 6 * * ? *)"


def _cron_fault(fields: Sequence[str]) -> str | None:
    if len(fields) != len(_FIELDS):
        return f"must have six fields in cron, {' '.join(name for name, *_ in _FIELDS)}; it has {len(fields)}"
    for text, (name, least, most, words) in zip(fields, _FIELDS, strict=True):
        if not all(_fits(part, name, least, most, words) for part in text.split(",")):
            return f"must have in cron {name} from {least} to {most}; it has {text}"
    if (fields[2] == "?") == (fields[4] == "?"):
        return "must have ? in cron as day-of-month or as day-of-week, and something else as the other"
    return None


def _fits(part: str, name: str, least: int, most: int, words: Sequence[str]) -> bool:
    """Whether a part of a cron field is `*`, a value, a range, one of these with a step, or special syntax of this field, such as `L`."""
    if re.fullmatch(_SPECIAL.get(name, r"(?!)"), part):
        return True
    span, slash, step = part.partition("/")
    if slash and not (step.isdecimal() and 1 <= int(step) <= most):
        return False
    if span == "*":
        return True
    numbers = [words.index(each) + least if each in words else _number(each) for each in span.upper().split("-")]
    return len(numbers) <= 2 and all(each is not None and least <= each <= most for each in numbers)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None


def time_zone_fault(name: str) -> str | None:
    """Return what is wrong with the name of a time zone; None if it exists, or this machine has no time zone database.

    >>> time_zone_fault("Europe/Berlin"), time_zone_fault("Europe/Bonn")
    (None, 'must be a time zone of the IANA database, such as Europe/Berlin')
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # If the database is missing altogether, accept any name.
        return "must be a time zone of the IANA database, such as Europe/Berlin" if available_timezones() else None
    return None


def within(applications: Mapping[str, Application], jobs: Mapping[int, Job]) -> Iterator[Fault]:
    """Yield faults in one file: invalid schedules and time zones, and schedules of continuous applications or outside of EMR Serverless."""
    for number, job in jobs.items():
        path = f"jobs.{number}"
        if job.time_zone is not None:
            yield from _time_zone(f"{path}.time_zone", job.time_zone, job.schedule)
        if job.schedule is None:
            continue
        if rule := expression_fault(job.schedule):
            yield Fault(f"{path}.schedule", job.schedule, rule)
        if job.application in applications:
            yield from _application(f"{path}.schedule", job, applications[job.application])


def _time_zone(path: str, name: str, schedule: str | None) -> Iterator[Fault]:
    if schedule is None or not schedule.startswith("cron("):
        yield Fault(path, name, "must come with schedule: cron(...): nothing else has a time of day")
    elif rule := time_zone_fault(name):
        yield Fault(path, name, rule)


def _application(path: str, job: Job, application: Application) -> Iterator[Fault]:
    if not isinstance(application.access, EmrServerless):
        rule = (
            f"is for EMR Serverless only, and the access of {job.application} is {application.access.kind}: start it with a "
            "scheduler of your own, which runs `kinesis-efo emr submit`"
        )
        yield Fault(path, job.schedule, rule)
    there = f"applications.{job.application}"
    if application.continuous:
        rule = "must be false with a schedule, or the silence between two runs is an alarm; say continuous: false"
        yield Fault(f"{there}.continuous", True, rule)
    if len(name := application.name or job.application) > _NAME_CHARACTERS:
        rule = f"must have at most {_NAME_CHARACTERS} characters with a schedule, which is called after it"
        yield Fault(f"{there}.name", name, rule)


def warnings(environment: Environment) -> Iterator[str]:
    """Yield warnings about schedules that are allowed, but probably a mistake."""
    for job in scheduled(environment):
        if job.program == _PROGRAM and _ENDS not in job.arguments:
            yield (
                f"jobs of {job.application}: {_PROGRAM} has schedule {job.schedule}, but no {_ENDS} in its arguments: "
                "the first run goes on for ever, and those after it fail"
            )
