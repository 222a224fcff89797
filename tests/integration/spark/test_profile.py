"""The benchmark `profile` on a query that runs for a second: every stretch of a micro-batch is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.profile import OURS, RATE, profile
from benchmarks.spark_processes import PLANNER
from kinesis_efo_local import LocalAws


@pytest.mark.spark43
@pytest.mark.long
def test_a_profile_measures_every_part_of_both_queries(
    spark: SparkSession, local_aws: LocalAws, tmp_path: Path
) -> None:
    figures = {
        (figure.case, figure.what): figure
        for figure in profile(spark, local_aws, tmp_path, turns=1, warm_up=0.0, seconds=1.0)
    }
    for source in (RATE, OURS):
        for what in ("Spark: addBatch", "Spark: walCommit", "CPU: JVM", "CPU: all", "memory: JVM", "rows in each"):
            assert figures[source, what].runs[0] > 0, (source, what)
    for what in (
        "planner: latestOffset", "planner: partitions", "worker: receiving", "worker: decoding",
        "worker: handing rows over", f"CPU: {PLANNER}", "memory: workers",
    ):  # fmt: skip
        assert figures[OURS, what].runs[0] > 0, what
        assert (RATE, what) not in figures or what.startswith(("CPU", "memory"))
    # A worker may have had nothing to collect in a second.
    assert (OURS, "worker: garbage collection") in figures
    assert figures[OURS, "Spark: addBatch"].ratios
    # What the parts of the source take lies inside of what Spark waited for.
    assert figures[OURS, "planner: partitions"].runs[0] < figures[OURS, "Spark: triggerExecution"].runs[0]
