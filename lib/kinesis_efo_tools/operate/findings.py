"""The outcome of a check: passed, failed or unknown, with the fix. An error during a check is turned into an outcome, too."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import CALL_ERRORS, Cause, cause_of, code_of, describe, is_foreign, key_remedy
from kinesis_efo.errors import KinesisEfoError, LeaseTableError, TableUnavailableError

LOG_IN: Final = "log in (such as `aws sso login`), set AWS_PROFILE or AWS_ACCESS_KEY_ID, run where the host has a role, or correct what is named here"
"""The fix that is shown if there are no credentials."""


class Status(Enum):
    """Whether a check passed."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. `subject` names what was checked; `fix` is what the user should do, or empty."""

    subject: str
    status: Status
    detail: str
    fix: str = ""


class NotPassed(Exception):
    """Raised by a check that does not pass (base class). `fix` is what the user should do."""

    status: Status

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fix = fix


class CheckFailed(NotPassed):
    """Raised by a check that finds a problem."""

    status = Status.FAILED


class CheckUnknown(NotPassed):
    """Raised by a check that cannot determine whether there is a problem."""

    status = Status.UNKNOWN


async def finding(subject: str, work: Awaitable[str], *, action: str, needed: bool = True) -> Finding:
    """Run a check, and return its result or error as a `Finding`.

    Args:
        work: Returns the details, or raises `CheckFailed`, `CheckUnknown`, or an error of the library or the AWS SDK.
        action: The permission that `work` needs, such as `kinesis:ListShards`.
        needed: Whether queries need this permission, too. If not, a denied call makes the outcome unknown instead of failed.
    """
    try:
        return Finding(subject, Status.PASSED, await work)
    except NotPassed as outcome:
        return Finding(subject, outcome.status, outcome.detail, outcome.fix)
    except LeaseTableError as error:
        what, _, fix = str(error).rpartition("; ")
        return Finding(
            subject, Status.FAILED, what or fix, fix if what else "correct the table or the row that it names"
        )
    except TableUnavailableError as error:
        return Finding(subject, Status.UNKNOWN, str(error), "try again; if it stays so, look at the network path")
    except KinesisEfoError as error:
        return Finding(subject, Status.FAILED, *what_and_fix(error))
    except CALL_ERRORS as error:
        return failed_call(subject, error, action, needed=needed)


def what_and_fix(error: KinesisEfoError) -> tuple[str, str]:
    """Split one of this library's error messages into what is wrong and what to do.

    >>> what_and_fix(KinesisEfoError("bundle 'a.pem': it is a directory; give a file"))
    ("bundle 'a.pem': it is a directory", 'give a file')
    """
    what, _, fix = str(error).partition(". ")
    if not fix:
        what, _, fix = str(error).rpartition("; ")
    return what or fix, fix if what else "a query ends with the same error: the runbook says what to do"


_LOCAL_FIXES: Final = {
    errno.EBADF: "it is closed: redirect it to a file, or to /dev/null",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    **dict.fromkeys((errno.EDQUOT, errno.ENOSPC), "free space there, or write to another disk"),
}
"""Fixes, by errno, for errors of this machine rather than of the network or AWS."""


def failed_call(subject: str, error: Exception, action: str, *, needed: bool = True) -> Finding:
    """Return the outcome of a check whose AWS call failed.

    `action` is the permission that the call needs, such as `kinesis:ListShards`; `needed` is whether queries need it, too.

    >>> failed_call("clock", TimeoutError("no answer"), "kinesis:ListStreams").status.name
    'UNKNOWN'
    """
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _LOCAL_FIXES):
        fix = _LOCAL_FIXES.get(error.errno or 0, "correct that file or name another one")
        return Finding(subject, Status.FAILED, describe(error), fix)
    cause = cause_of(error)
    if cause is Cause.NO_CREDENTIALS:
        return Finding(subject, Status.FAILED, describe(error), LOG_IN)
    unknown_call = needed and code_of(error) == "UnknownOperationException"
    if is_foreign(error) or unknown_call:
        fix = "correct the endpoint, or look for a proxy or a captive portal on the way to it"
        return Finding(subject, Status.FAILED if unknown_call else Status.UNKNOWN, describe(error), fix)
    if cause.refused and needed:
        fix = f"allow {action} to the role, or check as the job itself with --role-arn"
        return Finding(subject, Status.FAILED, describe(error), fix)
    if cause.refused:
        fix = f"allow {action} to your role if you want to know; a query does not need it"
        return Finding(subject, Status.UNKNOWN, describe(error), fix)
    if cause is Cause.MISSING:
        return Finding(subject, Status.FAILED, describe(error), "deploy it, to this account and region")
    if cause is Cause.EXPIRED:
        return Finding(subject, Status.FAILED, describe(error), "renew the credentials: log in again")
    if cause is Cause.KEY:
        return Finding(subject, Status.FAILED, describe(error), key_remedy(code_of(error), "Decrypt"))
    if cause in (Cause.INVALID, Cause.UNSENT):
        return Finding(subject, Status.FAILED, describe(error), f"correct the request to {action}")
    return Finding(subject, Status.UNKNOWN, describe(error), "try again; if it stays so, look at the network path")


@contextmanager
def existing(detail: str, fix: str) -> Iterator[None]:
    """Context manager that raises `CheckFailed(detail, fix)` if AWS reports that a resource does not exist."""
    try:
        yield
    except ClientError as error:
        if cause_of(error) is not Cause.MISSING:
            raise
        raise CheckFailed(detail, fix) from error
