"""What a query with `Trigger.AvailableNow` takes from start to end, in both read modes, with 50 records and with nothing new.

One session, one query after the other, each in a Python process of its own as ever; on Spark 4.0, option `catchUp` is set, as there.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess, spark_session
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import World, make_world

SHARDS: Final = 4
RECORDS: Final = 50
RUNS: Final = 3
APART_SECONDS: Final = 6.0
"""Kinesis allows the next subscription to a shard 5 s after the last one was opened."""
MORE_WITH_RECORDS: Final = 4.0
MORE_WITH_NOTHING: Final = 1.0


def run() -> list[Figure]:
    """Measure."""
    found: dict[tuple[str, str], list[float]] = {}
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session() as spark,
    ):
        for mode in ("polling", "efo"):
            directory = Path(place, mode)
            directory.mkdir()
            world = make_world(aws, directory, {"orders": SHARDS})
            world.put((f"key-{number}", b"warm") for number in range(RECORDS))
            _run(spark, aws, world, mode)
            for _ in range(RUNS):
                for case, records in ((f"{RECORDS} records", RECORDS), ("nothing new", 0)):
                    time.sleep(APART_SECONDS)
                    world.put((f"key-{number}", b"data") for number in range(records))
                    found.setdefault((case, mode), []).append(_run(spark, aws, world, mode, records))
            for _ in range(RUNS):
                seconds = _run(spark, aws, world, mode, 0)
                found.setdefault(("nothing new, right after another", mode), []).append(seconds)
    figures = []
    for (case, mode), runs in found.items():
        goal = None
        if mode == "efo":
            more = MORE_WITH_RECORDS if case.startswith(str(RECORDS)) else MORE_WITH_NOTHING
            polled = sorted(found[case, "polling"])[RUNS // 2]
            goal = None if case.endswith("another") else Goal(round(polled + more, 1), least=False)
        figures.append(Figure(case, mode, "s", tuple(runs), goal=goal))
    return figures


def _run(spark: SparkSession, aws: LocalAws, world: World, mode: str, expected: int | None = None) -> float:
    """Seconds from the start of a query to its end."""
    rows = []

    def take(batch: DataFrame, _: int) -> None:
        rows.append(batch.count())

    options: dict[str, Any] = {"catchUp": True} if spark.version.startswith(("4.0", "4.1")) else {}
    began = time.monotonic()
    query = (
        kinesis_efo.read_stream(
            spark,
            manifest=str(world.manifest),
            endpointUrl=aws.endpoint_url,
            startingPosition="TRIM_HORIZON",
            **{**options, "readMode": mode},
        )
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(world.manifest.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.monotonic() - began
    assert expected is None or sum(rows) == expected, (mode, rows, expected)
    return seconds
