"""Read Amazon Kinesis with Enhanced Fan-Out from PySpark; streams, consumers and leases are declared as code.

The names in this module and in `kinesis_efo.errors` are public; other modules are internal (docs/versioning.md). Names that need PySpark
or the AWS SDK are imported on first use, so that producers and tools work without Spark, and `import kinesis_efo` is fast.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kinesis_efo import errors
from kinesis_efo.errors import (
    AccessRefusedError,
    AlreadyRunningError,
    ConfigurationError,
    ConsumerNotFoundError,
    ConsumerTakenOverError,
    DataLossError,
    FetcherError,
    InvalidRequestError,
    KeyUnusableError,
    KinesisEfoError,
    LeaseError,
    LeaseLostError,
    LeaseTableError,
    ManifestError,
    OptionsError,
    ProducerClosedError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamError,
    StreamNotFoundError,
    StreamReplacedError,
    SubscriptionError,
    TableUnavailableError,
    WriteError,
)

if TYPE_CHECKING:
    from kinesis_efo.driver.columns import from_json, position, write_once
    from kinesis_efo.driver.facade import keep_alive, read, read_stream, register
    from kinesis_efo.driver.graceful import stop_signals, wait_for_stop
    from kinesis_efo.driver.job import job
    from kinesis_efo.driver.listener import BatchProgress, LagListener, progress
    from kinesis_efo.driver.reason import cause
    from kinesis_efo.driver.tuning import LowLatency, low_latency
    from kinesis_efo.metrics import MetricsSettings
    from kinesis_efo.options import AwsSettings
    from kinesis_efo.options.keywords import BatchKeywords, SinkKeywords, StreamKeywords
    from kinesis_efo.positions import ShardKey
    from kinesis_efo.producer import AsyncProducer, Producer, ProducerMetrics, ProducerSettings, Written
    from kinesis_efo.spark.source import SCHEMA

__version__ = "0.2.0"
__all__ = [
    "SCHEMA",
    "AccessRefusedError",
    "AlreadyRunningError",
    "AsyncProducer",
    "AwsSettings",
    "BatchKeywords",
    "BatchProgress",
    "ConfigurationError",
    "ConsumerNotFoundError",
    "ConsumerTakenOverError",
    "DataLossError",
    "FetcherError",
    "InvalidRequestError",
    "KeyUnusableError",
    "KinesisEfoError",
    "LagListener",
    "LeaseError",
    "LeaseLostError",
    "LeaseTableError",
    "LowLatency",
    "ManifestError",
    "MetricsSettings",
    "OptionsError",
    "Producer",
    "ProducerClosedError",
    "ProducerMetrics",
    "ProducerSettings",
    "RecordRefusedError",
    "RetriesExhaustedError",
    "ShardKey",
    "SinkKeywords",
    "StreamError",
    "StreamKeywords",
    "StreamNotFoundError",
    "StreamReplacedError",
    "SubscriptionError",
    "TableUnavailableError",
    "WriteError",
    "Written",
    "__version__",
    "cause",
    "from_json",
    "job",
    "keep_alive",
    "low_latency",
    "position",
    "progress",
    "read",
    "read_stream",
    "register",
    "stop_signals",
    "wait_for_stop",
    "write_once",
]

_NAMES: Final = {
    "driver.columns": "from_json position write_once",
    "driver.facade": "keep_alive read read_stream register",
    "driver.graceful": "wait_for_stop stop_signals",
    "driver.job": "job",
    "driver.listener": "BatchProgress LagListener progress",
    "driver.reason": "cause",
    "driver.tuning": "LowLatency low_latency",
    "metrics": "MetricsSettings",
    "options": "AwsSettings",
    "options.keywords": "BatchKeywords SinkKeywords StreamKeywords",
    "positions": "ShardKey",
    "producer": "AsyncProducer Producer ProducerMetrics ProducerSettings Written",
    "spark.source": "SCHEMA",
}
"""The public names that are imported on first use, by module."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

_FORMER: Final = {"BlockingProducer": "Producer", "await_stop": "wait_for_stop"}
"""Deprecated names, mapped to their new names. They keep working for one minor version."""


def __getattr__(name: str) -> Any:
    if name.endswith("Error") and hasattr(errors, name):
        warnings.warn(f"kinesis_efo.{name} is now kinesis_efo.errors.{name}", DeprecationWarning, stacklevel=2)
        return getattr(errors, name)
    if name in _FORMER:
        warnings.warn(f"kinesis_efo.{name} is now kinesis_efo.{_FORMER[name]}", DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"kinesis_efo.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
