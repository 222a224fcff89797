"""Refuses requests whose signature is of another time, as AWS does: those of a machine whose clock is off. Nothing else of it is checked."""

from __future__ import annotations

from calendar import timegm
from time import gmtime, strftime, strptime

from .errors import AwsError
from .http import Incoming

_FORM = "%Y%m%dT%H%M%SZ"
_OTHERS = 3
"""Times as long as Kinesis and DynamoDB do, STS, S3 and others accept a signature."""


def check_time(request: Incoming, service: str, now: float, seconds: float) -> None:
    """Check when a request was signed.

    Args:
        request: The request.
        service: The service that it was signed for.
        now: Epoch seconds.
        seconds: How far the time of a signature may be off for Kinesis and DynamoDB.

    Raises:
        AwsError: It is further off. Codes and wording are those of AWS.
    """
    try:
        signed = timegm(strptime(request.headers.get("X-Amz-Date", ""), _FORM))
    except ValueError:
        return
    json = "X-Amz-Target" in request.headers
    seconds = seconds if json else _OTHERS * seconds
    if abs(signed - now) <= seconds:
        return
    if service == "s3":
        raise AwsError(
            "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.", 403
        )
    early = signed < now
    bound = now - seconds if early else now + seconds
    what = (
        "Signature expired: {} is now earlier than {}"
        if early
        else "Signature not yet current: {} is still later than {}"
    )
    message = (
        f"{what.format(_text(signed), _text(bound))} ({_text(now)} {'-' if early else '+'} {seconds / 60:.0f} min.)"
    )
    if json:
        raise AwsError("InvalidSignatureException", message)
    raise AwsError("SignatureDoesNotMatch", message, 403)


def _text(epoch: float) -> str:
    return strftime(_FORM, gmtime(epoch))
