"""Classifies errors of AWS calls by cause, with a table of error codes and a table of exception types.

Callers decide what to do about a cause: readers, writers and the lease table react differently. The codes are from the API references of
Kinesis and DynamoDB, including "Common Errors", and from botocore's lists of retryable errors.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import aiohttp
from botocore.eventstream import ParserError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    CredentialRetrievalError,
    HTTPClientError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)
from botocore.parsers import ResponseParserError

from kinesis_efo.errors import FrameError, visible

THROUGHPUT_EXCEEDED: Final = "ProvisionedThroughputExceededException"


class SignInError(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """Credentials cannot be fetched, because a profile, file or program that should provide them is wrong. Waiting does not help."""

    fmt = "{reason}"


class NoAnswerError(HTTPClientError):  # type: ignore[misc]  # botocore has no types
    """A call did not receive a response before its deadline. Its connection may still be open."""

    fmt = "{operation}: no answer from {endpoint_url} within {seconds:.3g} s"


class Cause(Enum):
    """Why a call failed."""

    PASSING = auto()
    """Throttling, or a service or connection error: the same call may succeed later."""
    DENIED = auto()
    """No policy allows the call, or a policy denies it."""
    UNRECOGNIZED = auto()
    """AWS does not accept the credentials or the signature."""
    NO_CREDENTIALS = auto()
    """There are no credentials."""
    CREDENTIALS_UNREACHABLE = auto()
    """The credentials provider does not respond."""
    EXPIRED = auto()
    """The credentials have expired."""
    KEY = auto()
    """The KMS key cannot be used."""
    MISSING = auto()
    """The resource does not exist."""
    IN_USE = auto()
    """The resource is being created or changed, or another program uses it."""
    INVALID = auto()
    """The service rejects the request as invalid."""
    UNSENT = auto()
    """The SDK did not send the request, because a parameter or the SDK's configuration is wrong."""
    UNKNOWN = auto()
    """The error is not in this module's tables."""

    @property
    def refused(self) -> bool:
        """Whether AWS rejects the credentials or denies the call, or credentials are missing. Waiting does not help."""
        return self in (Cause.DENIED, Cause.UNRECOGNIZED, Cause.NO_CREDENTIALS)


_KEY_REMEDIES: Final = {
    "KMSAccessDeniedException": "allow the role kms:{action} on the key, in its policy and in the key's",
    "KMSDisabledException": "enable the key",
    "KMSInvalidStateException": "bring the key back to state Enabled (it may be pending deletion)",
    "KMSNotFoundException": "restore the key or the grant, or set the stream to another key",
    "KMSOptInRequired": "activate AWS KMS for the account that owns the key",
}

_BY_CODE: Final = {
    **dict.fromkeys(
        (
            "BandwidthLimitExceeded",
            "IDPCommunicationError",
            "InternalFailure",
            "InternalFailureException",
            "InternalServerError",
            "KMSThrottlingException",
            "LimitExceededException",
            THROUGHPUT_EXCEEDED,
            "ReplicatedWriteConflictException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestTimeTooSkewed",
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "TransactionConflictException",
            "TransactionInProgressException",
        ),
        Cause.PASSING,
    ),
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation"),
        Cause.DENIED,
    ),
    **dict.fromkeys(
        (
            "AuthFailure",
            "IncompleteSignature",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
        ),
        Cause.UNRECOGNIZED,
    ),
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "RequestExpired"), Cause.EXPIRED),
    **dict.fromkeys(_KEY_REMEDIES, Cause.KEY),
    "ResourceNotFoundException": Cause.MISSING,
    "ResourceInUseException": Cause.IN_USE,
    **dict.fromkeys(
        (
            "InvalidAction",
            "InvalidArgumentException",
            "SerializationException",
            "UnknownOperationException",
            "ValidationError",
            "ValidationException",
        ),
        Cause.INVALID,
    ),
}

# The first match counts, so specific types come before more general types.
_BY_TYPE: Final[tuple[tuple[tuple[type[Exception], ...], Cause], ...]] = (
    ((CredentialRetrievalError, MetadataRetrievalError), Cause.CREDENTIALS_UNREACHABLE),
    (
        (
            ConfigParseError,
            NoAuthTokenError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
            SignInError,
            SSOError,
            TokenRetrievalError,
        ),
        Cause.NO_CREDENTIALS,
    ),
    # List botocore's ConnectionError (refused, unresolved, timed out) too: it is neither an HTTPClientError nor an OSError.
    ((HTTPClientError, BotoConnectionError, ResponseParserError, ParserError), Cause.PASSING),
    ((aiohttp.ClientError, OSError, EOFError, FrameError), Cause.PASSING),
    ((ParamValidationError, ValueError, BotoCoreError), Cause.UNSENT),
)

_SIGNATURE_CODES: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
_SIGNED: Final = re.compile(r"^Signature (?:expired|not\s+yet current): (\d{8}T\d{6}Z) .*\((\d{8}T\d{6}Z) [-+]")

CALL_ERRORS: Final = (ClientError, BotoCoreError, ResponseParserError, ParserError, aiohttp.ClientError, OSError)
"""The exceptions that a failed AWS call can raise."""


def cause_of(error: Exception) -> Cause:
    """Return why a call failed.

    >>> cause_of(TimeoutError("no event for 35 s")).name
    'PASSING'
    """
    if skew_of(error) is not None:
        return Cause.PASSING  # the credentials are valid, but the clock is wrong; it may be corrected
    if isinstance(error, ClientError):
        return cause_of_code(code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return next((cause for kinds, cause in _BY_TYPE if isinstance(error, kinds)), Cause.UNKNOWN)


def cause_of_code(code: str, status: int = 0) -> Cause:
    """Return the cause that an error code indicates.

    >>> cause_of_code("ThrottledSomehow", 400).name
    'PASSING'
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    if "Throttl" in code or status == 429 or status >= 500:
        return Cause.PASSING
    return Cause.UNRECOGNIZED if status in (401, 403) else Cause.UNKNOWN


def code_of(error: Exception) -> str:
    """Return the service's error code; empty if there was no response, or a response without a code."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def action_of(error: Exception, operation: str) -> str:
    """Return the IAM action that a denied call requires, such as `sts:AssumeRole`."""
    operation = getattr(error, "operation_name", operation)
    service = "sts" if operation.startswith("AssumeRole") else "sso" if operation == "GetRoleCredentials" else "kinesis"
    return f"{service}:{operation}"


def message_of(error: Exception) -> str:
    """Return the error message in the service's response; the exception's text if there was no response."""
    return str(error.response.get("Error", {}).get("Message", "")) if isinstance(error, ClientError) else str(error)


def skew_of(error: Exception) -> float | None:
    """Return the seconds by which this machine's clock is ahead of AWS' clock, if AWS rejected a signature because of its time; else None.

    The times are from AWS' message. The clock may be right, since AWS also rejects requests that were in transit for minutes.
    """
    if code_of(error) not in _SIGNATURE_CODES or (times := _SIGNED.search(message_of(error))) is None:
        return None
    signed, now = (datetime.strptime(each, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for each in times.groups())
    return (signed - now).total_seconds()


def is_foreign(error: Exception) -> bool:
    """Whether an error response seems to come from a proxy or another server: it lacks the error code that AWS' responses contain."""
    if not isinstance(error, ClientError):
        return isinstance(error, ResponseParserError)
    code, heads = code_of(error), error.operation_name.startswith("Head")  # for HEAD, the code is the HTTP status
    return not code or (code.isdigit() and not heads)


def describe(error: Exception) -> str:
    """Describe an error in one line with its code or type and its message, without a trailing period."""
    if isinstance(error, ClientError) and is_foreign(error):
        status = code_of(error) or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "unknown")
        text = (
            f"{error.operation_name} returned HTTP status {status} without an AWS error code: a proxy may have responded, or the endpoint "
            "may belong to another service (AWS_ENDPOINT_URL_KINESIS overrides 'endpointUrl' and AWS_ENDPOINT_URL for Kinesis)"
        )
    elif isinstance(error, ClientError):
        text = f"{code_of(error)}: {message_of(error) or 'without a message'}"
        if (skew := skew_of(error)) is not None:
            way = "ahead of" if skew > 0 else "behind"
            text += f": this machine's clock is {abs(skew):.0f} s {way} AWS'; synchronize it (chrony, NTP)"
    elif isinstance(error, FrameError | NoAnswerError | ResponseParserError | SignInError):
        text = str(error)
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return visible(text.rstrip(". \n"))


def credentials_remedy(error: Exception) -> str:
    """Return what to do about missing credentials, as an imperative."""
    if isinstance(error, SignInError):
        return "correct that, or log in"
    return "give the process a role, a profile or credentials in its environment"


def key_remedy(code: str, action: str) -> str:
    """Return what to do about an unusable KMS key, as an imperative. `action` is the KMS action that the caller needs."""
    return _KEY_REMEDIES[code].format(action=action)
