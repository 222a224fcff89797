"""What errors of AWS mean, and what readers, writers and the lease table each make of the same cause."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import botocore.exceptions as boto
import pytest
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker

from kinesis_efo.aws_errors import Cause, cause_of, cause_of_code, code_of, describe, key_remedy, message_of, skew_of
from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.patience import passes
from kinesis_efo.producer.faults import Retry, judge
from kinesis_efo_tools.operate.findings import finding
from tests.support.transports import refused

DYNAMODB = "https://dynamodb.eu-west-1.amazonaws.com"
SLOW = "Signature expired: 20261124T224315Z is now earlier than 20261124T225135Z (20261124T225635Z - 5 min.)"
FAST = "Signature not  yet current: 20261124T225635Z is still later than 20261124T224815Z (20261124T224315Z + 5 min.)"

POLICIES: list[tuple[Cause, Exception, Verdict, Retry, type[Exception]]] = [
    (Cause.PASSING, refused("ThrottlingException"), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, refused("SomethingNew", status=500), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, refused("SomethingNew", status=429), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, refused("SomethingThrottled", status=403), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, TimeoutError(), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, boto.ConnectTimeoutError(endpoint_url="x"), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, refused("InvalidSignatureException", SLOW), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.PASSING, refused("SignatureDoesNotMatch", FAST, 403), Verdict.RETRY, Retry.YES, TableUnavailableError),
    (Cause.UNRECOGNIZED, refused("InvalidSignatureException"), Verdict.REFUSED, Retry.NO, LeaseTableError),
    (Cause.DENIED, refused("AccessDeniedException"), Verdict.REFUSED, Retry.NO, LeaseTableError),
    (Cause.UNRECOGNIZED, refused("SignatureDoesNotMatch"), Verdict.REFUSED, Retry.NO, LeaseTableError),
    (Cause.UNRECOGNIZED, refused("SomethingNew", status=403), Verdict.REFUSED, Retry.NO, LeaseTableError),
    (Cause.NO_CREDENTIALS, boto.NoCredentialsError(), Verdict.REFUSED, Retry.NO, LeaseTableError),
    (
        Cause.CREDENTIALS_UNREACHABLE,
        boto.CredentialRetrievalError(provider="x", error_msg="y"),
        Verdict.RETRY,
        Retry.YES,
        TableUnavailableError,
    ),
    (Cause.EXPIRED, refused("ExpiredTokenException"), Verdict.EXPIRED, Retry.BRIEFLY, LeaseTableError),
    (Cause.KEY, refused("KMSDisabledException"), Verdict.KEY, Retry.NO, LeaseTableError),
    (Cause.MISSING, refused("ResourceNotFoundException"), Verdict.MISSING, Retry.NO, LeaseTableError),
    (Cause.IN_USE, refused("ResourceInUseException"), Verdict.NOT_ACTIVE, Retry.YES, TableUnavailableError),
    (Cause.INVALID, refused("ValidationException"), Verdict.INVALID, Retry.NO, LeaseTableError),
    (Cause.UNSENT, boto.NoRegionError(), Verdict.INVALID, Retry.NO, LeaseTableError),
    (Cause.UNKNOWN, refused("SomethingNew"), Verdict.RETRY, Retry.NO, LeaseTableError),
    (Cause.UNKNOWN, ZeroDivisionError("a bug"), Verdict.UNEXPECTED, Retry.NO, ZeroDivisionError),
]


def refusing(error: Exception, endpoint: str = DYNAMODB) -> LeaseTable:
    """A table whose calls fail with an error."""

    async def describe_table(**_: Any) -> None:
        raise error

    meta = SimpleNamespace(region_name="eu-west-1", partition="aws", endpoint_url=endpoint)
    client: Any = SimpleNamespace(meta=meta, describe_table=describe_table)
    return LeaseTable(client, "leases", declared_by="x")


@pytest.mark.parametrize(("cause", "error", "verdict", "retry", "raised"), POLICIES, ids=repr)
def test_each_caller_handles_each_cause(
    cause: Cause, error: Exception, verdict: Verdict, retry: Retry, raised: type[Exception]
) -> None:
    assert cause_of(error) is cause
    assert classify(error).verdict is verdict
    assert judge(error).retry is retry
    assert passes(error) is (raised is TableUnavailableError)
    with pytest.raises(raised) as caught:
        asyncio.run(refusing(error).check())
    assert type(caught.value) is raised


def test_every_cause_is_here() -> None:
    assert {cause for cause, *_ in POLICIES} == set(Cause)


def test_errors_botocore_retries_count_as_passing() -> None:
    codes = {*ThrottledRetryableChecker._THROTTLED_ERROR_CODES, *TransientRetryableChecker._TRANSIENT_ERROR_CODES}
    assert {code for code in codes if cause_of_code(code, 400) is not Cause.PASSING} == {"PriorRequestNotComplete"}, (
        "Route 53's, and none of ours"
    )


def test_service_errors_differ_from_the_sdks() -> None:
    said = [(code_of(each), message_of(each), describe(each)) for each in (refused("A", "b"), ValueError("v"))]
    assert said == [("A", "b", "A: b"), ("", "v", "ValueError: v")]


def test_the_remedy_for_a_key_names_the_permission() -> None:
    assert key_remedy("KMSAccessDeniedException", "Decrypt").startswith("allow the role kms:Decrypt on the key")
    assert key_remedy("KMSDisabledException", "Decrypt") == "enable the key"


@pytest.mark.parametrize(
    ("error", "skew", "words"),
    [
        (refused("InvalidSignatureException", SLOW), -800, "800 s behind AWS'"),
        (refused("SignatureDoesNotMatch", FAST, 403), 800, "800 s ahead of AWS'"),
        (
            refused("InvalidSignatureException", "The request signature we calculated does not match"),
            None,
            "calculated",
        ),
        (refused("ThrottlingException", SLOW), None, "Throttling"),
        (TimeoutError(SLOW), None, "TimeoutError"),
    ],
)
def test_a_refused_signature_gives_the_clock_skew(error: Exception, skew: float | None, words: str) -> None:
    assert skew_of(error) == skew
    assert words in describe(error)
    assert ("synchronize it" in describe(error)) == (skew is not None)


@pytest.mark.parametrize(
    ("endpoint", "error", "remedy"),
    [
        (
            DYNAMODB,
            refused("InvalidSignatureException", status=403),
            "check the AWS credentials of the process, and the region",
        ),
        (DYNAMODB, boto.NoCredentialsError(), "; give the process a role, a profile or credentials"),
        (DYNAMODB, refused("ValidationException"), "a query never creates it: deploy that first"),
        # An emulator of Kinesis alone, which `endpointUrl` names for every service.
        ("http://kinesis:4567", refused("UnknownOperationException"), "set AWS_ENDPOINT_URL_KINESIS in its place"),
        ("http://kinesis:4567", boto.NoCredentialsError(), "; give the process a role, a profile or credentials"),
        (
            "http://kinesis:4567",
            refused("Whatever", status=403),
            "sent to http://kinesis:4567, because .*'endpointUrl'",
        ),
    ],
)
def test_a_refused_table_call_has_a_remedy(endpoint: str, error: Exception, remedy: str) -> None:
    found = asyncio.run(finding("lease table", refusing(error, endpoint).check(), action="dynamodb:DescribeTable"))
    assert re.search(remedy, f"{found.detail}; {found.fix}")
    assert (found.fix == "it is declared by x, and a query never creates it: deploy that first") == (
        "Validation" in str(error)
    )


def test_an_error_is_described_without_its_full_stop() -> None:
    assert describe(refused("ResourceNotFoundException", "Stream x not found.")).endswith("Stream x not found")
    assert describe(ValueError("no.\n")) == "ValueError: no"
