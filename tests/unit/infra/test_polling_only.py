"""An application that only polls has no consumer: none is declared, allowed, watched or billed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.pipeline.deployments import _declared
from infra.settings import ledger, literals
from infra.settings.load import load_environment, load_environments
from infra.settings.model import Environment

Write = Callable[..., Path]
Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]

FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
SHARED = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}
POLLING = ["kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"]


def apps(**changes: Any) -> dict[str, Any]:
    return {"lake": {"streams": ["orders"], "polling": "only", **changes}}


def statements(stack: dict[str, Any], document: str) -> dict[str, dict[str, Any]]:
    return {each["sid"]: each for each in stack["data"]["aws_iam_policy_document"][document]["statement"]}


def test_it_has_no_consumer_no_subscription_and_a_manifest_without_one(synth: Synth) -> None:
    stack = synth(applications=apps())
    assert "aws_kinesis_stream_consumer" not in stack["resource"]
    assert stack["output"]["consumer_arns"]["value"] == {}
    reader = statements(stack, "lake_reader")
    assert reader["ReadStreams"]["actions"] == POLLING
    assert reader["DecryptStreams"]["resources"] == ["${aws_kms_key.orders.arn}"]
    assert reader["NeverRegisterConsumers"]["effect"] == "Deny"
    assert "SubscribeToConsumers" not in reader
    manifest = stack["resource"]["aws_ssm_parameter"]["lake"]["value"]
    assert "aws_kinesis_stream.orders.arn" in manifest
    assert "consumerArn" not in manifest


def test_its_alarms_and_charts_are_those_of_polling(synth: Synth) -> None:
    stack = synth(applications=apps(lag_threshold_seconds=90), protected=True)
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"]
    metrics = {name: alarm["metric_name"] for name, alarm in alarms.items() if "metric_name" in alarm}
    assert metrics == {
        "orders_writes": "WriteProvisionedThroughputExceeded",
        "orders_lake_age": "GetRecords.IteratorAgeMilliseconds",
        "orders_reads": "ReadProvisionedThroughputExceeded",
        "orders_retention": "GetRecords.IteratorAgeMilliseconds",
    }
    assert alarms["orders_lake_age"]["threshold"] == 90_000
    (board,) = stack["resource"]["aws_cloudwatch_dashboard"].values()
    assert "GetRecords.IteratorAgeMilliseconds" in board["dashboard_body"]
    assert "ConsumerName" not in board["dashboard_body"]
    assert "aws_cloudwatch_metric_alarm.orders_lake_age.arn" in board["dashboard_body"]


def test_beside_an_application_with_a_consumer(synth: Synth) -> None:
    stack = synth(applications=apps() | {"pond": {"streams": ["orders"]}})
    assert set(stack["resource"]["aws_kinesis_stream_consumer"]) == {"orders_pond"}
    assert "SubscribeToConsumers" in statements(stack, "pond_reader")


def test_in_another_account_it_gets_the_stream_and_nothing_to_subscribe(synth: Synth) -> None:
    stack = synth(applications=apps(access=SHARED))
    policies = stack["resource"]["aws_kinesis_resource_policy"]
    assert [policy["resource_arn"] for policy in policies.values()] == ["${aws_kinesis_stream.orders.arn}"]
    assert statements(stack, "orders_shared")["ReadLake"]["actions"] == POLLING


def test_a_stream_of_another_account_needs_no_consumer_for_it(synth: Synth) -> None:
    stack = synth(streams={"orders": {"existing_arn": FOREIGN}}, applications=apps())
    assert statements(stack, "lake_reader")["ReadStreams"]["resources"] == [FOREIGN]
    assert not {"aws_kinesis_stream", "aws_kinesis_stream_consumer"} & set(stack["resource"])


def test_it_counts_for_nothing_where_consumers_are_counted(load: Load, tmp_path: Path) -> None:
    many = {f"app{n}": {"streams": ["orders"], "polling": "only"} for n in range(21)}
    environment = load(applications=many)
    assert list(_declared(environment)) == []
    assert literals.literal_consumer_arn(environment, "orders", "app0") is None
    assert "consumerArn" not in literals.literal_manifest(environment, "app0")
    assert "Subscribe" not in literals.literal_policy(environment, "app0").json()
    assert "consumer" not in ledger.accept(tmp_path, environment).read_text(encoding="utf-8")


def test_two_files_may_poll_one_stream_under_one_name(write: Write, tmp_path: Path) -> None:
    adopted = {"orders": {"existing_arn": FOREIGN.replace("777788889999", "111122223333")}}
    write(environment="dev", streams=adopted, applications=apps())
    write(environment="qa", streams=adopted, applications=apps())
    assert len(load_environments(tmp_path)) == 2


@pytest.mark.parametrize("polling", ["yes", "always", 2])
def test_other_values_are_refused(polling: Any, write: Write) -> None:
    with pytest.raises(SettingsError, match=r"applications.lake.polling: must be True, False or 'only'"):
        load_environment(write(applications=apps(polling=polling)))


def test_a_consumer_is_not_given_to_one_that_only_polls(write: Write) -> None:
    streams = {"orders": {"existing_arn": FOREIGN, "consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}}}
    with pytest.raises(
        SettingsError, match=r"streams.orders.consumers.lake: must not be given: lake says polling: only"
    ):
        load_environment(write(streams=streams, applications=apps()))
