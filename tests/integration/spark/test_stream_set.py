"""Streams that come and go between two runs of a query: nothing is missed in silence, nothing is read twice."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from kinesis_efo.tasks.compat import SPARK_VERSION
from tests.integration.spark.conftest import Queries
from tests.support.world import World


class Kept:
    """A `foreachBatch` function that keeps all rows."""

    __name__ = "kept"

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, str]]] = {}

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = [(row["stream"], bytes(row["data"]).decode()) for row in df.collect()]

    @property
    def all(self) -> list[tuple[str, str]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def put(world: World, stream: str, *names: str) -> list[tuple[str, str]]:
    world.put([(name, name.encode()) for name in names], stream)
    return [(stream, name) for name in names]


@pytest.mark.spark
def test_a_query_that_ends_reads_a_new_stream(world: Callable[..., World], queries: Queries) -> None:
    w, kept = world({"orders": 1, "clicks": 1}), Kept()
    first, second = put(w, "orders", "o1"), put(w, "clicks", "c1", "c2")
    # On Spark 4.0 such a run has one micro-batch, which begins the new stream and reads nothing of it.
    # The runs around the one that begins it poll, which is quicker.
    runs = [
        ({"streams": "orders", "readMode": "polling"}, first),
        ({"streams": "*"}, first + second if SPARK_VERSION >= (4, 2) else first),
        ({"streams": "*", "readMode": "polling"}, first + second),
    ]
    for options, expected in runs:
        if kept.all != sorted(first + second):
            query = queries.start(queries.load(w, catchUp="true", **options), kept, availableNow=True)
            assert query.awaitTermination(120)
        assert kept.all == sorted(expected)
