"""The options of a query, and the settings into which they are parsed."""

from kinesis_efo.options.readers import Bounds
from kinesis_efo.options.settings import AwsSettings, Deaggregation, RetrySettings, Start
from kinesis_efo.options.source import SOURCE_OPTIONS, BatchOptions, SourceOptions, are_for_batch

__all__ = [
    "SOURCE_OPTIONS",
    "AwsSettings",
    "BatchOptions",
    "Bounds",
    "Deaggregation",
    "RetrySettings",
    "SourceOptions",
    "Start",
    "are_for_batch",
]
