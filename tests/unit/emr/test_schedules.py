"""What EventBridge Scheduler refuses is said with the schedule, its group and what to do."""

from __future__ import annotations

import botocore.session
import pytest
from botocore.stub import Stubber

from kinesis_efo.errors import PlatformError
from kinesis_efo_tools.emr.schedules import Schedule, Schedules
from tests.support.messages import raises

ROLE = "arn:aws-cn:iam::111122223333:role/schedules"
SCHEDULE = Schedule("test", "lake", "rate(1 hour)", "UTC", ROLE)


@pytest.fixture
def client() -> object:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return botocore.session.Session().create_client("scheduler", "eu-west-1", **keys)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ResourceNotFoundException", "deploy the infrastructure, which declares the group"),
        ("AccessDeniedException", "iam:PassRole for the role of schedules"),
        ("ConflictException", "ConflictException"),
    ],
)
def test_schedule_that_cannot_be_set_has_a_hint(client: object, code: str, hint: str) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("get_schedule", "ResourceNotFoundException", "no schedule")
        stub.add_client_error("create_schedule", code, "no")
        with pytest.raises(PlatformError, match=rf"^cannot set schedule lake in group test: .*{hint}"):
            Schedules(client).put(SCHEDULE, {})


def test_schedule_that_cannot_be_read_stays(client: object) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("get_schedule", "AccessDeniedException", "no")
        with raises(
            PlatformError,
            "cannot delete schedule lake in group test: An error occurred (AccessDeniedException) when calling the "
            "GetSchedule operation: no; the caller needs the permission that AWS names, and iam:PassRole for the role of "
            "schedules",
        ):
            Schedules(client).remove("test", "lake")


def test_the_target_is_in_the_partition_of_the_role() -> None:
    assert SCHEDULE.request({})["Target"]["Arn"] == "arn:aws-cn:scheduler:::aws-sdk:emrserverless:startJobRun"
