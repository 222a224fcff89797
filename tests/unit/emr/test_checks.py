"""What would keep a job from working is found before it is submitted."""

from __future__ import annotations

from dataclasses import replace

from kinesis_efo_tools.emr.checks import consumer_faults
from tests.unit.emr.test_submission import MANIFEST


def test_polled_stream_has_no_consumer_to_check() -> None:
    polled = {name: replace(ref, consumer_arn=None) for name, ref in MANIFEST.streams.items()}
    # Without a client: any call would fail.
    assert list(consumer_faults(replace(MANIFEST, streams=polled), None)) == []
