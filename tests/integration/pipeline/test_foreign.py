"""Consumers that nobody declared are drift, against local AWS."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from infra.settings.model import Environment
from kinesis_efo_infra.pipeline.foreign import beyond_quota, foreign_consumers
from kinesis_efo_infra.pipeline.report import foreign_section
from kinesis_efo_local import LocalAws, Settings
from tests.support.raw_kinesis import RawKinesis
from tests.unit.infra.conftest import load, write

__all__ = ["load", "write"]  # fixtures

ACCOUNT = "123456789012"  # of the local AWS
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/test-orders"
ON_DEMAND = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
Load = Callable[..., Environment]


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(region="eu-west-1", consumer_creating_seconds=0)) as local:
        local.client("kinesis").create_stream(StreamName="test-orders", ShardCount=1)
        local.client("kinesis").create_stream(StreamName="clicks", StreamModeDetails={"StreamMode": "ON_DEMAND"})
        for name in ("test-orders", "clicks"):
            local.client("kinesis").get_waiter("stream_exists").wait(StreamName=name)
        for name in ("lake", "flink", "expected", "other"):
            local.client("kinesis").register_stream_consumer(StreamARN=ARN, ConsumerName=name)
        yield local


def denied(*_: Any, **__: Any) -> Any:
    answer: Any = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
    raise ClientError(answer, "ListStreamConsumers")


def names(found: Any) -> list[str]:
    return [each.consumer.split("/")[3].partition(":")[0] for each in found]


def test_undeclared_consumers_of_own_streams_are_found(aws: LocalAws, load: Load) -> None:
    environment = load(account_id=ACCOUNT, streams={"orders": {"other_consumers": ["expected"]}, "gone": {}})
    (flink, other) = foreign_consumers(aws.client("kinesis"), deployment_of(environment))
    assert names([flink, other]) == ["flink", "other"]
    assert (flink.stream, flink.count) == ("test-orders", 4)
    # 730 hours of one shard, at the price of us-east-1.
    assert flink.usd == pytest.approx(10.95)
    assert flink.consumer.startswith(f"{ARN}/consumer/flink:")


def test_consumers_of_other_environments_are_not_foreign(aws: LocalAws, load: Load) -> None:
    environment = load(account_id=ACCOUNT)
    neighbour = load(
        environment="other",
        account_id=ACCOUNT,
        streams={"orders": {"existing_arn": ARN}},
        applications={"flink": {"streams": ["orders"]}, "other": {"streams": ["orders"]}},
    )
    assert names(foreign_consumers(aws.client("kinesis"), deployment_of(environment, [neighbour]))) == ["expected"]
    assert foreign_consumers(aws.client("kinesis"), deployment_of(neighbour)) == [], "the stream of somebody else"


def planned(*consumers: tuple[str | None, str]) -> Any:
    """A plan that registers or removes consumers of streams, and what it says of streams whose ARN only AWS knows yet."""
    kind = "aws_kinesis_stream_consumer"
    changes = [
        {"address": f"{kind}.x[{number}]", "type": kind, "change": {"actions": [action], "before": each, "after": each}}
        for number, (arn, action) in enumerate(consumers)
        for each in [{"stream_arn": arn}]
    ]
    refers = {"stream_arn": {"references": ["aws_kinesis_stream.new.arn", "aws_kinesis_stream.new"]}}
    resources = [{"address": f"{kind}.x", "expressions": refers}]
    return {"resource_changes": changes, "configuration": {"root_module": {"resources": resources}}}


def test_too_many_consumers_are_refused_before_registering(
    aws: LocalAws, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis, deployment = aws.client("kinesis"), deployment_of(load(account_id=ACCOUNT))
    sixteen = [(ARN, "create")] * 16  # beside four
    assert beyond_quota(kinesis, deployment, planned(*sixteen)) == []
    (refused,) = beyond_quota(kinesis, deployment, planned(*sixteen, (ARN, "create")))
    assert refused.startswith(
        f"{ARN}: has 4 consumers; this plan registers 17 and removes 0, and AWS allows 20: it would fail"
    )
    assert beyond_quota(kinesis, deployment, planned(*sixteen, (ARN, "create"), (ARN, "delete"))) == []
    advantage = replace(deployment, on_demand_advantage=True)
    (refused,) = beyond_quota(kinesis, advantage, planned(*sixteen, *sixteen))
    assert "AWS allows 20" in refused, "it is provisioned"
    assert beyond_quota(kinesis, advantage, planned(*[(ON_DEMAND, "create")] * 50)) == []
    (refused,) = beyond_quota(kinesis, advantage, planned(*[(ON_DEMAND, "create")] * 51))
    assert "AWS allows 50" in refused
    new = [(None, "create")] * 20
    assert beyond_quota(kinesis, deployment, planned(*new, *sixteen)) == []
    (refused,) = beyond_quota(kinesis, deployment, planned(*new, (None, "create")))
    assert refused.startswith("aws_kinesis_stream.new.arn: has 0 consumers; this plan registers 21")

    monkeypatch.setattr(kinesis, "get_paginator", denied)
    assert beyond_quota(kinesis, deployment, planned(*sixteen, (ARN, "create"))) == [], (
        "what is not known refuses nothing"
    )


def test_queues_count_as_consumers(aws: LocalAws, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    kinesis, deployment = aws.client("kinesis"), deployment_of(load(account_id=ACCOUNT))
    nineteen = planned(*[(ON_DEMAND, "create")] * 19)
    assert beyond_quota(kinesis, deployment, nineteen) == []
    (warning,) = caplog.messages
    assert "19 of 20 consumers; a queue counts as a consumer, and this version of boto3 does not show queues" in warning
    assert beyond_quota(kinesis, deployment, planned(*[(ARN, "create")] * 16)) == [], (
        "a provisioned stream has no queues"
    )
    raw = RawKinesis(aws)
    queues = [raw.create_queue(QueueName=each, StreamConfigurationList=[{"StreamARN": ON_DEMAND}]) for each in "ab"]
    newer = SimpleNamespace(describe_stream_summary=raw.describe_stream_summary, get_paginator=kinesis.get_paginator)
    (refused,) = beyond_quota(newer, deployment, nineteen)
    assert refused.startswith(
        f"{ON_DEMAND}: has 0 consumers and 2 queues, which count as consumers; this plan registers 19 and"
    )
    assert beyond_quota(newer, deployment, planned(*[(ON_DEMAND, "create")] * 18)) == []
    for each in queues:
        raw.delete_queue(QueueARN=each["QueueDescription"]["QueueARN"])
    assert beyond_quota(newer, deployment, nineteen) == []
    assert len(caplog.messages) == 1


def test_missing_permission_is_named(aws: LocalAws, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis, deployment = aws.client("kinesis"), deployment_of(load(account_id=ACCOUNT))
    monkeypatch.setattr(kinesis, "get_paginator", denied)
    needed = f"the consumers of {ARN} cannot be listed: .* needs kinesis:ListStreamConsumers"
    with pytest.raises(PipelineError, match=needed):
        foreign_consumers(kinesis, deployment)


def test_consumer_of_an_on_demand_stream_costs_no_hours(aws: LocalAws, load: Load) -> None:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="test-clicks", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    kinesis.get_waiter("stream_exists").wait(StreamName="test-clicks", WaiterConfig={"Delay": 1})
    arn = ARN.replace("orders", "clicks")
    kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="flink")
    environment = load(account_id=ACCOUNT, streams={"clicks": {}}, applications={"lake": {"streams": ["clicks"]}})
    (flink,) = foreign_consumers(kinesis, deployment_of(environment))
    assert flink.usd == 0
    told = "\n".join(
        foreign_section([flink, replace(flink, usd=None), replace(flink, usd=21.9)], deployment_of(environment))
    )
    assert f"Prices of {environment.region} are not known here; these are those of us-east-1" in told
    assert "no deployment undoes: 21.90 USD a month for hours." in told
    assert "| 1 of 20 | 0.00 |" in told
    assert "| 1 of 20 | not known |" in told
