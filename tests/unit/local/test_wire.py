"""Frames, tokens and validation: what clients see is what botocore's own decoder and models understand."""

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_local import wire
from kinesis_efo_local.tokens import open_token


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=100), max_size=5), st.binary(max_size=2000))
def test_botocore_reads_every_frame_we_write(headers: dict[str, str], payload: bytes) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(wire.encode_frame(wire.encode_headers(headers), payload))
    (event,) = list(buffer)
    assert event.headers == headers
    assert event.payload == payload


@given(st.text() | st.binary().map(lambda raw: raw.hex()))
def test_nonsense_is_not_a_token(text: str) -> None:
    assert open_token(text) is None
