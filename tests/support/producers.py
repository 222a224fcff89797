"""Producers with a service, a clock and random numbers of a test."""

from typing import Any, TypeVar

from kinesis_efo.producer import AsyncProducer, Producer

P = TypeVar("P", Producer, AsyncProducer)


def with_parts(producer: P, **parts: Any) -> P:
    """Replace parts of a producer that is not open yet: `connect`, `clock` and `random`."""
    inner = producer._producer if isinstance(producer, Producer) else producer
    for name, part in parts.items():
        assert hasattr(inner, f"_{name}")
        setattr(inner, f"_{name}", part)
    return producer
