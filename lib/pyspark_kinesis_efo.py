"""Spark scans the modules named `pyspark_*` for a `DefaultSource`; this is ours, and nothing else is in here."""

from kinesis_efo.spark.source import KinesisEfoSource as DefaultSource

__all__ = ["DefaultSource"]
