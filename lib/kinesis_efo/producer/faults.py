"""What went wrong when writing, and what helps. Relies on botocore's and aiohttp's exceptions only.

The codes come from the PutRecords API reference; those that are not modelled there (expired tokens, signatures) from its
page "Common Errors".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import aiohttp
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import (
    ConnectionError as BotocoreConnectionError,
)
from botocore.parsers import ResponseParserError

from kinesis_efo.errors import (
    AccessRefusedError,
    KeyUnusableError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamError,
    StreamNotFoundError,
    WriteError,
)

THROTTLED = "ProvisionedThroughputExceededException"


class Healing(Enum):
    """What helps against a fault."""

    RETRY = "retry"
    CREDENTIALS = "retry a few times: the SDK may just be renewing them"
    NEVER = "fail"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed request, judged.

    Attributes:
        code: Of the error, as Kinesis names it; the class of the exception where there is no answer.
        text: For messages.
        healing: What helps.
        kind: Exception to raise when nothing does.
        remedy: What the user can do, as the end of a sentence.
    """

    code: str
    text: str
    healing: Healing
    kind: type[StreamError] = RetriesExhaustedError
    remedy: str = ""


_KEY_UNUSABLE = {
    "KMSAccessDeniedException": "the role needs kms:GenerateDataKey on the stream's key",
    "KMSDisabledException": "enable the stream's KMS key",
    "KMSInvalidStateException": "the stream's KMS key is being deleted or imported",
    "KMSNotFoundException": "the stream's KMS key does not exist (any more)",
    "KMSOptInRequired": "the account is not subscribed to KMS",
}
_ACCESS = {
    "AccessDenied",
    "AccessDeniedException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_PASSING = {
    THROTTLED,
    "InternalFailure",
    "InternalFailureException",
    "InternalServerError",
    "KMSThrottlingException",
    "LimitExceededException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ResourceInUseException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_INVALID = {"InvalidArgumentException", "ValidationException", "ValidationError", "SerializationException"}
_CREDENTIALS_MISSING = (NoCredentialsError, PartialCredentialsError, NoAuthTokenError)
_CONNECTION = (
    HTTPClientError,
    BotocoreConnectionError,
    aiohttp.ClientError,
    ResponseParserError,
    OSError,
    TimeoutError,
)


def judge(error: Exception, action: str = "kinesis:PutRecords") -> Fault:
    """What a failed call means.

    Args:
        error: As raised by an aiobotocore client.
        action: The permission that the call needs, for the message.
    """
    if isinstance(error, ClientError):
        details: dict[str, Any] = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return judge_code(str(details.get("Code", "")), str(details.get("Message", "")), status, action)
    name, text = type(error).__name__, f"{type(error).__name__}: {error}"
    if isinstance(error, _CREDENTIALS_MISSING):
        return Fault(name, text, Healing.NEVER, AccessRefusedError, "give the process AWS credentials")
    if isinstance(error, CredentialRetrievalError):
        return Fault(name, text, Healing.CREDENTIALS, AccessRefusedError, "check the process's AWS credentials")
    if isinstance(error, _CONNECTION):
        return Fault(name, text, Healing.RETRY)
    return Fault(name, text, Healing.NEVER, WriteError, "this is not a known fault of Kinesis or of the network")


def judge_code(code: str, message: str, status: int = 0, action: str = "kinesis:PutRecords") -> Fault:
    """What an error code means; with the HTTP status where it concerns a whole request."""
    text = f"{code}: {message}"
    if code in _EXPIRED:
        return Fault(code, text, Healing.CREDENTIALS, AccessRefusedError, "renew the AWS credentials of the process")
    if code in _ACCESS:
        return Fault(code, text, Healing.NEVER, AccessRefusedError, f"the role needs {action} on the stream")
    if code in _KEY_UNUSABLE:
        return Fault(code, text, Healing.NEVER, KeyUnusableError, _KEY_UNUSABLE[code])
    if code == "ResourceNotFoundException":
        remedy = "was it deployed, and to this account and region?"
        return Fault(code, text, Healing.NEVER, StreamNotFoundError, remedy)
    if code in _INVALID:
        return Fault(code, text, Healing.NEVER, RecordRefusedError)
    if code in _PASSING or status >= 500 or status == 429:
        return Fault(code or str(status), text, Healing.RETRY)
    return Fault(code, text, Healing.NEVER, WriteError, "Kinesis refuses the request and will do so again")
