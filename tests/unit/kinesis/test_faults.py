"""What each kind of error means; what subscriptions do about it is tested with them."""

import pickle
import ssl

import aiohttp
import botocore.exceptions as boto
import pytest
from botocore.eventstream import ChecksumMismatch, InvalidPayloadLength
from botocore.parsers import ResponseParserError

from kinesis_efo.aws_errors import describe
from kinesis_efo.errors import FrameError, RetriesExhaustedError
from kinesis_efo.kinesis.faults import Backoff, Verdict, classify, fatal
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from tests.support.transports import broken_off, refused

URL = "https://kinesis.eu-west-1.amazonaws.com"
STREAM = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")


# Shows 33, 37.
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (boto.ReadTimeoutError(endpoint_url=URL), Verdict.RETRY),
        (boto.EndpointConnectionError(endpoint_url=URL), Verdict.RETRY),
        (boto.ConnectionClosedError(endpoint_url=URL), Verdict.RETRY),
        (boto.SSLError(endpoint_url=URL, error="x"), Verdict.RETRY),
        (boto.ProxyConnectionError(proxy_url=URL), Verdict.RETRY),
        (boto.HTTPClientError(error="x"), Verdict.RETRY),
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
