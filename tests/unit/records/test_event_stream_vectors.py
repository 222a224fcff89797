"""AWS' own test vectors of event streams: ours reads what they call right, and refuses what they call wrong, wherever it is cut."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.transport import BotoEventStream, Unlimited
from kinesis_efo.records.frames import Frame, encode_frame
from tests.support.decoders import decoder as decoder
from tests.support.event_stream_vectors import (
    BLOB,
    FALSE,
    RIGHT,
    SMITHY,
    STRING,
    TRUE,
    WRONG,
    Header,
    Right,
    Wrong,
    block,
)
from tests.unit.records.test_frames import decode

BEFORE = encode_frame({":event-type": "before"}, b"{}")
AFTER = encode_frame({":event-type": "after"}, b"x" * 2000)


def name(vector: Right | Wrong) -> str:
    return vector.names[0] if isinstance(vector, Right) else vector.name


def read(header: Header) -> str | bytes | bool:
    """A header's value as our decoder gives it: it leaves numbers, times and UUIDs raw."""
    _, kind, value = header
    if kind in (TRUE, FALSE):
        return kind == TRUE
    if kind in (STRING, BLOB):
        assert isinstance(value, str | bytes)
        return value
    return block((("", kind, value),))[2:]


@pytest.mark.parametrize("vector", RIGHT, ids=name)
def test_a_right_frame_is_read_wherever_it_is_cut(vector: Right) -> None:
    expected = Frame({header[0]: read(header) for header in vector.headers}, vector.payload)
    wire = vector.wire
    for cut in range(len(wire) + 1):
        assert decode(wire, cut) == [expected]
    assert decode(wire, *range(1, len(wire))) == [expected]
    between = BEFORE + wire + AFTER
    for cut in range(len(BEFORE), len(BEFORE + wire) + 1):
        assert decode(between, cut)[1:-1] == [expected]


@pytest.mark.parametrize("vector", WRONG, ids=name)
def test_a_wrong_frame_is_refused_wherever_it_is_cut(vector: Wrong) -> None:
    wire = vector.wire
    for cuts in [*((cut,) for cut in range(len(wire) + 1)), tuple(range(1, len(wire)))]:
        with pytest.raises(FrameError, match=vector.says):
            decode(wire, *cuts)


@pytest.mark.parametrize("vector", [each for each in WRONG if each.repaired is not None], ids=name)
def test_headers_that_are_wrong_are_refused_for_themselves_too(vector: Wrong) -> None:
    assert vector.repaired is not None
    for cut in range(len(vector.repaired)):
        with pytest.raises(FrameError, match="header") as refused:
            decode(vector.repaired, cut)
        assert "checksum" not in str(refused.value)


def said(vector: Right, cut: int) -> Any:
    """What a subscription makes of a frame: events, or the error that ends it."""

    async def main() -> list[bytes]:
        chunks = [vector.wire[:cut], vector.wire[cut:], b""]

        async def readany() -> bytes:
            while chunks[0] == b"" and len(chunks) > 1:
                chunks.pop(0)
            return chunks.pop(0) if len(chunks) > 1 else b""

        body = SimpleNamespace(content=SimpleNamespace(readany=readany), close=lambda: None)
        return [event.payload async for event in BotoEventStream(body, Unlimited())]

    try:
        return asyncio.run(main())
    except (FrameError, EventStreamError) as error:
        return error


@pytest.mark.parametrize("vector", SMITHY, ids=name)
def test_frames_mean_what_smithy_defines(vector: Right) -> None:
    for cut in {0, 1, 12, len(vector.wire) // 2, len(vector.wire) - 1}:
        result = said(vector, cut)
        match vector.names[0].removesuffix("Input"):
            case "ServerError":
                assert isinstance(result, EventStreamError)
                assert result.response["Error"] == {"Code": "error", "Message": "foo"}
            case "ServerUnexpectedError":
                assert isinstance(result, EventStreamError)
                assert result.response["Error"] == {"Code": "internal-error", "Message": "An unknown error occurred."}
            case "MissingMessageType" | "MalformedMessageType" | "MissingEventType" | "MalformedEventType":
                assert isinstance(result, FrameError), "what it is cannot be told, so it may be records"
            case _:
                assert result == [], "a kind of event that is none of SubscribeToShard's"
