"""Read Amazon Kinesis with Enhanced Fan-Out from PySpark; streams, consumers and leases are declared as code.

Names of this module and of `kinesis_efo.errors` are public; other modules are not (docs/versioning.md). Names that need PySpark or the AWS SDK are loaded when they
are first used, so that producers and tools work without Spark, and importing the version costs nothing.
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
    from kinesis_efo.driver.graceful import await_stop, stop_signals
    from kinesis_efo.driver.job import job
    from kinesis_efo.driver.listener import BatchProgress, LagListener, progress
    from kinesis_efo.driver.reason import cause
    from kinesis_efo.driver.tuning import LowLatency, low_latency
    from kinesis_efo.metrics import MetricsSettings
    from kinesis_efo.options import AwsSettings
    from kinesis_efo.positions import ShardKey
    from kinesis_efo.producer import BlockingProducer, Producer, ProducerMetrics, ProducerSettings
    from kinesis_efo.spark.source import SCHEMA

__version__ = "0.2.0"
__all__ = [
    "SCHEMA",
    "AccessRefusedError",
    "AlreadyRunningError",
    "AwsSettings",
    "BatchProgress",
    "BlockingProducer",
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
    "StreamError",
    "StreamNotFoundError",
    "StreamReplacedError",
    "SubscriptionError",
    "TableUnavailableError",
    "WriteError",
    "__version__",
    "await_stop",
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
    "write_once",
]

_HOMES: Final = {
    "AwsSettings": "kinesis_efo.options",
    "BatchProgress": "kinesis_efo.driver.listener",
    "BlockingProducer": "kinesis_efo.producer",
    "LagListener": "kinesis_efo.driver.listener",
    "LowLatency": "kinesis_efo.driver.tuning",
    "MetricsSettings": "kinesis_efo.metrics",
    "Producer": "kinesis_efo.producer",
    "ProducerMetrics": "kinesis_efo.producer",
    "ProducerSettings": "kinesis_efo.producer",
    "SCHEMA": "kinesis_efo.spark.source",
    "ShardKey": "kinesis_efo.positions",
    "await_stop": "kinesis_efo.driver.graceful",
    "cause": "kinesis_efo.driver.reason",
    "from_json": "kinesis_efo.driver.columns",
    "job": "kinesis_efo.driver.job",
    "keep_alive": "kinesis_efo.driver.facade",
    "low_latency": "kinesis_efo.driver.tuning",
    "position": "kinesis_efo.driver.columns",
    "progress": "kinesis_efo.driver.listener",
    "read": "kinesis_efo.driver.facade",
    "read_stream": "kinesis_efo.driver.facade",
    "register": "kinesis_efo.driver.facade",
    "stop_signals": "kinesis_efo.driver.graceful",
    "write_once": "kinesis_efo.driver.columns",
}
"""The module of each name that is loaded when it is first used."""


def __getattr__(name: str) -> Any:
    if name.endswith("Error") and hasattr(errors, name):
        warnings.warn(f"kinesis_efo.{name} is now kinesis_efo.errors.{name}", DeprecationWarning, stacklevel=2)
        return getattr(errors, name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
