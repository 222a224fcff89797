"""Alarms on a consumer, and the dashboard of an application, in somebody's own app."""

from __future__ import annotations

from typing import Any

from kinesis_efo_infra import Polling, Stream, StreamConsumer, StreamingApplication
from kinesis_efo_infra.cdk import TerraformStack
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


def test_dashboard_of_polling_shows_iterator_age(stack: TerraformStack, synth: Synth) -> None:
    assert lake(stack, polling=Polling.ONLY).dashboard(name="lake").name == "lake"
    (dashboard,) = synth()["resource"]["aws_cloudwatch_dashboard"].values()
    assert "GetRecords.IteratorAgeMilliseconds" in dashboard["dashboard_body"]
    assert "ConsumerName" not in dashboard["dashboard_body"]
    assert '"type" = "alarm"' not in dashboard["dashboard_body"]
