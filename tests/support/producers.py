"""Producers with a service, a clock and random numbers of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

from kinesis_efo.producer import AsyncProducer, Producer, ProducerSettings
from kinesis_efo.producer.service import KinesisService
from tests.support.virtual_time import LoopClock
from tests.support.write_model import ModelService, ModelStream, even_shards

P = TypeVar("P", Producer, AsyncProducer)


def with_parts(producer: P, **parts: Any) -> P:
    """Replace parts of a producer that is not open yet: `connect`, `clock` and `random`."""
    inner = producer._producer if isinstance(producer, Producer) else producer
    for name, part in parts.items():
        assert hasattr(inner, f"_{name}")
        setattr(inner, f"_{name}", part)
    return producer


class Opened:
    """Connects a producer to the model, and records whether the connection was closed."""

    def __init__(self, stream: ModelStream | None = None, service: ModelService | None = None) -> None:
        self.service = service or ModelService(stream or ModelStream(even_shards(1)))
        self.stream = self.service.stream
        self.closed = False

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[KinesisService]:
        self.loop = asyncio.get_running_loop()
        try:
            yield self.service
        finally:
            self.closed = True

    @property
    def stored(self) -> list[bytes]:
        return [record.data for record in self.stream.seen]


def made(opened: Opened, name: str = "orders", **settings: Any) -> AsyncProducer:
    """A producer in virtual time, which is not open."""
    producer = AsyncProducer(name, settings=ProducerSettings(**settings))
    return with_parts(producer, connect=opened, clock=LoopClock(), random=Random(1))
