"""A response: its window is its memory, its end is told once, and it passes for aiohttp's."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.http2.response import LARGEST_WINDOW, LEAST_WINDOW, HttpFacts, Response
from tests.support.virtual_time import run


class Carrier:
    """Counts what the service was allowed to send."""

    facts = HttpFacts("HTTP/2")

    def __init__(self) -> None:
        self.allowed = LEAST_WINDOW
        self.updates = 0
        self.cancelled: list[int] = []

    def open_window(self, stream_id: int, size: int) -> None:
        assert stream_id == 7
        assert size > 0, "a window that opens by nothing is an error of the protocol"
        self.allowed += size
        self.updates += 1

    def cancel(self, stream_id: int) -> None:
        self.cancelled.append(stream_id)


def respond(share: Callable[[], int] = lambda: 64 << 10, silence: float | None = 35) -> tuple[Response, Carrier]:
    carrier = Carrier()
    response = Response(carrier, 7, share, silence)
    response.begin(200, {})
    return response, carrier


# -- windows


@pytest.mark.parametrize(
    ("share", "window"), [(0, LEAST_WINDOW), (1000, LEAST_WINDOW), (64 << 10, 32 << 10), (1 << 62, LARGEST_WINDOW)]
)
def test_a_window_is_half_of_the_share_within_limits(share: int, window: int) -> None:
    _, carrier = respond(lambda: share)
    assert carrier.allowed == window


async def test_what_is_expected_may_come_at_once() -> None:
    response, carrier = respond(lambda: 0)
    response.expect(14 << 20)
    assert carrier.allowed == 14 << 20
    for _ in range(14 << 6):
        response.arrive(bytes(16 << 10))
        await response.readany()
    # It ends as it began: no more than usual may come behind it.
    assert carrier.allowed - (14 << 20) == LEAST_WINDOW


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(0, 20_000), st.sampled_from([0, 1, 256])),
            st.tuples(st.just("read"), st.just(0), st.just(0)),
            st.tuples(st.just("expect"), st.integers(0, 100_000), st.just(0)),
            st.tuples(st.just("share"), st.integers(0, 1 << 21), st.just(0)),
        ),
        max_size=40,
    )
)
def test_allowed_and_unread_bytes_stay_within_the_window(steps: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        share = 128 << 10
        response, carrier = respond(lambda: share)
        most, unread, received = max(LEAST_WINDOW, share // 2), b"", 0
        for step, size, padding in steps:
            if step == "share":
                share = size
                # A window that is open cannot be shut: it shrinks as it is used up.
                most = max(most, min(LARGEST_WINDOW, share // 2))
            elif step == "expect":
                response.expect(size)
                most = max(most, size)
            elif step == "read":
                if unread:
                    assert await response.readany() == unread
                    unread = b""
            elif received + size + padding <= carrier.allowed:
                received += size + padding
                unread += bytes(size)
                response.arrive(bytes(size), padding)
            assert carrier.allowed - received + len(unread) <= most
            assert carrier.allowed - received + len(unread) > 0, "it would stand still"

    run(main())


# -- reading


async def test_cancelled_read_ends_the_stream() -> None:
    # aiobotocore reads the bodies of errors, and nobody else knows them: the stream's place would be lost.
    response, carrier = respond()
    reading = asyncio.ensure_future(response.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert carrier.cancelled == [7]


# -- closing, and silence
