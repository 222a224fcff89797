"""Writes to Kinesis: bounds outstanding data, applies back-pressure, and reports as written only what Kinesis acknowledged."""

from kinesis_efo.producer.blocking import BlockingProducer
from kinesis_efo.producer.metrics import ProducerMetrics
from kinesis_efo.producer.producer import Producer
from kinesis_efo.producer.record import Given
from kinesis_efo.producer.settings import ProducerSettings

__all__ = [
    "BlockingProducer",
    "Given",
    "Producer",
    "ProducerMetrics",
    "ProducerSettings",
]
