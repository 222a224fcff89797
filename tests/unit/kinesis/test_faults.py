"""What each kind of error means, and backoff: how long, how often, and what is remembered."""

import pickle
import ssl

import aiohttp
import botocore.exceptions as boto
import pytest
from botocore.eventstream import ChecksumMismatch, InvalidPayloadLength
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.aws_errors import describe
from kinesis_efo.errors import FrameError, RetriesExhaustedError
from kinesis_efo.kinesis.faults import Backoff, Verdict, classify, fatal
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter
from tests.support.transports import broken_off, refused

STREAM = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")


# Shows 33, 37.
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ResponseParserError("x"), Verdict.RETRY),
        (ChecksumMismatch(1, 2), Verdict.RETRY),
        (InvalidPayloadLength(1), Verdict.RETRY),
        (aiohttp.ClientPayloadError("x"), Verdict.RETRY),
        (aiohttp.SocketTimeoutError("x"), Verdict.RETRY),
        (aiohttp.ServerDisconnectedError(), Verdict.RETRY),
        (ssl.SSLError("x"), Verdict.RETRY),
        (EOFError(), Verdict.RETRY),
        (FrameError("x"), Verdict.RETRY),
        (boto.MetadataRetrievalError(error_msg="x"), Verdict.RETRY),
        (boto.PartialCredentialsError(provider="x", cred_var="y"), Verdict.REFUSED),
        (boto.ProfileNotFound(profile="x"), Verdict.REFUSED),
        (boto.UnauthorizedSSOTokenError(), Verdict.REFUSED),
        (boto.TokenRetrievalError(provider="x", error_msg="x"), Verdict.REFUSED),
        (boto.ParamValidationError(report="x"), Verdict.INVALID),
        (ValueError("x"), Verdict.INVALID),
        (KeyError("x"), Verdict.UNEXPECTED),
        (refused("ExpiredToken", operation="AssumeRole"), Verdict.EXPIRED),
        (refused("ResourceInUseException", "a text that is new"), Verdict.NOT_ACTIVE),
        (broken_off("ResourceInUseException", "Another active subscription exists"), Verdict.TAKEN_OVER),
        (broken_off("SomethingNew"), Verdict.RETRY),
    ],
    ids=repr,
)
def test_every_error_has_its_verdict(error: Exception, verdict: Verdict) -> None:
    fault = classify(error)
    assert fault.verdict is verdict
    assert fault.code
    assert str(fault) == describe(error)


def test_fatal_errors_cross_processes() -> None:
    row = Backoff(RetrySettings(), lambda: 1.0)
    row.failed(TimeoutError("first"), 5.0)
    row.failed(TimeoutError("x"), 90.0)
    error = fatal(classify(TimeoutError("x")), STREAM, "shard", "m.json", row)
    assert "progress, 2 in 85 s. The last was TimeoutError: x; the first was TimeoutError: first" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RetriesExhaustedError
    assert str(again) == str(error)


def test_by_default_delays_grow_to_ten_seconds() -> None:
    longest = [jitter(RetrySettings(), failures, lambda: 1.0) for failures in range(1, 9)]
    assert longest == [1.0, 1.5, 2.25, 3.375, 5.0625, 7.59375, 10.0, 10.0]


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1, 10), st.integers(1, 60_000))
def test_jitter_is_full_and_bounded(failures: int, chance: float, factor: float, most: int) -> None:
    settings = RetrySettings(base_ms=1000, max_ms=most, factor=factor)
    assert 0 <= jitter(settings, failures, lambda: chance) <= most / 1000
    assert jitter(settings, failures, lambda: 0.0) == 0


@given(
    st.floats(1, 7 * 86_400),
    st.integers(1, 600_000),
    st.lists(st.floats(0, 100), min_size=1),
    st.floats(0, 1, exclude_max=True),
)
def test_gives_up_after_failing_for_the_timeout(
    timeout: float, longest: int, tries: list[float], chance: float
) -> None:
    backoff = Backoff(RetrySettings(base_ms=1, max_ms=longest, factor=10, timeout=timeout), lambda: chance)
    now = began = 1000.0
    for seconds in tries:
        delay = backoff.failed(RuntimeError(), now)
        assert (delay is None) == (now - began >= timeout)
        if delay is None:
            return
        now += delay + seconds


def test_progress_and_pauses_do_not_count_as_failing() -> None:
    backoff = Backoff(RetrySettings(base_ms=1, max_ms=1, timeout=60), lambda: 0.0)
    assert backoff.failed(RuntimeError(), 0.0) is not None
    assert backoff.failed(RuntimeError(), 59.0) is not None
    backoff.reset()
    assert backoff.failed(RuntimeError(), 100.0) is not None
    # The lease was lost for an hour: not a single try was made.
    assert backoff.failed(RuntimeError(), 3700.0) is not None
    assert backoff.failures == 2
    assert backoff.failed(RuntimeError(), 3760.0) is None
    assert backoff.seconds == 60.0
