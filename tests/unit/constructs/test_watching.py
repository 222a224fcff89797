"""Alarms on a consumer, and the dashboard of an application, in somebody's own app."""

from __future__ import annotations

from typing import Any

from kinesis_efo_infra import Polling, Stream, StreamConsumer, StreamingApplication
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


def test_silence_of_an_occasional_reader_is_no_alarm(stack: TerraformStack, synth: Synth) -> None:
    lake(stack).consumers["theirs"].alarms(continuous=False, application="nightly", environment="prod")
    found = alarms(synth())
    assert found["kinesis-efo/prod/nightly/theirs/lag"]["treat_missing_data"] == "notBreaching"
    # Of somebody else's stream the shortest retention is assumed.
    assert found["kinesis-efo/prod/nightly/theirs/retention"]["threshold"] == 12 * 3_600_000


def test_unknown_consumer_is_watched_by_its_name(stack: TerraformStack, synth: Synth) -> None:
    orders = Stream.from_arn(stack, "orders", ORDERS)
    given = StreamConsumer.from_arn(stack, "given", "${data.terraform_remote_state.o.outputs.arn}", stream=orders)
    given.alarms(application="lake")
    (lag,) = [each for name, each in alarms(synth()).items() if name.endswith("/lag")]
    assert lag["dimensions"]["ConsumerName"].startswith("${element(split(")


def test_dashboard_shows_streams_and_alarms(stack: TerraformStack, synth: Synth) -> None:
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


def test_dashboard_of_polling_shows_iterator_age(stack: TerraformStack, synth: Synth) -> None:
    lake(stack, polling=Polling.ONLY).dashboard(name="lake")
    (dashboard,) = synth()["resource"]["aws_cloudwatch_dashboard"].values()
    assert "GetRecords.IteratorAgeMilliseconds" in dashboard["dashboard_body"]
    assert "ConsumerName" not in dashboard["dashboard_body"]
    assert '"type" = "alarm"' not in dashboard["dashboard_body"]
