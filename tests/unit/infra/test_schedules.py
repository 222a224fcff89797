"""Schedules of jobs: what a file may say, and who may set them and start what."""

from datetime import date

import pytest

from infra.errors import SettingsError
from infra.settings import rules, schedules
from tests.unit.infra.conftest import Load, rows

TODAY = date(2027, 1, 31)
JOB = "JOB, applications.lake.continuous: false, jobs.0.arguments: [--available-now], jobs.0.program: jobs/archive.py"
EVERY = f"{JOB}, jobs.0.schedule: rate(15 minutes)"


@pytest.mark.parametrize(
    "expression",
    [
        "rate(1 minute)", "rate(15 minutes)", "rate(1 hour)", "rate(7 days)",
        "cron(0 6 * * ? *)", "cron(0/15 * * * ? *)", "cron(0 18 ? * MON-FRI *)", "cron(0 8 1 * ? *)", "cron(5,35 14 ? * 2-6 2027)",
        "cron(0 9 ? * 2#1 *)", "cron(0 9 L * ? *)", "cron(0 9 15W JAN,jul ? *)", "cron(0 9 ? * 6L 2026-2030)", "cron(*/5 0-6 ? * * *)",
    ],
)  # fmt: skip
def test_expression_of_scheduler_is_valid(expression: str) -> None:
    assert schedules.expression_fault(expression) is None


FAULTY = r"""
rate(0 minutes) => from 1
rate(1 minutes) => singular for 1, as AWS wants it: rate\(1 minute\)
rate(5 minute) => plural for more than 1, as AWS wants it: rate\(5 minutes\)
rate(5 weeks) => be rate\(<number>
at(2027-01-01T00:00:00) => come again
cron(0 6 * * *) => six fields .* it has 5
cron(60 6 * * ? *) => minutes from 0 to 59; it has 60
cron(0 6 0 * ? *) => day-of-month from 1 to 31
cron(0 6 * 13 ? *) => month from 1 to 12
cron(0 6 ? * 0 *) => day-of-week from 1 to 7
cron(0 6 * * * *) => have \? in cron
cron(0 6 ? * ? *) => have \? in cron
cron(? 6 * * ? *) => minutes
cron(1-2-3 6 * * ? *) => minutes
cron(1- 6 * * ? *) => minutes
"""
CONTRADICTIONS = r"""
EVERY, applications.lake.continuous: true => applications\.lake\.continuous: must be false with a schedule
EVERY, applications.lake.access: EC2, jobs.0.target: 'cluster:j-1' => schedule: is for EMR Serverless only, .* `kinesis-efo emr submit`
EVERY, jobs.0.time_zone: Europe/Berlin => time_zone: must come with schedule: cron
PLAIN, jobs.0.time_zone: Europe/Berlin => time_zone: must come with schedule: cron
PLAIN, jobs.0.schedule: 'cron(0 6 * * ? *)', jobs.0.time_zone: Europe/Bonn => time_zone: must be a time zone of the IANA database
EVERY, applications.lake.name: LONG, applications.lake.access.role_name: lake => lake\.name: must have at most 64 characters with a schedule
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [(f"PLAIN, jobs.0.schedule: '{each}'", rf"jobs\.0\.schedule: must .*{message}") for each, message in rows(FAULTY)]
    + rows(CONTRADICTIONS),
)
def test_wrong_schedule_is_refused(load: Load, changes: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(changes.replace("EVERY", EVERY).replace("PLAIN", JOB).replace("LONG", "l" * 65))


def test_archive_that_never_ends_is_a_warning(load: Load) -> None:
    for arguments, count in (("[]", 1), ("[--available-now]", 0)):
        found = rules.warnings(load(f"{EVERY}, jobs.0.arguments: {arguments}"), TODAY)
        assert len([each for each in found if "--available-now" in each]) == count
