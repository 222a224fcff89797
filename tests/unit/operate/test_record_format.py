"""Records as bytes: nothing of the data is lost, whatever it is."""

import json
import re
from base64 import b64decode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_tools.operate.record_format import Format, RecordFilter, TailRecord, as_json, hexadecimal, raw

DATA = st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(lambda value: json.dumps(value).encode())  # fmt: skip


NUMBER = "49590338271490256608559692538361571095921575989136588898"


def _record(data: bytes, key: str | None = "k", arrived: datetime | None = None) -> TailRecord:
    return TailRecord("shardId-000000000000", NUMBER, 3, key, arrived, data)


@given(DATA)
def test_json_is_one_line_with_all_data(data: bytes) -> None:
    line = as_json(_record(data))
    assert line.count(b"\n") == 1
    found = json.loads(line)
    if "base64" in found:
        assert b64decode(found["base64"]) == data
    elif "text" in found:
        assert found["text"].encode() == data
    else:
        assert found["data"] == json.loads(data)
    assert len({"base64", "text", "data"} & found.keys()) == 1


@pytest.mark.parametrize(
    "data", [b'{"b":1.10,"x":1e400,"a":2,"a":3}', b'{ "n": 12345678901234567890123 }', b'"\\u00e9"']
)
def test_json_is_printed_as_it_came(data: bytes) -> None:
    assert as_json(_record(data)).endswith(b',"data":' + data + b"}\n")
    for refused in (b"NaN", b'{"x": Infinity}', b"[" * 5_000):
        assert json.loads(as_json(_record(refused)))["text"].encode() == refused


@given(st.binary())
def test_dump_has_every_byte(data: bytes) -> None:
    heading, *lines = hexadecimal(_record(data)).decode().splitlines()
    assert heading.endswith(f" {len(data)} bytes")
    assert b"".join(bytes.fromhex(line[10:57]) for line in lines) == data
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_each_format_shows_the_record() -> None:
    record = _record(b"x\n", None, datetime(2026, 1, 2, tzinfo=UTC))
    assert Format.RAW.write(record) == raw(record) == b"x\n\n"
    found = json.loads(Format.JSON.write(record))
    shown = {"arrived": "2026-01-02T00:00:00+00:00", "partitionKey": None, "subSequenceNumber": 3}
    assert shown.items() <= found.items()
    assert Format.HEX.write(record).startswith(b"shardId-000000000000 4959")


def test_filter_selects_by_key_and_data() -> None:
    record = _record(b"amount 42", "user-7")
    keys = (None, "user-*", "USER-*", "user-7")
    assert [RecordFilter(key=key).has(record) for key in keys] == [True, True, False, True]
    parts = (rb"\d\d", rb"\d\d\d", rb"^amount")
    assert [RecordFilter("user-*", re.compile(data)).has(record) for data in parts] == [True, False, True]
    assert not RecordFilter(key="user").has(_record(b"", None))
    assert RecordFilter(key="*").has(_record(b"", None))
