"""Decides whether a producer retries a failed call, and which error it raises if not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import Cause, cause_of, cause_of_code, code_of, credentials_remedy, describe, key_remedy
from kinesis_efo.errors import (
    AccessRefusedError,
    KeyUnusableError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamError,
    StreamNotFoundError,
    WriteError,
)

_OF_A_RECORD: Final = ("InvalidArgumentException", "ValidationException")
"""Error codes with which Kinesis rejects a whole request because of one of its records."""


class Retry(Enum):
    """Whether to retry a failed call."""

    YES = "with backoff, until `retry_timeout`"
    BRIEFLY = "a few times: the SDK may just be renewing the credentials"
    NO = "fail at once"


@dataclass(frozen=True, slots=True)
class WriteFault:
    """A failed call: its error, whether to retry it, and the exception to raise otherwise."""

    code: str  # Kinesis' error code, or the name of the exception's class if there was no response
    text: str
    retry: Retry
    kind: type[StreamError] = RetriesExhaustedError  # The exception to raise if the call is not retried
    remedy: str = ""  # What the user can do, for the exception's message

    def error(self, what: str) -> StreamError:
        """Create the exception. `what` is the beginning of its message."""
        return self.kind(f"{what}: {self.text}", remedy=self.remedy and f"To do: {self.remedy}")


def judge(error: Exception, action: str = "kinesis:PutRecords") -> WriteFault:
    """Classify an exception raised by an aiobotocore client. `action` is the IAM action that the call requires, for the message."""
    cause, code, text = cause_of(error), code_of(error), describe(error)
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _fault(cause, code or str(status), text, action)
    if cause in (Cause.UNSENT, Cause.UNKNOWN):
        remedy = "report it: this is not a known Kinesis or network error"
        return WriteFault(type(error).__name__, text, Retry.NO, WriteError, remedy)
    if cause is Cause.NO_CREDENTIALS:
        return WriteFault(type(error).__name__, text, Retry.NO, AccessRefusedError, credentials_remedy(error))
    return _fault(cause, type(error).__name__, text, action)


def judge_result(code: str, message: str) -> WriteFault:
    """Classify the error code of one record in a PutRecords response."""
    return _fault(cause_of_code(code), code, f"{code}: {message}", "kinesis:PutRecords")


def _fault(cause: Cause, code: str, text: str, action: str) -> WriteFault:
    match cause:
        case Cause.PASSING | Cause.IN_USE:
            return WriteFault(code, text, Retry.YES)
        case Cause.EXPIRED:
            return WriteFault(code, text, Retry.BRIEFLY, AccessRefusedError, "renew the AWS credentials of the process")
        case Cause.CREDENTIALS_UNREACHABLE:
            return WriteFault(code, text, Retry.YES, AccessRefusedError, "check the process's AWS credentials")
        case Cause.DENIED:
            return WriteFault(code, text, Retry.NO, AccessRefusedError, f"the role needs {action} on the stream")
        case Cause.UNRECOGNIZED:
            remedy = "AWS does not accept the credentials: check keys, region and the machine's clock"
            return WriteFault(code, text, Retry.NO, AccessRefusedError, remedy)
        case Cause.KEY:
            return WriteFault(code, text, Retry.NO, KeyUnusableError, key_remedy(code, "GenerateDataKey"))
        case Cause.MISSING:
            remedy = "check the stream: was it deployed, and to this account and region?"
            return WriteFault(code, text, Retry.NO, StreamNotFoundError, remedy)
        case Cause.INVALID if code in _OF_A_RECORD:
            return WriteFault(code, text, Retry.NO, RecordRefusedError)
    # Fail on errors that are not known to be transient. A reader would retry them, but here unwritten records would accumulate.
    return WriteFault(code, text, Retry.NO, WriteError, "fix the cause: Kinesis would refuse the request again")
