"""The construct of a whole application, with consumers and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.stacks.cdk import App, AwsProvider, TerraformStack
from kinesis_efo_infra import ArgumentError, Stream, StreamConsumer, StreamingApplication, pin_account


def stack(directory: Path) -> tuple[App, TerraformStack]:
    app = App(outdir=str(directory))
    made = TerraformStack(app, "dev")
    pin_account(made, "111122223333", "eu-west-1")
    AwsProvider(made, "aws", region="eu-west-1")
    return app, made


@pytest.mark.parametrize(("polling", "consumers"), [(False, 1), (True, 1), (None, 1), ("only", 0)])
def test_consumers_are_declared_unless_it_only_polls(polling: Any, consumers: int, tmp_path: Path) -> None:
    app, made = stack(tmp_path)
    orders = Stream(made, "orders", name="orders")
    said = {} if polling is None else {"polling": polling}
    lake = StreamingApplication(made, "lake", name="lake", streams={"orders": orders}, batch=True, **said)
    assert len(lake.consumers) == consumers
    app.synth()
    written = json.loads((tmp_path / "stacks" / "dev" / "cdk.tf.json").read_text(encoding="utf-8"))
    assert len(written["resource"].get("aws_kinesis_stream_consumer", {})) == consumers
    (parameter,) = written["resource"]["aws_ssm_parameter"].values()
    assert ("consumerArn" in parameter["value"]) is bool(consumers)
    documents = written["data"]["aws_iam_policy_document"]
    (reader,) = (each["statement"] for name, each in documents.items() if "batch" not in name)
    actions = {action for statement in reader if statement["effect"] == "Allow" for action in statement["actions"]}
    assert ("kinesis:GetRecords" in actions) is (polling is not False)
    assert ("kinesis:SubscribeToShard" in actions) is bool(consumers)


def test_contradicting_arguments_are_refused(tmp_path: Path) -> None:
    _, made = stack(tmp_path)
    orders = Stream(made, "orders", name="orders")
    consumer = StreamConsumer(made, "consumer", stream=orders, name="lake")
    with pytest.raises(ArgumentError, match="polling must be True, False or 'only'; got 'always'"):
        StreamingApplication(made, "a", name="a", streams={"orders": orders}, polling="always")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="polling='only' reads without consumers; got one for 'orders': give its"):
        StreamingApplication(made, "b", name="b", streams={"orders": consumer}, polling="only")


def test_record_distribution_strategy_is_refused(tmp_path: Path) -> None:
    _, made = stack(tmp_path)
    with pytest.raises(ArgumentError) as refused:
        Stream(made, "a", name="orders", record_distribution_strategy="AUTO")
    assert "Stream 'a': record_distribution_strategy of 'orders' is known to no AWS provider" in str(refused.value)
    assert "got 'AUTO': leave it out" in str(refused.value)


def test_warm_throughput_needs_a_newer_provider(tmp_path: Path) -> None:
    _, made = stack(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"Stream 'a': warm_throughput_mib of 'orders' is not known to the AWS prov"
    ):
        Stream(made, "a", name="orders", warm_throughput_mib=100)
    with pytest.raises(
        ArgumentError, match="warm_throughput_mib goes with on-demand; got 4 shards: leave one of them out"
    ):
        Stream(made, "b", name="orders", warm_throughput_mib=100, shards=4)
    with pytest.raises(ArgumentError, match="warm_throughput_mib must be a whole number from 1 to 10240; got 0"):
        Stream(made, "c", name="orders", warm_throughput_mib=0)
