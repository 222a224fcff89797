"""Writes to the stream with the library's producer, steadily and with bursts, in a thread."""

import threading
import time
from random import Random
from typing import Self

from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import Producer, ProducerSettings
from tests.soak.oracle import encode

KEYS = 500
BURST_SECONDS = 3.0
BURST_FACTOR = 6.0
TICK = 0.02


class Load:
    """Puts records until it is stopped. A context manager.

    Args:
        stream: Name of the stream.
        aws: Region and endpoint.
        rate: Records per second between bursts.
        random: Determines keys, sizes and bursts.

    Attributes:
        put: Number of records given to the producer.
        bytes: Size of their data, bytes.
        error: The error that ended the thread, or None.
    """

    def __init__(self, stream: str, aws: AwsSettings, rate: float, random: Random) -> None:
        self.put = 0
        self.bytes = 0
        self.error: Exception | None = None
        self._stream = stream
        self._aws = aws
        self._rate = rate
        self._random = random
        self._numbers = [0] * KEYS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Stop, wait until every record is acknowledged, and return the number of records."""
        self._stop.set()
        self._thread.join()
        return self.put

    def _run(self) -> None:
        try:
            with Producer(self._stream, settings=ProducerSettings(ordered=True), aws=self._aws) as producer:
                self._produce(producer)
        except Exception as error:
            self.error = error

    def _produce(self, producer: Producer) -> None:
        burst_at = time.monotonic() + self._random.uniform(5, 20)
        before, owed = time.monotonic(), 0.0
        while not self._stop.wait(TICK):
            now = time.monotonic()
            bursting = burst_at <= now
            if now > burst_at + BURST_SECONDS:
                burst_at = now + self._random.uniform(15, 40)
            # After a pause of this process, at most one second's records are made up for.
            owed += min(now - before, 1.0) * self._rate * (BURST_FACTOR if bursting else 1.0)
            before = now
            for _ in range(int(owed)):
                self._put_one(producer)
            owed -= int(owed)

    def _put_one(self, producer: Producer) -> None:
        key = self._random.randrange(KEYS)
        data = encode(key, self._numbers[key], round(time.time() * 1000), self._random.randrange(40, 800))
        self._numbers[key] += 1
        producer.put(data, f"key-{key}")
        self.put += 1
        self.bytes += len(data)
