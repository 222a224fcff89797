"""Checks of this machine and of its connection to AWS: credentials, endpoint, clock, Spark and Java."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import aiobotocore
from botocore.exceptions import ClientError

from kinesis_efo import __version__
from kinesis_efo.aws import refuse_old_sdk
from kinesis_efo.clock import Clock
from kinesis_efo.driver.java import find_java
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.records import core
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown, Finding, Status, finding

MOST_SKEW: Final = 1.0
"""Maximum clock error in seconds. AWS accepts 300 s, but `LATEST` and the lag depend on this clock."""

CREDENTIALS: Final = "credentials"
"""Subject of the credentials check."""

PATH: Final = "HTTP path"
"""Subject of the connection check, on which all other checks depend."""

STS_SECONDS: Final = 5.0
"""Timeout in seconds for the call to STS."""

OLDEST_SPARK: Final = (4, 0)

_MINOR: Final = "{}.{}".format(*sys.version_info)
_PROBE: Final = """
import sys
try:
    from kinesis_efo import __version__ as library
except ImportError:
    library = "-"
print("{}.{}".format(*sys.version_info), library)
"""


async def identity(clients: Clients) -> Finding:
    """Check that there are credentials; the result shows the ARN of their identity."""

    async def look() -> str:
        sts = await clients.client("sts")
        # Use a short timeout: queries do not need STS, and a private network may have an endpoint only for Kinesis.
        return str((await asyncio.wait_for(sts.get_caller_identity(), STS_SECONDS))["Arn"])

    return await finding(CREDENTIALS, look(), action="sts:GetCallerIdentity")


async def path_and_clock(clients: Clients, clock: Clock) -> list[Finding]:
    """Check that Kinesis responds over HTTP, and that this machine's clock is right."""
    kinesis = await clients.client("kinesis")
    endpoint = kinesis.meta.endpoint_url
    headers: dict[str, str] = {}
    times: list[float] = []

    async def reach() -> str:
        # Measure the second call: the first includes the time to connect and to get credentials.
        for _ in range(2):
            began = clock.monotonic()
            try:
                answer = await kinesis.list_streams(Limit=1)
            except ClientError as error:
                # An error response also proves that the connection works.
                answer = error.response
            times.append(clock.monotonic() - began)
        headers.update(answer["ResponseMetadata"]["HTTPHeaders"])
        return f"{endpoint} answers in {times[-1] * 1000:.0f} ms (the first call took {times[0] * 1000:.0f} ms)"

    async def compare() -> str:
        if "date" not in headers:
            raise CheckUnknown("AWS did not return the time", "fix the path to the endpoint first")
        skew = clock.time() - times[-1] / 2 - parsedate_to_datetime(headers["date"]).timestamp()
        # The Date header is rounded down to whole seconds, so the clock may be up to 1 s ahead of it.
        off = max(0.0, -skew, skew - 1)
        if off > MOST_SKEW:
            raise CheckFailed(
                f"this machine's clock is {off:.0f} s {'ahead of' if skew > 0 else 'behind'} AWS",
                "synchronize it (chrony, NTP): AWS refuses signatures from 300 s on",
            )
        return f"within {MOST_SKEW:.0f} s of AWS"

    path = await finding(PATH, reach(), action="kinesis:ListStreams")
    if path.status is not Status.PASSED:
        path = no_path(f"{endpoint}: {path.detail}")
    return [path, await finding("clock", compare(), action="")]


def no_path(detail: str) -> Finding:
    """Return the outcome of the connection check for a connection that failed."""
    fix = "check region, DNS, proxy and firewall on the way to the endpoint, and AWS_ENDPOINT_URL or --endpoint-url if you gave one"
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        fix = "add the issuer's certificate to the file of CA certificates: the server's issuer, or that of a proxy that intercepts TLS"
    return Finding(PATH, Status.FAILED, detail, fix)


def sdk(found: str = aiobotocore.__version__) -> Finding:
    """Check that the AWS SDK verifies certificates."""
    try:
        refuse_old_sdk(found)
    except ConfigurationError as error:
        what, _, fix = str(error).rpartition("; ")
        return Finding("AWS SDK", Status.FAILED, what, fix)
    return Finding("AWS SDK", Status.PASSED, f"aiobotocore {found}")


def spark(installed: Callable[[str], str] = version) -> Finding:
    """Check that PySpark, if it is installed here, can run the source.

    `installed` returns the version of a package, or raises PackageNotFoundError.
    """
    try:
        found = installed("pyspark")
    except PackageNotFoundError:
        fix = "none if the cluster has it: the source needs Spark 4.0 or later"
        return Finding("Spark", Status.UNKNOWN, "PySpark is not installed here", fix)
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_SPARK:
        fix = "use Spark 4.0 or later: older ones have no Python data sources"
        return Finding("Spark", Status.FAILED, f"PySpark {found}", fix)
    return Finding("Spark", Status.PASSED, f"PySpark {found}")


def pythons(
    environment: Mapping[str, str] = os.environ,
    installed: Callable[[str], str] = version,
    here: tuple[str, str] = (_MINOR, __version__),
) -> list[Finding]:
    """Check that the Python interpreters that Spark would start from here have this library. Empty if PySpark is not installed.

    `here` has the versions of Python and this library in this process, which a driver started from here would also have. `installed`
    returns the version of a package, or raises PackageNotFoundError.
    """
    try:
        installed("pyspark")
    except PackageNotFoundError:
        return []
    workers = environment.get("PYSPARK_PYTHON") or "python3"
    # Spark's JVM looks up Python data sources with the driver's Python (PythonUtils.defaultPythonExec); tasks run with the workers' Python.
    programs = dict.fromkeys((environment.get("PYSPARK_DRIVER_PYTHON") or workers, workers))
    fix = (
        f"activate the environment of the library, or set PYSPARK_PYTHON={sys.executable} where Spark starts, and unset "
        "PYSPARK_DRIVER_PYTHON; none if jobs do not start from this shell"
    )
    seen = [_python(program, environment, here) for program in programs]
    wrong = [detail for passed, detail in seen if not passed]
    detail = "; ".join(wrong or [detail for _, detail in seen])
    return [Finding("Spark's Python", Status.FAILED if wrong else Status.PASSED, detail, fix if wrong else "")]


def _python(program: str, environment: Mapping[str, str], here: tuple[str, str]) -> tuple[bool, str]:
    """Return whether a Python interpreter can run tasks of a driver with the versions `here`, and the details."""
    path = shutil.which(program, path=environment.get("PATH", ""))
    if path is None:
        return False, f"{program!r}, which Spark would start, does not exist"
    try:
        ran = subprocess.run(
            [path, "-c", _PROBE], env=dict(environment), capture_output=True, text=True, timeout=30, check=True
        )
        minor, library = ran.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return False, f"{path}, which Spark would start, is not a working Python: {error}"
    if library == "-":
        return False, f"{path}, which Spark would start, has no kinesis_efo: load() ends with DATA_SOURCE_NOT_FOUND"
    if (minor, library) != here:
        return False, f"{path} has Python {minor} and kinesis_efo {library}, the driver {here[0]} and {here[1]}"
    return True, f"Python {minor} with kinesis_efo {library} ({path})"


def decoding(chosen: core.Choice = core.CHOSEN) -> Finding:
    """Report which decoder is used. An installed native core that cannot be used is not a failure, because Python decodes instead."""
    return Finding("decoding", Status.UNKNOWN if chosen.fix else Status.PASSED, chosen.detail, chosen.fix)


def java(environment: Mapping[str, str] = os.environ) -> Finding:
    """Check that Java, if it is installed here, can run Spark 4. `environment` is read for `JAVA_HOME` and `PATH`."""
    found = find_java(environment)
    status = {True: Status.PASSED, False: Status.FAILED, None: Status.UNKNOWN}[found.runs_spark]
    return Finding("Java", status, found.detail, found.fix)
