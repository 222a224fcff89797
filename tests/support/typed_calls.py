"""Calls as users write them, which nothing runs. mypy must refuse the lines with `# E:`, with that error, and no others."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo import AsyncProducer, AwsSettings, MetricsSettings, Producer, ProducerSettings, read, read_stream


def right(spark: SparkSession, rows: DataFrame, from_file: dict[str, Any]) -> None:
    read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake", streams=["orders"], bufferBytes="512m")
    read_stream(spark, manifest="m.json", streams="orders,payments", name="orders", fetchers=8)
    read_stream(spark, manifest="m.json", fetchers="driver", fetcherPort="40000-40100", awsProfile="dev")
    read_stream(spark, manifest="m.json", since=timedelta(minutes=15), readMode="polling", fetcherPort=40_000)
    read_stream(spark, startingPosition="LATEST", newStreamPosition=datetime.now(UTC), endingPosition=1704067200000)
    read_stream(spark, streamArn="arn", consumerArn="arn", leaseTable="leases", startingTimestamp="2026-11-20T08:00Z")
    read_stream(spark, failOnDataLoss=False, deaggregate="strict", catchUp="true", removedStreams="drop")
    read_stream(spark, deaggregate=False, maxBytesPerTrigger=1 << 26, minBytesPerTrigger="8m", maxTriggerDelay="1s")
    read_stream(spark, maxShardSkew=timedelta(seconds=30), leaseTimeout="10 seconds", retryTimeout=timedelta(minutes=5))
    read_stream(spark, checkpointWritesPerSecond=25, pollTimeout="5s", idleCheckpointInterval="50s", transport="http2")
    read_stream(spark, checkpointWritesPerSecond=0.5 * 50, slowQueries="hold", maxShardRate="2m", metricsShards=0)
    read_stream(spark, metricsExport="emf:stderr:60s", credentialProvider="acme.aws:credentials")
    read_stream(spark, region="eu-west-1", roleArn="arn", externalId="lake", endpointUrl="http://127.0.0.1:4566")
    read_stream(spark, **from_file)
    stream: kinesis_efo.StreamKeywords = {"readMode": "efo", "maxRecordsPerTrigger": 1_000}
    read_stream(spark, manifest="m.json", **stream)
    read(spark, manifest="m.json", since=timedelta(hours=1), until="2026-11-20T09:00Z", maxShardRate="2m")
    read(spark, streamArn="arn", since=datetime.now(UTC), maxShardRate=1 << 21, deaggregate="false")
    batch: kinesis_efo.BatchKeywords = {"startingPosition": "EARLIEST", "failOnDataLoss": "false"}
    read(spark, streams=("orders", "payments"), **batch)
    sink: kinesis_efo.SinkKeywords = {"stream": "orders", "ordered": True, "linger": "50ms"}
    rows.writeStream.format("kinesis-efo").options(**sink).option("checkpointLocation", "c").start()
    rows.write.format("kinesis-efo").mode("append").options(**sink).save()
    sink["failOnError"], sink["maxInFlight"], sink["aggregateBytes"] = "false", 4, 50 << 10
    Producer("orders", settings=ProducerSettings(linger=1, ordered=True), aws=AwsSettings(region="eu-west-1"))
    Producer("orders", metrics=MetricsSettings(export="emf", emf_interval=30)).put("text", explicit_hash_key=5)
    AsyncProducer("orders", session=botocore.session.Session(profile="orders"))
    Producer("orders").put_many([(b"data", "key"), ("data", None), (b"data", "key", 5)])
    kinesis_efo.low_latency(SparkSession.builder.appName("orders"), checkpoint=Path("checkpoint"))
    with kinesis_efo.job(SparkSession.builder.appName("orders"), exit=False) as session:
        kinesis_efo.write_once(session.table("orders"), 5).save("s3://lake/orders")


def wrong(spark: SparkSession, rows: DataFrame, from_file: dict[str, str]) -> None:
    read_stream(spark, readMode=3)  # E: arg-type
    read_stream(spark, readMode="pollling")  # E: arg-type
    read_stream(spark, failOnDataLoss="perhaps")  # E: arg-type
    read_stream(spark, deaggregate="KCL")  # E: arg-type
    read_stream(spark, maxRecordsPerTrigger="many")  # E: arg-type
    read_stream(spark, maxRecordsPerTrigger=1e3)  # E: arg-type
    read_stream(spark, maxBytesPerTrigger=timedelta(seconds=1))  # E: arg-type
    read_stream(spark, leaseTimeout=10)  # E: arg-type
    read_stream(spark, startingPosition=timedelta(minutes=15))  # E: arg-type
    read_stream(spark, checkpointWritesPerSecond="25")  # E: arg-type
    read_stream(spark, fetchers="all")  # E: arg-type
    read_stream(spark, acceptDataLoss={"orders": {"shardId-0": "AFTER:5"}})  # E: arg-type
    read_stream(spark, maxBytesPerTriger="64m")  # E: call-arg
    read_stream(spark, credentialProvider=print)  # E: arg-type
    read_stream(spark, "ssm:///kinesis-efo/dev/lake")  # E: call-arg
    read_stream(spark, streams=3)  # E: arg-type
    read_stream(spark, **from_file)  # E: arg-type
    read_stream(spark, manifest="m.json", since=1704067200000)  # E: arg-type
    read(spark, maxShardRate=1e6)  # E: arg-type
    read(spark, readMode="polling")  # E: call-arg
    read(spark, maxRecordsPerTrigger=5)  # E: call-arg
    stream: kinesis_efo.StreamKeywords = {"catchUp": "soon"}  # E: typeddict-item
    rows.write.options(**kinesis_efo.SinkKeywords(linger=timedelta(seconds=1)))  # E: typeddict-item
    rows.writeStream.options(**stream)  # E: arg-type
    Producer("orders", settings=ProducerSettings(linger="1s"))  # E: arg-type
    Producer("orders", region="eu-west-1")  # E: call-arg
    Producer("orders", session="default")  # E: arg-type
    Producer("orders", metrics=MetricsSettings(export="cloudwatch"))  # E: arg-type
    Producer("orders").put({"order": 5})  # E: arg-type
    kinesis_efo.low_latency("orders", checkpoint="c")  # E: arg-type
