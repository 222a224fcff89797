"""Defines the settings of a producer, and validates them when they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kinesis_efo.errors import OptionsError

MAX_REQUEST_RECORDS = 500
"""Maximum records in one PutRecords request (PutRecords API reference)."""

MAX_REQUEST_BYTES = 10 << 20
"""Maximum bytes in one PutRecords request, including partition keys (PutRecords API reference)."""

BOUNDS: Final[Mapping[str, tuple[float, float, str]]] = {
    "max_outstanding_records": (1, 10**8, "records"),
    "max_outstanding_bytes": (1 << 10, 1 << 40, "bytes"),
    "linger": (0, 60, "seconds"),
    "max_in_flight": (1, 256, "requests"),
    "aggregate_bytes": (1 << 10, 1 << 20, "bytes"),
    "backoff_base": (0.001, 60, "seconds"),
    "backoff_max": (0.001, 600, "seconds"),
    "retry_timeout": (0.1, 86_400, "seconds"),
    "stall_warning": (0.1, 86_400, "seconds"),
}
"""The inclusive minimum and maximum, and the unit, of each numeric field of `ProducerSettings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Bounds on outstanding records, and how requests are filled, ordered and retried.

    Attributes:
        max_outstanding_records: Maximum number of unacknowledged records. At this number, `put` waits.
        max_outstanding_bytes: Maximum bytes of data and partition keys of unacknowledged records. A larger record is refused.
        linger: Seconds that a record waits for other records to fill its request. It does not wait while a `put` or `flush` waits.
        max_in_flight: Maximum number of requests in flight at a time.
        ordered: Write records with the same partition key in order, even if some are retried. Each shard then has one request in flight at
            a time. It has one record per key or, with `aggregate`, one aggregate of any keys.
        aggregate: Pack small records of one shard into KPL aggregates, which readers must unpack.
        aggregate_bytes: Maximum size of an aggregate. The KPL's default is also 50 KiB.
        fail_on_error: Whether a record that can never be written fails the producer. If not, the record is logged, counted and skipped.
            Errors of the whole stream always fail the producer.
        backoff_base: First backoff in seconds. It doubles with each failure. The wait is a random part of it (full jitter).
        backoff_max: Maximum backoff in seconds.
        retry_timeout: Seconds for which every attempt for a shard may fail before the producer fails, whatever `fail_on_error` is.
        stall_warning: Seconds without any acknowledgement, while a caller waits, after which one warning is logged.

    Raises:
        OptionsError: A value is out of bounds; the message names all such values.

    >>> ProducerSettings(linger=-1, max_in_flight=0)
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.OptionsError: producer setting 'linger' must be from 0 to 60 (seconds); got -1
    producer setting 'max_in_flight' must be from 1 to 256 (requests); got 0
    """

    max_outstanding_records: int = 20_000
    max_outstanding_bytes: int = 64 << 20
    linger: float = 0.1
    max_in_flight: int = 8
    ordered: bool = False
    aggregate: bool = False
    aggregate_bytes: int = 50 << 10
    fail_on_error: bool = True
    backoff_base: float = 0.1
    backoff_max: float = 2.0
    retry_timeout: float = 300.0
    stall_warning: float = 30.0

    def __post_init__(self) -> None:
        faults = [
            f"producer setting '{name}' must be from {least:g} to {most:g} ({unit}); got {value!r}"
            for name, (least, most, unit) in BOUNDS.items()
            if isinstance(value := getattr(self, name), bool)
            or not isinstance(value, int | float)
            or not least <= value <= most
        ]
        if not faults and self.backoff_base > self.backoff_max:
            faults.append(
                f"producer setting 'backoff_base' ({self.backoff_base:g}) must not exceed 'backoff_max' ({self.backoff_max:g})"
            )
        if faults:
            raise OptionsError(faults)
