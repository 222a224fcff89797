"""Finds the driver log of a run in S3, and the error in the log. EMR writes logs with some minutes' delay."""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kinesis_efo.aws_errors import CALL_ERRORS, describe
from kinesis_efo.errors import PlatformError
from kinesis_efo_tools.emr.artifacts import split_uri
from kinesis_efo_tools.emr.target import JobRun

_DRIVER: Final = re.compile(
    # Pattern for the paths of driver logs of EMR Serverless, EMR on EKS, and YARN (the first container of an attempt runs the driver).
    r"/SPARK_DRIVER/(.*/)?std(err|out)[^/]*$|-driver/std(err|out)[^/]*$|/container_[^/]*_000001/std(err|out)[^/]*$"
)
_SUBMITTED: Final = re.compile(rb"Submitted application (application_\d+_\d+)")
_OURS: Final = re.compile(r"kinesis_efo\.errors\.\w+: .+")
_RAISED: Final = re.compile(
    r"(?:Caused by: |Exception in thread \"[^\"]*\" )?(?:[\w$]+\.)*\w*(?:Error|Exception|Exit): .+"
)


@dataclass(frozen=True, slots=True)
class DriverLog:
    """The log of a run's driver. `reason` is the error with which the driver failed; None if the log contains no error."""

    uris: Sequence[str]
    lines: Sequence[str]
    reason: str | None


def driver_log(s3: Any, run: JobRun, most_lines: int) -> DriverLog:
    """Read the end of the driver log of a run's last attempt. Raises PlatformError if there is no log, or if S3 rejects a call."""
    places = [uri for uri in run.logs if uri.startswith("s3://")]
    with _refusals(" and ".join(places)):
        found = [uri for place in places for uri in _files(s3, place, run)]
        if not found:
            raise PlatformError(
                f"run {run.id} has no log of its driver in {' or '.join(places) or 'S3: none was configured'}. EMR writes logs some "
                "minutes late; `emr submit --logs` says where to"
            )
        # Read standard error last, because it usually ends with the error. With YARN, the error may be in standard output.
        lines: deque[str] = deque(maxlen=most_lines)
        reasons: list[str | None] = []
        for uri in sorted(found, key=lambda each: "stderr" in each.rpartition("/")[2]):
            text = _text(s3, uri).decode(errors="replace").splitlines()
            lines.extend(text)
            reasons.append(reason(text))
    said = [each for each in reasons if each]
    return DriverLog(
        found, list(lines), next((each for each in said if _OURS.search(each)), said[-1] if said else None)
    )


def reason(lines: Iterable[str]) -> str | None:
    """Return the last error of this library in a driver log, otherwise the last error of any kind; None if there is no error.

    >>> reason(["WARN x", "kinesis_efo.errors.DataLossError: gone", "java.lang.IllegalStateException: stopped"])
    'kinesis_efo.errors.DataLossError: gone'
    """
    ours = other = None
    for line in lines:
        if found := _OURS.search(line):
            ours = found[0]
        elif found := _RAISED.match(line):
            other = found[0]
    return ours or other


def _files(s3: Any, place: str, run: JobRun) -> list[str]:
    """List the log files of the driver's last attempt at an S3 location."""
    location, prefix = split_uri(place)
    if prefix.endswith("/containers/"):
        # This directory has the logs of all YARN applications of the cluster. Find the ID of the run's application in the log of its step.
        steps = next(uri for uri in run.logs if uri.endswith(f"/steps/{run.id}/"))
        named = [match[1].decode() for key in _keys(s3, steps) for match in _SUBMITTED.finditer(_text(s3, key))]
        if not named:
            return []
        place = f"{location}/{prefix}{named[-1]}/"
    driver = [uri for uri in _keys(s3, place) if _DRIVER.search(uri)]
    last = max((_attempt(uri) for uri in driver), default=())
    return [uri for uri in driver if _attempt(uri) == last]


def _attempt(uri: str) -> tuple[int, ...]:
    """Return the numbers in a log file's directory, which increase with every attempt. Ignores the rotation number in its name."""
    return tuple(map(int, re.findall(r"\d+", uri.rpartition("/")[0])))


def _keys(s3: Any, place: str) -> list[str]:
    location, prefix = split_uri(place)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=location.removeprefix("s3://"), Prefix=prefix)
    return [f"{location}/{each['Key']}" for page in pages for each in page.get("Contents", [])]


def _text(s3: Any, uri: str) -> bytes:
    location, key = split_uri(uri)
    body: bytes = s3.get_object(Bucket=location.removeprefix("s3://"), Key=key)["Body"].read()
    return gzip.decompress(body) if key.endswith(".gz") else body


@contextmanager
def _refusals(where: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError) as error:
        raise PlatformError(
            f"a log in {where} cannot be unpacked: {error}; EMR may be writing it, so try again"
        ) from None
    except CALL_ERRORS as error:
        raise PlatformError(
            f"the logs in {where} cannot be read: {describe(error)}; allow s3:ListBucket and s3:GetObject"
        ) from error
