"""Puts test data into a stream: text, bytes or objects (encoded as JSON), with or without a partition key."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

Value: TypeAlias = "bytes | str | Mapping[str, Any] | list[Any]"
Row: TypeAlias = "Value | tuple[str, Value]"

_MOST_RECORDS: Final = 500
_MOST_BYTES: Final = 9 << 20
_PAUSE_SECONDS: Final = 0.1


def put_rows(kinesis: Any, stream: str, rows: Iterable[Row], patience: float) -> int:
    """Put rows into a stream, and return their number. Retries throttled rows for `patience` seconds. See `LocalAws.put`."""
    count = size = 0
    waiting: list[dict[str, Any]] = []
    for row in rows:
        key, value = row if isinstance(row, tuple) else (str(count), row)
        data = _bytes(value)
        if waiting and (len(waiting) == _MOST_RECORDS or size + len(data) > _MOST_BYTES):
            _put(kinesis, stream, waiting, patience)
            waiting, size = [], 0
        waiting.append({"PartitionKey": key, "Data": data})
        count, size = count + 1, size + len(data) + len(key)
    if waiting:
        _put(kinesis, stream, waiting, patience)
    return count


def _put(kinesis: Any, stream: str, records: list[dict[str, Any]], patience: float) -> None:
    give_up_at = time.monotonic() + patience
    while records:
        results = kinesis.put_records(StreamName=stream, Records=records)["Records"]
        failed = [at for at, result in enumerate(results) if "ErrorCode" in result]
        if not failed:
            return
        if time.monotonic() > give_up_at:
            result = results[failed[0]]
            raise TimeoutError(
                f"{len(failed)} records could not be put into {stream} within {patience:g} s: {result['ErrorCode']}: {result['ErrorMessage']}"
            )
        records = [records[at] for at in failed]
        time.sleep(_PAUSE_SECONDS)


def _bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
