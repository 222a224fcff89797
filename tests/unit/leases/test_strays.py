"""Checkpoints of another stream: told where that is certain, and never where it is not."""

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.notes import strays
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Position

ARN, OTHER = (
    "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
    "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks",
)
NOW = StreamIdentity(ARN, 1_800_000_000)
EARLIER = StreamIdentity(ARN, 1_700_000_000)


def rows(*streams: StreamIdentity | None) -> list[Lease]:
    return [
        Lease(f"orders:{number}", checkpoint=Position.after(7), stream=stream) for number, stream in enumerate(streams)
    ]


def test_stray_of_an_earlier_stream_has_both_times() -> None:
    assert strays(rows(NOW, EARLIER, None, EARLIER), NOW) == (
        f"checkpoint orders:1 (and 1 more) is from another stream: {ARN}, created 2023-11-14T22:13:20+00:00. "
        f"The stream is now {ARN}, created 2027-01-15T08:00:00+00:00: it was deleted and created again since"
    )


def test_row_with_another_arn_is_a_stray() -> None:
    for stream in (StreamIdentity(OTHER), StreamIdentity(OTHER, NOW.created)):
        for present in (NOW, StreamIdentity(ARN)):
            assert (
                f"is from another stream: {stream}. The stream is now {present}: the application read another"
                in str(strays(rows(stream), present))
            )


@pytest.mark.parametrize(
    ("stream", "present"),
    [(NOW, NOW), (None, NOW), (StreamIdentity(ARN), NOW), (NOW, StreamIdentity(ARN)), (EARLIER, StreamIdentity(ARN))],
)
def test_row_of_unknown_time_is_no_stray(stream: StreamIdentity | None, present: StreamIdentity) -> None:
    assert strays(rows(stream), present) is None
