"""The native core decodes as Python does: the same batches, or the same error in the same words, whatever comes."""

import base64
import importlib
import json
import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.records import core
from kinesis_efo.records.aggregation import MAGIC
from kinesis_efo.records.decoder import Decoder
from tests.support.agreement import CORE, Part, agree, outcome
from tests.support.missing import not_here
from tests.unit.records.test_decoder import aggregate, event, record

KEY = ShardKey("orders", "shardId-000000000003")


@pytest.fixture(scope="module")
def native() -> Any:
    """The core."""
    if CORE.core is None:
        not_here("kinesis-efo-core is missing; make core")
    return importlib.import_module(core.MODULE)


def part(payloads: list[bytes], after: Position = TRIM_HORIZON, through: Position = SHARD_END) -> Part:
    return ShardRange(KEY, after, through), payloads


def by_core(native: Any, payload: bytes, *, aggregates: bool = True) -> tuple[int, int, bool] | None:
    """What the core says of a payload."""
    batch = native.Batch(aggregates)
    assert batch.begin("orders", "s", None, None)
    brought: tuple[int, int, bool] | None = batch.add(payload)
    return brought


ODD_NUMBERS = ["0", "00", "007", "-1", "+5", "1_0", " 7", "", "x", "٤٢", "9" * 200, "9" * 201, "1" * 5000, "1.0"]
ODD_TIMES = [
    "0", "-0", "-1", "1", "1.5", "1.7E9", "1.700000000123E9", "17e+8", "1.7e-3", "6249979066.121302517", "1e22", "1e23", "1e4294967296", "1e18446744073709551617", "1e300", "1e999", "01", "1.", ".5",
    "0.0000005", "0.0000015", "1700000000.1234565", "999999999999999", "9999999999999999", "9007199254.740993", "null", '"now"', "true",
]  # fmt: skip
ODD_DATA = [
    "", "QQ==", "QR==", "QUI=", "QUJ=", "QUJD", "Q", "QQ", "QQ=", "QQ===", "=", "====", "QUJD=", "QU JD", "QUJD\\n", "QU\\/D", "-_-_", "%",
    "é", "QQ==QQ==", "\x01", "84mawg==", base64.b64encode(MAGIC * 9).decode(),
]  # fmt: skip
ODD_VALUES = [
    "null", '"\\ud83D\\udd11\\/\\n\\\\\\""', '"\\ud800x"', '"\\x"', '"\\u00g0"', "true", "nul", "7", "-7", "1e5", "1e999", "1E+2", "99999999999999999999", '"x"', '"\\u00e9"', '"\x01"', "[]", "{}", "[1,[2,[3,[4]]]]",
    '{"a":{"b":[{"c":1}]}}', "[" * 40 + "]" * 40, "[1,]", '{"a":1,}', '{"a" 1}', "",
]  # fmt: skip
SPACES = st.sampled_from(["", "", " ", "\t\n\r ", "\x0b"])

numbers = st.one_of(st.integers(0, 30).map(str), st.integers(10**55, 10**55 + 9).map(str), st.sampled_from(ODD_NUMBERS))
plain_numbers = st.integers(0, 30).map(str)
texts = st.one_of(st.text(max_size=6).map(json.dumps), st.text(max_size=6).map(lambda text: f'"{text}"'))
data = st.one_of(
    st.binary(max_size=12).map(lambda raw: base64.b64encode(raw).decode()),
    st.binary(min_size=600, max_size=700).map(lambda raw: base64.b64encode(raw).decode()),
    st.sampled_from(ODD_DATA),
)
times = st.one_of(
    st.integers(0, 4102444800000).map(lambda millis: json.dumps(millis / 1000)),
    st.floats().map(json.dumps),
    st.sampled_from(ODD_TIMES),
)


@st.composite
def hostile_records(draw: st.DrawFn) -> str:
    """The JSON of a record: mostly well, with odd values, doubled and missing keys, in any order."""
    members = [
        ("SequenceNumber", f'"{draw(numbers)}"'),
        ("Data", f'"{draw(data)}"'),
        ("PartitionKey", draw(st.one_of(texts, st.sampled_from(ODD_VALUES)))),
        ("ApproximateArrivalTimestamp", draw(times)),
    ]
    if draw(st.booleans()):
        members += draw(
            st.lists(
                st.tuples(st.sampled_from(["EncryptionType", "é", "Dat\\u0061", "Data"]), st.sampled_from(ODD_VALUES)),
                max_size=2,
            )
        )
        members = draw(st.permutations(members))
        members = members[draw(st.sampled_from([0, 0, 0, 1])) :]
    space = draw(SPACES)
    return "{" + f",{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members) + "}"


@st.composite
def good_records(draw: st.DrawFn) -> str:
    """The JSON of a record that is well; one of ten has what the core leaves to Python."""
    plain = draw(st.integers(0, 9)) < 9
    body = draw(st.sampled_from([b"", b"x", b"y" * 900] if plain else [aggregate("a", hash_key="5"), MAGIC + b"x"]))
    members = {
        "SequenceNumber": draw(plain_numbers),
        "Data": base64.b64encode(body).decode(),
        "PartitionKey": draw(st.sampled_from(["key", "é", '"'] if plain else ["key", None])),
        "ApproximateArrivalTimestamp": draw(st.integers(0, 10**13)) / 1000,
    }
    return json.dumps(members, ensure_ascii=not plain)


@st.composite
def payloads(draw: st.DrawFn, records: st.SearchStrategy[str], *, odd: bool) -> bytes:
    space = draw(SPACES) if odd else ""
    listed = f",{space}".join(draw(st.lists(records, max_size=5)))
    members = [f'"Records"{space}:{space}[{listed}]', '"MillisBehindLatest":0']
    if odd and draw(st.booleans()):
        name, value = draw(st.sampled_from(["Extra", "Records", "ChildShards"])), draw(st.sampled_from(ODD_VALUES))
        members.append(f'"{name}":{value}')
    return ("{" + ",".join(draw(st.permutations(members))) + "}" + space).encode(errors="surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A payload that may be cut, or have a byte changed."""
    payload = bytearray(draw(whole))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, max(len(payload) - 1, 0)))
        payload[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(payload[: draw(st.integers(0, len(payload)))] if draw(st.integers(0, 9)) == 0 else payload)


positions = st.one_of(
    st.sampled_from([TRIM_HORIZON, SHARD_END, Position.at_timestamp(7), Position.after(10**55 + 4)]),
    st.integers(-1, 31).map(Position.after),
)
starts = st.one_of(positions, st.builds(Position.inside, st.integers(0, 30), st.integers(0, 2)))


def parts(events: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Part]]:
    keys = st.sampled_from([KEY, ShardKey("orders", "shardId-000000000004"), ShardKey("événements", "s")])
    ranges = st.builds(ShardRange, keys, starts, positions)
    some = st.lists(events, max_size=4).flatmap(
        lambda found: st.sampled_from([found, found + found, found[::-1] + found])
    )
    return st.lists(st.tuples(ranges, some), min_size=1, max_size=3)


@pytest.mark.usefixtures("native")
@given(parts(damaged(payloads(hostile_records(), odd=True))), st.booleans())
def test_hostile_payloads_have_the_same_rows_or_error(found: list[Part], deaggregate: bool) -> None:
    agree(found, deaggregate=deaggregate)


@pytest.mark.usefixtures("native")
@given(parts(payloads(good_records(), odd=False)), st.booleans())
def test_ranges_of_several_shards_have_the_same_batches(found: list[Part], deaggregate: bool) -> None:
    agree(found, deaggregate=deaggregate)


def raw(number: str = "5", data: str = "eA==", key: str = '"k"', time: str = "1.5", more: str = "") -> bytes:
    """A payload of one record, after one that is well."""
    first = '{"SequenceNumber":"1","Data":"eA==","PartitionKey":"k","ApproximateArrivalTimestamp":1.5}'
    fields = (
        f'"SequenceNumber":"{number}","Data":"{data}","PartitionKey":{key},"ApproximateArrivalTimestamp":{time}{more}'
    )
    return f'{{"Records":[{first},{{{fields}}}]}}'.encode()


ODD = {
    **{f"number {value[:20]}": raw(number=value) for value in ODD_NUMBERS},
    **{f"data {value[:20]}": raw(data=value) for value in ODD_DATA},
    **{f"large data {value[:20]}": raw(data="QUJD" * 300 + value) for value in ODD_DATA},
    **{f"time {value}": raw(time=value) for value in ODD_TIMES},
    **{f"key {value[:20]}": raw(key=value) for value in ODD_VALUES},
    **{
        f"key of {length} and {last!a}": raw(key=f'"{"k" * length}{last}"')
        for length in (30, 31, 32, 33, 64)
        for last in ("", "é", "\x7f", "\x1f", '\\"')
    },
    **{f"unknown {value[:20]}": raw(more=f',"Other":{value}') for value in ODD_VALUES},
    **{f"beside {value[:20]}": raw()[:-1] + f',"Other":{value}}}'.encode() for value in ODD_VALUES},
    **{f"twice {value[:20]}": raw()[:-1] + f',"Records":{value}}}'.encode() for value in ODD_VALUES},
    **{
        f"doubled {name}": raw(more=f',"{name}":"5"')
        for name in ("SequenceNumber", "Data", "PartitionKey", "ApproximateArrivalTimestamp")
    },
    "surrogates": raw(key='"\\ud800"'),
    "no UTF-8": raw(key='"KEY"').replace(b"KEY", b"\xed\xa0\x80"),
    "no UTF-8 in an unknown value": raw(more=',"Other":"KEY"').replace(b"KEY", b"\xff"),
    "no UTF-8 in a name": raw(more=',"KEY":1').replace(b"KEY", b"\xff"),
    "a mark of byte order": b"\xef\xbb\xbf" + raw(),
    "more behind it": raw() + b"x",
    "more space behind it": raw() + b" \n",
    "nothing": b"",
    "no object": b"[]",
    "an empty object": b"{}",
    "no records": b'{"Records":[]}',
    "a number as records": b'{"Records":7}',
    "a number as record": b'{"Records":[7]}',
    "deep": b'{"x":' + b"[" * 100_000,
}


@pytest.mark.slow
@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_decoded_alike(name: str) -> None:
    before, behind = event(record(0, b"z" * 900)), event(record(30))
    for payloads in ([ODD[name]], [before, ODD[name], behind], [behind, ODD[name]]):
        for through in (SHARD_END, Position.after(1), Position.after(5)):
            agree([part(payloads, through=through)])
            agree(
                [part([before]), (ShardRange(ShardKey("o", "s"), TRIM_HORIZON, through), payloads)], deaggregate=False
            )


class Watched:
    """A batch of the core that records its calls."""

    def __init__(self, batch: Any) -> None:
        self.calls: list[str] = []
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._batch, name)


def test_usual_payloads_are_decoded_by_the_core_alone(native: Any) -> None:
    batch = Watched(native.Batch(True))
    payloads = [event(record(1), record(2)), event(record(3))]
    found, error, _ = outcome(
        core.Choice(SimpleNamespace(Batch=lambda _: batch), CORE.detail), [part(payloads)] * 2, deaggregate=True
    )
    assert (len(found), error) == (1, "")
    assert batch.calls == ["begin", "add", "add", "begin", "add", "add", "take", "floor"]


TAKEN = {
    "as Kinesis sends it": event(record(1), record(2)),
    "with space": b' { "Records" : [ '
    + event(record(1), record(2)).partition(b"[")[2].replace(b",", b" ,\n\t").replace(b"]", b" ] "),
    "in another order": raw(more=',"EncryptionType":"NONE"'),
    "with scripts of all kinds": raw(key='"\u043a\u043b\u044e\u0447 \U0001f5dd"'),
    "with escapes": raw(key='"{\\"a\\":\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u00e9\\ud83D\\udd11\\"}"'),
    "with a time in the form of science": raw(time="1.700000000123E9"),
    "with unknown values": raw(more=',"a":{"b":[1,-2.5,true,null]},"c":"d"'),
    "with the children of its shard": raw()[:-1]
    + b',"ChildShards":[{"ShardId":"s","ParentShards":["p"],"HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"9"}}]}',
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_kinesis_sends_is_taken(native: Any, name: str) -> None:
    assert by_core(native, TAKEN[name]) == (2, 2, False)
    assert by_core(native, memoryview(TAKEN[name])) == (2, 2, False)  # type: ignore[arg-type]
    agree([part([TAKEN[name]])])


def test_a_declined_payload_leaves_nothing_behind(native: Any) -> None:
    batch = native.Batch(True)
    assert batch.begin("orders", "s", "1", "9")
    assert batch.add(event(record(2))) == (1, 1, False)
    assert batch.add(event(record(3), record(4, Data="%"))) is None
    assert batch.floor == "2"
    assert pa.record_batch(batch.take())["sequenceNumber"].to_pylist() == ["2"]
    with pytest.raises(ValueError, match="taken before"):
        (taken := batch.take()).__arrow_c_array__() and taken.__arrow_c_array__()


def found(interface: int) -> Any:
    return lambda _: SimpleNamespace(INTERFACE=interface)


def refused(error: ImportError) -> Any:
    def load(_: str) -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("environment", "load", "detail", "wrong"),
    [
        ({core.SWITCH: "OFF"}, found(1), "in Python: KINESIS_EFO_CORE=off", False),
        ({}, refused(ModuleNotFoundError("no")), "in Python: kinesis-efo-core is not installed", False),
        ({}, refused(ImportError("wrong ELF class")), "cannot be loaded: wrong ELF class", True),
        ({}, found(2), "has interface 2, but this library needs 1", True),
    ],
)
def test_python_decodes_where_the_core_cannot(environment: Any, load: Any, detail: str, wrong: bool) -> None:
    choice = core.choose(environment, load)
    assert choice.core is None
    assert choice.detail.endswith(detail)
    assert bool(choice.fix) == wrong


def test_the_core_decodes_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    module = SimpleNamespace(INTERFACE=1, __version__="7", Batch=made.append)
    choice = core.choose({}, lambda name: {core.MODULE: module}[name])
    assert choice == (module, "records are decoded by kinesis-efo-core 7", "")
    monkeypatch.setattr(core, "CHOSEN", choice)
    Decoder(deaggregate=True)
    assert made == [True]


@pytest.mark.parametrize(("fix", "level"), [("", logging.DEBUG), ("do", logging.WARNING)])
def test_decoder_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fix: str, level: int
) -> None:
    caplog.set_level(logging.DEBUG, core.__name__)
    monkeypatch.setattr(core, "CHOSEN", core.Choice(None, f"{fix} somebody decodes", fix))
    for _ in range(2):
        Decoder(deaggregate=True)
    assert [(line.levelno, line.message) for line in caplog.records] == [
        (level, f"{fix} somebody decodes" + "; do" * bool(fix))
    ]
