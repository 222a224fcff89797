"""Writes records to Kinesis: limits unacknowledged data with back-pressure, and counts only acknowledged records as written."""

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
