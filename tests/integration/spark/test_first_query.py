"""Queries by ARN alone: several streams, without a manifest and without a lease table, and what shows them on their host."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kinesis_efo
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli.lag import lag
from tests.integration.spark.conftest import Queries, Rows
from tests.support.world import World


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
    rows = Rows()
    aws = AwsSettings(endpoint_url=w.aws.endpoint_url)

    def start() -> Any:
        df = kinesis_efo.read_stream(
            spark, streamArn=streams, endpointUrl=w.aws.endpoint_url, startingPosition="TRIM_HORIZON", **by
        )
        return queries.start(df, rows)

    def put(first: int) -> None:
        for name in w.streams:
            w.put(((f"k{n}", b"%d" % n) for n in range(first, first + 50)), name)

    put(0)
    query = start()
    rows.wait_for(query, 100)
    shown = lag(streams if polls else ",".join(consumers), aws=aws)
    assert {shard["state"] for shard in shown["shards"]} == {"reading"}
    query.stop()
    put(50)
    rows.wait_for(start(), 200)
    seen = Counter((row.stream, bytes(row.data)) for row in rows.all)
    assert (len(seen), set(seen.values())) == (200, {1})
    assert w.leases() == {}
