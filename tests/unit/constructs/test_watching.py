"""Alarms on a consumer, and the dashboard of an application, in somebody's own app."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_efo_infra import ArgumentError, Stream, StreamConsumer, StreamingApplication, pin_account
from kinesis_efo_infra.cdk import TerraformStack
from tests.support.terraform.bindings import faults
from tests.unit.constructs.conftest import Synth

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
TOPIC = "arn:aws:sns:eu-west-1:111122223333:oncall"


def lake(stack: TerraformStack, **changes: Any) -> StreamingApplication:
    streams = {
        "orders": Stream(stack, "orders", name="orders", retention_hours=48, encryption_key="aws-managed"),
        "theirs": Stream.from_arn(stack, "theirs", ORDERS.replace("orders", "theirs")),
    }
    return StreamingApplication(
        stack, "lake", **{"name": "lake", "streams": streams, "encryption_key": "aws-managed", **changes}
    )


def alarms(declared: dict[str, Any]) -> dict[str, Any]:
    found = declared["resource"]["aws_cloudwatch_metric_alarm"].values()
    return {each["alarm_name"]: each for each in found}


def test_a_consumer_has_three_alarms(stack: TerraformStack, synth: Synth) -> None:
    application = lake(stack)
    made = application.consumers["orders"].alarms(notify=[TOPIC], lag_threshold_seconds=120)
    assert len(made.arns) == 3
    declared = synth()
    assert faults(declared) == [], "every attribute is one of the bindings"
    found = alarms(declared)
    assert found.keys() == {
        f"kinesis-efo/streaming/lake/orders/{what}" for what in ("lag", "retention", "subscribe-refused")
    }
    lag = found["kinesis-efo/streaming/lake/orders/lag"]
    assert (lag["metric_name"], lag["threshold"]) == ("SubscribeToShardEvent.MillisBehindLatest", 120_000)
    assert lag["dimensions"]["ConsumerName"] == "lake"
    assert lag["dimensions"]["StreamName"].startswith("${aws_kinesis_stream.")
    assert lag["treat_missing_data"] == "breaching", "silence means that nobody reads"
    assert all(each["alarm_actions"] == [TOPIC] == each["ok_actions"] for each in found.values())
    # Half of 48 hours.
    assert found["kinesis-efo/streaming/lake/orders/retention"]["threshold"] == 86_400_000


def test_silence_of_what_reads_now_and_then_is_no_alarm(stack: TerraformStack, synth: Synth) -> None:
    lake(stack).consumers["theirs"].alarms(continuous=False, application="nightly", environment="prod")
    found = alarms(synth())
    assert found["kinesis-efo/prod/nightly/theirs/lag"]["treat_missing_data"] == "notBreaching"
    # Of somebody else's stream the shortest retention is assumed.
    assert found["kinesis-efo/prod/nightly/theirs/retention"]["threshold"] == 12 * 3_600_000


def test_a_consumer_that_only_terraform_knows_is_watched_by_its_name(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    given = StreamConsumer.from_arn(stack, "given", "${data.terraform_remote_state.o.outputs.arn}", stream=orders)
    given.alarms(application="lake")
    (lag,) = [each for name, each in alarms(synth()).items() if name.endswith("/lag")]
    assert lag["dimensions"]["ConsumerName"].startswith("${element(split(")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"lag_threshold_seconds": 0},
            r"lag_threshold_seconds must be a whole number from 1 to .*; got 0: give seconds",
        ),
        ({"retention_hours": 12}, r"retention_hours must be a whole number from 24"),
    ],
)
def test_wrong_numbers_are_refused(changes: dict[str, Any], says: str, stack: TerraformStack) -> None:
    consumer = lake(stack).consumers["orders"]
    with pytest.raises(ArgumentError, match=says):
        consumer.alarms(**changes)


def test_a_stream_of_another_account_is_watched_there(stack: TerraformStack) -> None:
    pin_account(stack, "999922223333", "eu-west-1")
    theirs = Stream.from_arn(stack, "theirs", ORDERS)
    given = StreamConsumer.from_arn(stack, "given", f"{ORDERS}/consumer/lake:1", stream=theirs)
    with pytest.raises(
        ArgumentError, match=r"alarms of streaming/given: stream must be of the account .*: declare them there"
    ):
        given.alarms()


def test_the_dashboard_shows_each_stream_and_the_state_of_alarms(stack: TerraformStack, synth: Synth) -> None:
    application = lake(stack)
    watched = [consumer.alarms() for consumer in application.consumers.values()]
    assert application.dashboard(alarms=watched, lag_threshold_seconds=60).name == "kinesis-efo-streaming-lake"
    declared = synth()
    assert faults(declared) == []
    (dashboard,) = declared["resource"]["aws_cloudwatch_dashboard"].values()
    assert dashboard["dashboard_name"] == "kinesis-efo-streaming-lake"
    body = dashboard["dashboard_body"]
    assert body.count("aws_cloudwatch_metric_alarm.") == 2, "one lag alarm for each consumer"
    for title in ("milliseconds behind", "bytes received", "subscriptions refused"):
        assert f'"title" = "lake: {title}"' in body
    assert '"value" = 60000' in body
    assert body.count('"label" = "theirs"') == 5


def test_one_that_only_polls_shows_what_all_that_poll_share(stack: TerraformStack, synth: Synth) -> None:
    lake(stack, polling="only").dashboard(name="lake")
    (dashboard,) = synth()["resource"]["aws_cloudwatch_dashboard"].values()
    assert "GetRecords.IteratorAgeMilliseconds" in dashboard["dashboard_body"]
    assert "ConsumerName" not in dashboard["dashboard_body"]
    assert '"type" = "alarm"' not in dashboard["dashboard_body"]
