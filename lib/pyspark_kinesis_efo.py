"""Registers the data source: Spark looks for a class `DefaultSource` in all modules whose names begin with `pyspark_`."""

from kinesis_efo.spark.source import KinesisEfoSource as DefaultSource

__all__ = ["DefaultSource"]
