"""Writes to Kinesis with bounded outstanding data and back-pressure; only acknowledged records count as written."""

from kinesis_efo.producer.blocking import Producer
from kinesis_efo.producer.metrics import ProducerMetrics
from kinesis_efo.producer.producer import AsyncProducer
from kinesis_efo.producer.record import PutArguments, Written
from kinesis_efo.producer.settings import ProducerSettings

__all__ = [
    "AsyncProducer",
    "Producer",
    "ProducerMetrics",
    "ProducerSettings",
    "PutArguments",
    "Written",
]
