"""Queries by ARN alone: several streams, without a manifest and without a lease table, and what shows them on their host."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli.lag import lag
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_until


@pytest.mark.parametrize(
    "polls",
    [
        pytest.param(False, marks=pytest.mark.spark40, id="efo"),
        pytest.param(True, marks=pytest.mark.spark43, id="polling"),
    ],
)
def test_streams_are_read_by_arn_without_table(
    spark: SparkSession, world: Callable[..., World], queries: Queries, *, polls: bool
) -> None:
    w = world({"orders": 2, "clicks": 1})
    consumers = list(w.consumers.values())
    streams = ",".join(arn.partition("/consumer/")[0] for arn in consumers)
    by = {"readMode": "polling"} if polls else {"consumerArn": ",".join(reversed(consumers))}
    rows: Counter[tuple[str, bytes]] = Counter()
    aws = AwsSettings(endpoint_url=w.aws.endpoint_url)

    def start() -> Any:
        df = kinesis_efo.read_stream(
            spark, streamArn=streams, endpointUrl=w.aws.endpoint_url, startingPosition="TRIM_HORIZON", **by
        )
        return queries.start(df, collect)

    def collect(df: DataFrame, _: int) -> None:
        rows.update((row.stream, bytes(row.data)) for row in df.collect())

    def put(first: int) -> None:
        for name in w.streams:
            w.put(((f"k{n}", b"%d" % n) for n in range(first, first + 50)), name)

    put(0)
    query = start()
    wait_until(lambda: rows.total() == 100, 120)
    shown = lag(streams if polls else ",".join(consumers), aws=aws)
    assert {shard["state"] for shard in shown["shards"]} == {"reading"}
    query.stop()
    put(50)
    start()
    wait_until(lambda: len(rows) == 200, 120)
    assert set(rows.values()) == {1}
    assert w.leases() == {}
