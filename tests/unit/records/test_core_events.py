"""The native core reads frames, heads of events and answers of GetRecords as Python does, or leaves them to it."""

import importlib
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.records import core
from kinesis_efo.records.events import read_answer, read_head
from kinesis_efo.records.frames import Frame, FrameDecoder, encode_frame
from tests.support.agreement import CORE, agree_on_answer, agree_on_frames, agree_on_head
from tests.support.event_stream_vectors import WRONG, Wrong
from tests.support.missing import not_here
from tests.unit.records.test_core import ODD_NUMBERS, ODD_TIMES, ODD_VALUES, damaged, data, numbers, texts
from tests.unit.records.test_frames import raw_frame

SPACES = ["", "", " ", "\t\n\r ", "\x0b"]
CHILD = '{"ShardId":"c","ParentShards":["p"],"HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"9"}}'


@pytest.fixture(autouse=True, scope="module")
def native() -> Any:
    """The core."""
    if CORE.core is None:
        not_here("kinesis-efo-core is missing; make core")
    return importlib.import_module(core.MODULE)


# -- frames


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames one behind the other, some of them twice; one of four streams has bytes that are wrong."""
    headers = st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3)
    sizes = st.sampled_from([1_000, 20_000, (128 << 10) - 60, 128 << 10, 300_000])
    bodies = st.one_of(st.binary(max_size=40), st.binary(max_size=40), st.builds(bytes.__mul__, st.just(b"x"), sizes))
    framed = st.one_of(
        st.builds(encode_frame, headers, bodies), st.builds(raw_frame, st.binary(max_size=30), st.binary(max_size=10))
    )
    sent = draw(st.lists(framed, max_size=4))
    stream = bytearray(b"".join(sent + draw(st.sampled_from([[], sent[:1], sent[-1:]]))))
    if stream and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(stream) - 1))
        stream[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(stream[: draw(st.integers(0, len(stream)))] if draw(st.integers(0, 3)) == 0 else stream)


@given(streams(), st.data())
def test_streams_have_the_same_frames_wherever_they_are_cut(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    chunks = [stream[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(stream)])]
    agree_on_frames(chunks, data.draw(st.lists(st.booleans(), max_size=len(chunks))))


@pytest.mark.slow
@pytest.mark.parametrize("vector", WRONG, ids=lambda vector: vector.name)
def test_wrong_vectors_are_refused_alike(vector: Wrong) -> None:
    before = encode_frame({":event-type": "before"}, b"{}")
    for wire in [vector.wire] + ([] if vector.repaired is None else [vector.repaired]):
        for stream in (wire, before + wire + before):
            agree_on_frames([stream[at : at + 1] for at in range(len(stream))])
            for at in range(len(stream)):
                agree_on_frames([stream[:at], stream[at:]])


def test_frame_declined_by_the_core_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the core declines is Python's: a frame that is right is read, and so is the rest of the stream."""

    class Declining:
        awaited = missing = 0

        def feed(self, chunk: bytes) -> tuple[list[Any], bytes]:
            return [({}, b"first")], chunk

        def rest(self) -> bytes:
            return b""

    native = SimpleNamespace(Frames=Declining, read_head=lambda _: None, read_answer=lambda _: None)
    monkeypatch.setattr(core, "CHOSEN", core.Choice(native, ""))
    decoder, wire = FrameDecoder(), encode_frame({}, b"second")
    assert decoder.feed(wire + wire[:20]) == [Frame({}, b"first"), Frame({}, b"second")]
    assert (decoder.awaited, decoder.missing) == (len(wire), len(wire) - 20)
    assert decoder.feed(wire[20:]) == [Frame({}, b"second")]
    decoder.finish()
    assert read_head(b'{"ContinuationSequenceNumber":"1"}').continuation == 1
    assert read_answer(b'{"Records":[],"NextShardIterator":"i"}').iterator == "i"


# -- heads


@st.composite
def heads(draw: st.DrawFn, *, polled: bool) -> bytes:
    """The JSON of an event, or of an answer: mostly well, with odd values, doubled and missing names, in any order."""
    space = draw(st.sampled_from(SPACES))

    def written(members: list[tuple[str, str]]) -> str:
        return "{" + f",{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members) + "}"

    def some(*usual: tuple[str, str]) -> str:
        members = list(usual)
        if draw(st.integers(0, 3)) == 0:
            names = st.sampled_from([*(name for name, _ in usual), "Other", "é", "SequenceNumber", "Data"])
            members += draw(
                st.lists(st.tuples(names, st.sampled_from([*ODD_VALUES, '"SequenceNumber"', '"5"'])), max_size=2)
            )
            members = draw(st.permutations(members))[draw(st.sampled_from([0, 0, 1])) :]
        return written(members)

    def record() -> str:
        return some(
            ("Data", f'"{draw(data)}"'),
            ("PartitionKey", draw(st.one_of(texts, st.sampled_from(ODD_VALUES)))),
            ("SequenceNumber", f'"{draw(numbers)}"'),
        )

    listed = f",{space}".join(record() for _ in range(draw(st.integers(0, 3))))
    number = draw(st.one_of(numbers, st.integers(20, 40).map(str), st.just("9" * 199)))
    where = draw(st.sampled_from([f'"{number}"', f'"{number}"', f'"{number}"', "null", '""', number]))
    return some(
        ("NextShardIterator" if polled else "ContinuationSequenceNumber", where),
        (
            "MillisBehindLatest",
            draw(
                st.one_of(st.integers(-1, 1 << 64).map(str), st.sampled_from(["0", "1.0", "01", "-0", "1e2", "null"]))
            ),
        ),
        ("Records", draw(st.sampled_from([f"[{listed}]", f"[{listed}]", f"[{listed}]", "null", "{}"]))),
        (
            "ChildShards",
            draw(st.sampled_from(["null", "null", "[]", f"[{CHILD}]", f"[{CHILD},{CHILD}]", "[{}]", "[1]", "7"])),
        ),
    ).encode(errors="surrogatepass")


@given(damaged(heads(polled=False)))
def test_heads_are_the_same_or_refused_alike(payload: bytes) -> None:
    agree_on_head(payload)


@given(damaged(heads(polled=True)), st.sampled_from(["5", "30", None]))
def test_answers_are_the_same_or_refused_alike(body: bytes, asked: str | None) -> None:
    agree_on_answer(body, asked)


def event(
    number: str = '"50"', records: str = '{"Data":"eA==","PartitionKey":"k","SequenceNumber":"42"}', more: str = ""
) -> bytes:
    return f'{{"ContinuationSequenceNumber":{number},"MillisBehindLatest":7,"Records":[{records}]{more}}}'.encode()


def polled(payload: bytes) -> bytes:
    """The answer that is like an event."""
    return payload.replace(b"ContinuationSequenceNumber", b"NextShardIterator")


TAKEN = {
    "as Kinesis sends it": event(),
    "as the service writes times": event(
        records='{"ApproximateArrivalTimestamp":1.700000000123E9,"Data":"eA==","PartitionKey":"k","SequenceNumber":"42"}'
    ),
    "without records": event(records=""),
    "without records, but a number": event(records="", more=',"SequenceNumber":"49"'),
    "without children": event(more=',"ChildShards":null'),
    "with no children": event(more=',"ChildShards":[]'),
    "with space": event().replace(b":", b" :\n").replace(b",", b"\t,\r"),
    "with keys that need escapes": event(records='{"Data":"","PartitionKey":"\\"\\\\\\u00e9\\ud83d\\udd11","SequenceNumber":"42"}'),
    "with keys of any script": event(records='{"Data":"","PartitionKey":"ключ🗝","SequenceNumber":"42"}'),
    "with members that are not known": event(more=',"a":{"b":[1,-2.5,true,null]},"c":"d"'),
    "with many records": event(records=",".join(['{"Data":"eA==","SequenceNumber":"42"}'] * 5000)),
    "of one large record": event(records='{"Data":"' + "QUJD" * 100_000 + '","SequenceNumber":"42"}'),
    "of a record at which it goes on": event(number='"42"'),
    "of long numbers": event(
        number=f'"{"9" * 200}"', records=f'{{"Data":"","SequenceNumber":"{"8" * 200}"}}'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_kinesis_sends_is_taken(native: Any, name: str) -> None:
    assert native.read_head(TAKEN[name]) is not None
    assert agree_on_head(TAKEN[name]) is not None
    assert native.read_answer(polled(TAKEN[name])) is not None
    assert agree_on_answer(polled(TAKEN[name])) is not None


ODD = {
    **{f"continuation {value[:20]}": event(number=value) for value in ODD_VALUES},
    **{f"number {value[:20]}": event(number=f'"{value}"') for value in ODD_NUMBERS},
    **{
        f"number of a record {value[:20]}": event(records=f'{{"Data":"","SequenceNumber":"{value}"}}')
        for value in ODD_NUMBERS
    },
    **{f"lag {value}": event(more=f',"MillisBehindLatest":{value}') for value in ODD_VALUES},
    **{f"records {value[:20]}": event(more=f',"Records":{value}') for value in ODD_VALUES},
    **{f"a record {value[:20]}": event(records=value) for value in ODD_VALUES},
    **{
        f"time {value}": event(records=f'{{"Data":"","SequenceNumber":"42","Time":{value}}}')
        for value in (*ODD_TIMES, "1e99", "1e-99", "9" * 400 + "e99", "1e", "1e+")
    },
    **{f"key {value[:20]}": event(records=f'{{"Data":"","PartitionKey":{value},"SequenceNumber":"4"}}') for value in ODD_VALUES},
    **{f"data {value[:20]}": event(records=f'{{"Data":{value},"SequenceNumber":"42"}}') for value in ODD_VALUES},
    **{f"children {value[:20]}": event(more=f',"ChildShards":{value}') for value in ODD_VALUES},
    "an end": event(number="null", more=f',"ChildShards":[{CHILD}]'),
    "an end in an empty string": event(number='""', more=f',"ChildShards":[{CHILD}]'),
    "an end that goes on": event(more=f',"ChildShards":[{CHILD}]'),
    "before its last record": event(number='"41"'),
    "a key that is called as the number": event(records='{"Data":"","SequenceNumber":"42","PartitionKey":"SequenceNumber"}'),
    "another number behind the records": event(more=',"SequenceNumber":"49"'),
    "another number behind the records, too large": event(more=',"SequenceNumber":"51"'),
    "a number in other digits": event(records='{"Data":"","SequenceNumber":"٤٢"}'),
    "a doubled number": event(records='{"Data":"","SequenceNumber":"41","SequenceNumber":"42"}'),
    "doubled data": event(records='{"Data":"","Data":"eA==","SequenceNumber":"42"}'),
    "lone surrogates": event(records='{"Data":"\\ud800","PartitionKey":"\\udc00x","SequenceNumber":"42"}'),
    "no UTF-8": event(records='{"Data":"","PartitionKey":"KEY","SequenceNumber":"42"}').replace(b"KEY", b"\xed\xa0\x80"),
    "a mark of byte order": b"\xef\xbb\xbf" + event(),
    "more behind it": event() + b"x",
    "an empty object": b"{}",
    "nothing": b"",
    "deep": b'{"x":' + b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_read_or_refused_alike(name: str) -> None:
    agree_on_head(ODD[name])
    agree_on_answer(polled(ODD[name]), "50")


# -- threads


@pytest.mark.parametrize("read", ["read_head", "read_answer", "feed"])
def test_other_threads_run_while_what_is_large_is_read(native: Any, read: str) -> None:
    small, usual, large = (
        event(records=f'{{"Data":"{"QUJD" * size}","SequenceNumber":"42"}}') for size in (1, 50_000, 1_000_000)
    )
    call = getattr(native, read, None)
    if read == "feed":
        # A checksum that Python computes lets others run, too.
        small, usual, large = (encode_frame({}, payload) for payload in (small, usual, large))
        call = native.Frames().feed
    ran: list[bool] = []
    begin = threading.Lock()
    before = sys.getswitchinterval()
    begin.acquire()

    def other() -> None:
        with begin:
            ran.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    # Nobody is made to give up the interpreter's lock: the other thread runs if this one gives it up by itself, and else never.
    sys.setswitchinterval(1000)
    try:
        begin.release()
        for payload in [small, usual] * 500:
            call(payload)
        assert not ran, "getting the lock back takes longer than reading so little"
        deadline = time.monotonic() + 30
        while not ran and time.monotonic() < deadline:
            call(large)
        assert ran
    finally:
        sys.setswitchinterval(before)
        thread.join()
