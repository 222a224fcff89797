"""Writes to Kinesis with bounded outstanding data and back-pressure; only acknowledged records count as written."""

from kinesis_efo.producer.blocking import BlockingProducer
from kinesis_efo.producer.metrics import ProducerMetrics
from kinesis_efo.producer.producer import Producer
from kinesis_efo.producer.record import PutArguments
from kinesis_efo.producer.settings import ProducerSettings

__all__ = [
    "BlockingProducer",
    "Producer",
    "ProducerMetrics",
    "ProducerSettings",
    "PutArguments",
]
