"""Hides the differences between the supported Spark versions, 4.0 to 4.3.

Python data sources support read limits and `Trigger.AvailableNow` since Spark 4.2 (`pyspark.sql.streaming.datasource`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamReader

SPARK_VERSION: tuple[int, int] = tuple(int(part) for part in pyspark.__version__.split(".")[:2])  # type: ignore[assignment]
"""Major and minor version of the installed PySpark."""

if TYPE_CHECKING or SPARK_VERSION < (4, 2):
    StreamReaderBase = DataSourceStreamReader

    class ReadAllAvailable:
        """A placeholder for PySpark's class `ReadAllAvailable`, in Spark versions that do not have it."""

else:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class StreamReaderBase(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """A stream reader that supports `Trigger.AvailableNow`."""


def read_limit(max_bytes: int, max_records: int | None) -> Any:
    """Return the read limit that Spark 4.2+ passes to `latestOffset`: `max_records` if given, else `max_bytes`. Spark allows only one.

    Never returns `ReadAllAvailable`, by which the reader recognizes `Trigger.Once`.
    """
    from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

    return ReadMaxBytes(max_bytes) if max_records is None else ReadMaxRows(max_records)


def in_pipeline() -> bool:
    """Whether code of a Declarative Pipeline (Spark 4.1+) is running. Such code must not register data sources.

    A pipeline function that registers a data source fails. If an imported module does so, the pipeline fails after its rows are written.
    """
    # Only a process that runs a pipeline has imported this PySpark module.
    registry = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if (active := getattr(registry, "get_active_graph_element_registry", None)) is None:
        return False
    try:
        active()
    except PySparkException:
        return False
    return True
