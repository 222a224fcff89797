"""Writing to Kinesis: bounded outstanding data, back-pressure, and nothing reported written before Kinesis has it."""

from kinesis_efo.errors import (
    EncryptionKeyError,
    ProducerClosedError,
    RecordRefusedError,
    RetriesGivenUpError,
    StreamGoneError,
    WriteAccessError,
    WriteError,
)
from kinesis_efo.producer.blocking import BlockingProducer
from kinesis_efo.producer.metrics import ProducerMetrics
from kinesis_efo.producer.producer import Producer
from kinesis_efo.producer.record import Given
from kinesis_efo.producer.settings import ProducerSettings

__all__ = [
    "BlockingProducer",
    "EncryptionKeyError",
    "Given",
    "Producer",
    "ProducerClosedError",
    "ProducerMetrics",
    "ProducerSettings",
    "RecordRefusedError",
    "RetriesGivenUpError",
    "StreamGoneError",
    "WriteAccessError",
    "WriteError",
]
