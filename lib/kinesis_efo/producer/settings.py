"""How a producer behaves: one object, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kinesis_efo.errors import OptionsError

MAX_REQUEST_RECORDS = 500
"""Records in one PutRecords request (PutRecords API reference)."""

MAX_REQUEST_BYTES = 10 << 20
"""Bytes in one PutRecords request, partition keys counted (PutRecords API reference)."""

MAX_RECORD_BYTES = 10 << 20
"""The largest record any stream can be set to take, its partition key counted (MaxRecordSizeInKiB)."""

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
"""Least and most of each number in `ProducerSettings`, both allowed, and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What may be outstanding, how requests are cut, and how patiently they are repeated.

    Attributes:
        max_outstanding_records: Records put and not acknowledged yet; `put` waits beyond.
        max_outstanding_bytes: The same in bytes of data and partition keys. At least twice the stream's largest record.
        linger: Seconds a record waits for others to fill its request. Not waited out while `put` or `flush` waits.
        max_in_flight: Requests under way at a time.
        ordered: Keep the order of records with the same partition key, also when some are refused and repeated. One request
            at a time per shard, and one record per key in it; with `aggregate` one aggregate, of any number of keys.
        aggregate: Pack small records of one shard into KPL aggregates. Readers must take them apart.
        aggregate_bytes: An aggregate grows to this many bytes at most. 50 KiB is KPL's own default.
        fail_on_error: A record that can never be written fails the producer; else it is logged, counted and left out.
            Faults that concern the whole stream fail it either way.
        backoff_base: First backoff in seconds; the wait is random between 0 and it (full jitter) and doubles from there.
        backoff_max: Longest backoff, seconds.
        retry_timeout: Seconds without any progress on a failing shard after which the producer fails. Nothing is ever
            dropped for its age: this ends in an error.
        stall_warning: Seconds without any acknowledgement, while somebody waits, after which a warning is logged (once).

    Raises:
        OptionsError: A value is out of bounds; all of them are named.

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
