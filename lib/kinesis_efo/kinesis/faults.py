"""What an error of SubscribeToShard or GetRecords means: the design's error table as one pure classification.

Relies on the exceptions of botocore and aiohttp, which are what the transport raises.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from aiohttp import ClientError as HttpError
from botocore.eventstream import ParserError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EventStreamError,
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

from kinesis_efo.errors import (
    AccessRefusedError,
    ConsumerTakenOverError,
    FrameError,
    InvalidRequestError,
    KeyUnusableError,
    RetriesExhaustedError,
    StreamError,
    StreamReplacedError,
    SubscriptionError,
)
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position


class Verdict(Enum):
    """What to do about an error."""

    RETRY = auto()
    """Transient: back off, counted."""
    KEY = auto()
    """The KMS key: back off, counted; what it ends in names the key."""
    EXPIRED = auto()
    """Credentials expired: one more try, signed anew, then refused."""
    TOO_SOON = auto()
    """Someone subscribed to the shard less than 5 s ago: wait, not counted."""
    NOT_ACTIVE = auto()
    """The consumer is not ACTIVE (yet): back off, for up to 5 minutes."""
    TAKEN_OVER = auto()
    """Someone else subscribed to the shard with our consumer."""
    MISSING = auto()
    """Stream, shard or consumer does not exist: ListShards tells which."""
    REFUSED = auto()
    """Credentials or policy: fatal."""
    INVALID = auto()
    """Kinesis, or the SDK, calls the request invalid: fatal."""
    UNEXPECTED = auto()
    """Nothing this library knows of: fatal, so that it is seen."""


class Fault(NamedTuple):
    """An error and what to do about it.

    Attributes:
        verdict: What to do.
        code: The service's error code or the exception's name, as counted in metrics.
        error: The exception.
    """

    verdict: Verdict
    code: str
    error: Exception

    def __str__(self) -> str:
        return describe(self.error)


_KEY_REMEDIES: Final = {
    "KMSDisabledException": "enable the key",
    "KMSInvalidStateException": "bring the key back to state Enabled (it may be pending deletion)",
    "KMSAccessDeniedException": "allow the role kms:Decrypt on the key, in its policy and in the key's",
    "KMSNotFoundException": "restore the key or the grant, or set the stream to another key",
    "KMSOptInRequired": "activate AWS KMS for the account that owns the key",
}

_BY_CODE: Final = {
    **dict.fromkeys(_KEY_REMEDIES, Verdict.KEY),
    "KMSThrottlingException": Verdict.RETRY,
    "ResourceNotFoundException": Verdict.MISSING,
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "AuthFailure",
            "IncompleteSignature",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnauthorizedOperation",
            "UnrecognizedClientException",
        ),
        Verdict.REFUSED,
    ),
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "RequestExpired"), Verdict.EXPIRED),
    **dict.fromkeys(
        (
            "InvalidAction",
            "InvalidArgumentException",
            "SerializationException",
            "UnknownOperationException",
            "ValidationError",
            "ValidationException",
        ),
        Verdict.INVALID,
    ),
}

# In the order in which they are tried: what is more special first.
_BY_TYPE: Final[tuple[tuple[tuple[type[Exception], ...], Verdict], ...]] = (
    ((CredentialRetrievalError, MetadataRetrievalError), Verdict.RETRY),
    (
        (NoCredentialsError, PartialCredentialsError, ProfileNotFound, SSOError, TokenRetrievalError, NoAuthTokenError),
        Verdict.REFUSED,
    ),
    ((HTTPClientError, BotoConnectionError, ResponseParserError, ParserError), Verdict.RETRY),
    ((HttpError, OSError, EOFError, FrameError), Verdict.RETRY),
    ((ParamValidationError, ValueError, BotoCoreError), Verdict.INVALID),
)


def classify(error: Exception) -> Fault:
    """What to do about an error of the transport.

    >>> classify(TimeoutError("no event for 35 s")).verdict.name
    'RETRY'
    """
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        return Fault(_of_service(error, code), code or "ClientError", error)
    code = type(error).__name__
    for kinds, verdict in _BY_TYPE:
        if isinstance(error, kinds):
            return Fault(verdict, code, error)
    return Fault(Verdict.UNEXPECTED, code, error)


def _of_service(error: ClientError, code: str) -> Verdict:
    if code == "ResourceInUseException":
        if isinstance(error, EventStreamError):
            return Verdict.TAKEN_OVER
        # Kinesis has one code for both. "Consumer ... is not in ACTIVE status." is the other message; a text that is new to
        # us is taken for that one, since its way out leads through the first's.
        return Verdict.TOO_SOON if "another active subscription" in _message(error).lower() else Verdict.NOT_ACTIVE
    if code in _BY_CODE:
        return _BY_CODE[code]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # Throttling has half a dozen names, and whatever else is unknown may pass: retries are bounded.
    return Verdict.REFUSED if status in (401, 403) and "Throttl" not in code else Verdict.RETRY


def describe(error: Exception) -> str:
    """One line on an error: its code or type, and what it says."""
    if isinstance(error, ClientError):
        return f"{error.response.get('Error', {}).get('Code', '')}: {_message(error)}"
    if isinstance(error, FrameError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def fatal(fault: Fault, stream: StreamRef, shard_id: str, source: str, first: Exception | None = None) -> StreamError:
    """The exception that tells the user why a shard cannot be read any more.

    Args:
        fault: The last error.
        stream: What was read.
        shard_id: Which shard of it.
        source: Where the ARNs came from: the manifest's location.
        first: The error that began the row of failures, where that is another one.
    """
    error = fault.error
    where = f"stream {stream.name!r}, shard {shard_id}, {stream.reader} (from {source})"
    match fault.verdict:
        case Verdict.REFUSED | Verdict.EXPIRED:
            return AccessRefusedError(f"{where} cannot be read: {describe(error)}. {_access_remedy(fault, stream)}")
        case Verdict.INVALID:
            return InvalidRequestError(
                f"{where}: {_operation(error, stream)} was refused as invalid: {describe(error)}. A position of another stream, or of one "
                "that was deleted and created again, is the usual cause: check that checkpoint and ARN belong together"
            )
        case Verdict.KEY:
            remedy = _KEY_REMEDIES.get(fault.code, "check the key")
            return KeyUnusableError(f"{where} cannot be read: the stream is encrypted with {_key(error)}, which cannot be used: "
                                    f"{describe(error)}. To go on, {remedy}")  # fmt: skip
        case Verdict.TAKEN_OVER | Verdict.TOO_SOON:
            return ConsumerTakenOverError(
                f"{where}: consumer {stream.consumer_arn} is read by someone else: {describe(error)}. Every application "
                "needs a consumer of its own; look for another query, Flink job or KCL worker that uses this one"
            )
        case Verdict.NOT_ACTIVE:
            return RetriesExhaustedError(
                f"{where} cannot be read: the consumer has not become ACTIVE within 5 minutes: {describe(error)}. "
                "Look at it with `aws kinesis describe-stream-consumer`"
            )
        case Verdict.UNEXPECTED:
            return SubscriptionError(f"{where}: unexpected {describe(error)}")
    since = f"; the first in the row was {describe(first)}" if first and describe(first) != describe(error) else ""
    return RetriesExhaustedError(
        f"{where} cannot be read: too many failures in a row without any progress. The last was {describe(error)}{since}"
    )


def _operation(error: Exception, stream: StreamRef) -> str:
    return getattr(error, "operation_name", "GetRecords" if stream.polled else "SubscribeToShard")


def replaced(stream: StreamRef, shard_id: str, position: Position, source: str) -> StreamReplacedError:
    """The exception that tells the user that a position is not of this stream, but of a former one of its name.

    Args:
        stream: What should be read.
        shard_id: Which shard of it.
        position: The position, from the checkpoint.
        source: Where the ARNs came from: the manifest's location.
    """
    return StreamReplacedError(
        f"stream {stream.name!r}, shard {shard_id}: the checkpoint stands at {position}, which is of an earlier stream: "
        f"{stream.stream_arn} (from {source}) was deleted and created again since. What was not read of the earlier one is "
        "gone; start the query with a new checkpoint, and startingPosition TRIM_HORIZON to read all of the new one"
    )


def _access_remedy(fault: Fault, stream: StreamRef) -> str:
    error = fault.error
    if fault.verdict is Verdict.EXPIRED:
        return (
            "The credentials have expired and do not refresh themselves: use a role, a profile or a web identity "
            "instead of temporary keys in the environment"
        )
    if not isinstance(error, ClientError):
        return "Give the process AWS credentials, or set kinesis-efo option 'roleArn'"
    operation = _operation(error, stream)
    action = f"{'sts' if operation.startswith('AssumeRole') else 'kinesis'}:{operation}"
    if "AccessDenied" not in fault.code and "Unauthorized" not in fault.code:
        return f"AWS did not accept the credentials that {action} was signed with: check keys, region and the machine's clock"
    who = re.search(r"arn:[\w-]+:(?:sts|iam)::\d+:[\w+=,.@/-]+", _message(error))
    declared = "; infra/ does so where the application has `polling: true`" if stream.polled else ""
    return f"Allow {action} on it to {who[0] if who else 'the role this process runs as'}{declared}"


def _key(error: Exception) -> str:
    key = re.search(r"arn:[\w-]+:kms:[\w:/-]+", _message(error))
    return f"key {key[0]}" if key else "a KMS key"


def _message(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Message", "")) if isinstance(error, ClientError) else str(error)
