"""Declaring an application in the local AWS: what is there then, and with which ARNs."""

import json

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_local import LocalApplication, LocalAws, LocalStream, Settings, declare


def test_everything_is_declared_and_the_manifest_names_it() -> None:
    arn = "arn:aws:kinesis:eu-west-1:111122223333:stream/prod-orders"
    kept = f"{arn}/consumer/lake:1700000000"
    elsewhere = "arn:aws-cn:kinesis:cn-north-1:111122223333:stream/visits/consumer/lake:1700000000"
    streams = [
        LocalStream("orders", "prod-orders", 3, kept),
        LocalStream("visits", "visits", 1, elsewhere),
        LocalStream("clicks", "clicks"),
        LocalStream("polled", "polled", polled=True),
    ]
    settings = Settings(region="eu-west-1", account_id="111122223333", stream_creating_seconds=0.05)
    with LocalAws(settings=settings) as aws:
        document = declare(aws, LocalApplication("lake", streams))
        found = parse_manifest(json.dumps(document), "declared")
        assert (found.application, found.environment, found.region) == ("lake", "local", "eu-west-1")
        kinesis = aws.client("kinesis")
        shards = {name: len(kinesis.list_shards(StreamName=name)["Shards"]) for name in found.stream_names.values()}
        assert shards == {"prod-orders": 3, "visits": 1, "clicks": 1, "polled": 1}
        polled = document["streams"]["polled"]
        assert set(polled) == {"streamName", "streamArn"}
        assert kinesis.list_stream_consumers(StreamARN=polled["streamArn"])["Consumers"] == []
        for ref in found.streams.values():
            if ref.polled:
                continue
            described = kinesis.describe_stream_consumer(ConsumerARN=ref.consumer_arn)["ConsumerDescription"]
            assert (described["ConsumerName"], described["ConsumerStatus"]) == ("lake", "ACTIVE")
        # The time is part of the ARN; that of another partition cannot be kept.
        assert found.streams["orders"].consumer_arn == kept
        assert str(found.streams["visits"].consumer_arn).startswith(
            "arn:aws:kinesis:eu-west-1:111122223333:stream/visits/"
        )
        table = aws.client("dynamodb").describe_table(TableName=found.lease_table)["Table"]
        assert found.lease_table == "kinesis-efo-local-lake"
        assert table["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
        # What is there already stays as it is.
        assert declare(aws, LocalApplication("lake", streams)) == document
