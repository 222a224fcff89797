"""Streams whose records Kinesis distributes itself (`RecordDistributionStrategy=AUTO`), as AWS documents them."""

from typing import Any

import pytest

from tests.support.raw_kinesis import RawKinesis
from tests.support.world import stored_records, wait_until

from .conftest import refused, summary

ON_DEMAND = {"StreamMode": "ON_DEMAND"}


@pytest.fixture
def kinesis(run: Any) -> Any:
    return RawKinesis(run().aws)


def arn_of(kinesis: Any, name: str = "orders") -> str:
    return str(summary(kinesis, name)["StreamARN"])


def auto(kinesis: Any, name: str = "orders") -> None:
    kinesis.create_stream(StreamName=name, StreamModeDetails=ON_DEMAND, RecordDistributionStrategy="AUTO")


def test_changed_strategy_applies_to_later_records(kinesis: Any) -> None:
    kinesis.create_stream(StreamName="orders", StreamModeDetails=ON_DEMAND)
    arn = arn_of(kinesis)

    def shards() -> int:
        entries = [{"Data": b"x", "PartitionKey": "one"}] * 40
        return len({each["ShardId"] for each in kinesis.put_records(StreamARN=arn, Records=entries)["Records"]})

    assert (summary(kinesis)["RecordDistributionStrategy"], shards()) == ("USER_PARTITION_KEY", 1)
    kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="AUTO")
    assert (summary(kinesis)["RecordDistributionStrategy"], shards()) == ("AUTO", 4)
    kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="USER_PARTITION_KEY")
    assert (summary(kinesis)["RecordDistributionStrategy"], shards()) == ("USER_PARTITION_KEY", 1)
    assert summary(kinesis)["StreamStatus"] == "ACTIVE"


def test_only_streams_on_demand_have_a_strategy(kinesis: Any) -> None:
    with refused("InvalidArgumentException", "ON_DEMAND"):
        kinesis.create_stream(StreamName="orders", ShardCount=1, RecordDistributionStrategy="AUTO")
    kinesis.create_stream(StreamName="orders", ShardCount=1)
    assert "RecordDistributionStrategy" not in summary(kinesis)
    with refused("InvalidArgumentException", "PROVISIONED"):
        kinesis.update_stream_record_distribution_strategy(StreamARN=arn_of(kinesis), RecordDistributionStrategy="AUTO")


def test_options_of_the_other_strategy_are_refused(kinesis: Any) -> None:
    auto(kinesis)
    with refused("InvalidArgumentException", "SequenceNumberForOrdering"):
        kinesis.put_record(StreamName="orders", Data=b"x", PartitionKey="k", SequenceNumberForOrdering="1")
    kinesis.create_stream(StreamName="keyed", ShardCount=1)
    number = kinesis.put_record(StreamName="keyed", Data=b"x", PartitionKey="k")["SequenceNumber"]
    kinesis.put_record(StreamName="keyed", Data=b"x", PartitionKey="k", SequenceNumberForOrdering=number)
    with refused("ValidationException", "partitionKey"):
        kinesis.put_record(StreamName="keyed", Data=b"x")
    with refused("ValidationException"):
        kinesis.put_records(StreamName="keyed", Records=[{"Data": b"1", "PartitionKey": "k"}, {"Data": b"2"}])
    assert len(stored_records(kinesis, "keyed")) == 2


def test_queues_count_as_consumers_of_on_demand_streams(kinesis: Any) -> None:
    auto(kinesis)
    kinesis.create_stream(StreamName="keyed", ShardCount=1)

    def queue(name: str, stream: str = "orders") -> dict[str, Any]:
        made: dict[str, Any] = kinesis.create_queue(
            QueueName=name, StreamConfigurationList=[{"StreamARN": arn_of(kinesis, stream)}]
        )["QueueDescription"]
        return made

    with refused("InvalidArgumentException", "keyed is PROVISIONED"):
        queue("a", "keyed")
    first, _ = queue("a"), queue("b")
    assert first["QueueARN"].endswith(":queue/a")
    with refused("ResourceInUseException"):
        queue("a")
    # The account settings show On-demand Advantage: 50 for an on-demand stream.
    stream = arn_of(kinesis)
    for number in range(48):
        made = kinesis.register_stream_consumer(StreamARN=stream, ConsumerName=f"c{number}")["Consumer"]["ConsumerARN"]
        wait_until(lambda made=made: consumer_status(kinesis, made) == "ACTIVE")
    with refused("LimitExceededException", "already has 50 registered"):
        kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="more")
    with refused("LimitExceededException"):
        queue("c")
    assert (summary(kinesis)["ConsumerCount"], summary(kinesis)["QueueCount"]) == (48, 2)
    kinesis.delete_queue(QueueARN=first["QueueARN"])
    with refused("ResourceNotFoundException"):
        kinesis.delete_queue(QueueARN=first["QueueARN"])
    queue("c")


def consumer_status(kinesis: Any, arn: str) -> str:
    return str(kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])


def test_warm_throughput_is_reached_after_an_update(run: Any) -> None:
    kinesis = RawKinesis(run(reshard_seconds=0.2).aws)
    assert kinesis.describe_account_settings()["MinimumThroughputBillingCommitment"] == {"Status": "ENABLED"}
    kinesis.create_stream(StreamName="orders", StreamModeDetails=ON_DEMAND, WarmThroughputMiBps=100)
    arn = arn_of(kinesis)
    assert summary(kinesis)["WarmThroughput"] == {"TargetMiBps": 100, "CurrentMiBps": 100}
    under_way = {"TargetMiBps": 300, "CurrentMiBps": 100}
    answer = kinesis.update_stream_warm_throughput(StreamARN=arn, WarmThroughputMiBps=300)
    assert (answer["StreamName"], answer["WarmThroughput"]) == ("orders", under_way)
    assert (summary(kinesis)["StreamStatus"], summary(kinesis)["WarmThroughput"]) == ("UPDATING", under_way)
    wait_until(lambda: summary(kinesis)["StreamStatus"] == "ACTIVE")
    assert summary(kinesis)["WarmThroughput"] == {"TargetMiBps": 300, "CurrentMiBps": 300}
    kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "PROVISIONED"})
    assert "WarmThroughput" not in summary(kinesis)
    with refused("InvalidArgumentException"):
        kinesis.update_stream_warm_throughput(StreamARN=arn, WarmThroughputMiBps=1)
    with refused("InvalidArgumentException"):
        kinesis.create_stream(StreamName="other", ShardCount=1, WarmThroughputMiBps=1)
    kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails=ON_DEMAND, WarmThroughputMiBps=50)
    assert summary(kinesis)["WarmThroughput"] == {"TargetMiBps": 50, "CurrentMiBps": 50}
