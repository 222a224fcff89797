"""Signatures of another time are refused as AWS refuses them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import Cause, cause_of, describe, skew_of
from tests.support.answers import ForwardClock

from .conftest import Bench

Run = Callable[..., Bench]


def refused(call: Callable[[], Any]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("offset", "words", "told"),
    [
        (400.0, "Signature expired: {0} is now earlier than {0} ({0} - 5 min.)", "behind"),
        (-400.0, "Signature not yet current: {0} is still later than {0} ({0} + 5 min.)", "ahead of"),
    ],
)
def test_five_minutes_off_is_refused(run: Run, offset: float, words: str, told: str) -> None:
    clock = ForwardClock()
    bench = run(clock=clock, signature_seconds=300.0)
    clock.offset = offset
    for call in (bench.client.list_streams, bench.aws.client("dynamodb").list_tables):
        error = refused(call)
        assert error.response["Error"]["Code"] == "InvalidSignatureException"
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert re.sub(r"\d{8}T\d{6}Z", "{0}", error.response["Error"]["Message"]) == words
        assert cause_of(error) is Cause.PASSING
        skew = skew_of(error)
        assert abs(skew + offset) < 5
        assert f"this machine's clock is {abs(skew):.0f} s {told} AWS'" in describe(error)
    clock.offset = offset * 0.7
    bench.client.list_streams()


def test_other_services_accept_a_quarter_of_an_hour(run: Run) -> None:
    clock = ForwardClock()
    bench = run(clock=clock, signature_seconds=300.0)
    sts, s3 = bench.aws.client("sts"), bench.aws.client("s3")
    clock.offset = 800.0
    sts.get_caller_identity()
    s3.list_buckets()
    clock.offset = 1000.0
    error = refused(sts.get_caller_identity)
    assert error.response["Error"]["Code"] == "SignatureDoesNotMatch"
    assert error.response["Error"]["Message"].endswith("- 15 min.)")
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert cause_of(error) is Cause.PASSING
    error = refused(s3.list_buckets)
    assert error.response["Error"]["Code"] == "RequestTimeTooSkewed"
    assert cause_of(error) is Cause.PASSING
