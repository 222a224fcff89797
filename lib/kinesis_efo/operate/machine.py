"""Checks of this machine and of the way from it to AWS: credentials, endpoint, clock, Spark and Java.

Relies on clients that are passed in; what is asked of the machine (programs, packages) is passed in as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from botocore.exceptions import ClientError

from kinesis_efo.clock import Clock
from kinesis_efo.operate.access import Clients
from kinesis_efo.operate.findings import CheckFailed, CheckUnknown, Finding, Status, finding

MOST_SKEW: Final = 5.0
"""Seconds. AWS refuses signatures from 300 s on; but a query that starts at LATEST starts at this machine's time."""

PATH: Final = "HTTP path"
"""Subject of the line on which all others depend."""

OLDEST_SPARK: Final = (4, 0)
OLDEST_JAVA: Final = 17
"""What Spark 4 runs on (Spark's documentation, "Overview")."""


async def identity(clients: Clients) -> Finding:
    """Whether there are credentials, and whose they are."""

    async def look() -> str:
        sts = await clients.client("sts")
        return str((await sts.get_caller_identity())["Arn"])

    return await finding("credentials", look(), action="sts:GetCallerIdentity")


async def path_and_clock(clients: Clients, clock: Clock) -> list[Finding]:
    """Whether Kinesis answers over HTTP, how fast, and how far this machine's clock is off."""
    kinesis = await clients.client("kinesis")
    endpoint = kinesis.meta.endpoint_url
    headers: dict[str, str] = {}
    times: list[float] = []

    async def reach() -> str:
        # The first call also connects and gets credentials; the second shows what a call takes.
        for _ in range(2):
            began = clock.monotonic()
            try:
                answer = await kinesis.list_streams(Limit=1)
            except ClientError as error:
                # A refusal is an answer too: the path is there.
                answer = error.response
            times.append(clock.monotonic() - began)
        headers.update(answer["ResponseMetadata"]["HTTPHeaders"])
        return f"{endpoint} answers in {times[-1] * 1000:.0f} ms (the first call took {times[0] * 1000:.0f} ms)"

    async def compare() -> str:
        if "date" not in headers:
            raise CheckUnknown("AWS did not tell the time", "see what is wrong with the endpoint first")
        skew = clock.time() - times[-1] / 2 - parsedate_to_datetime(headers["date"]).timestamp()
        # The header has whole seconds, cut off.
        off = max(0.0, -skew, skew - 1)
        if off > MOST_SKEW:
            raise CheckFailed(
                f"this machine's clock is {off:.0f} s {'ahead of' if skew > 0 else 'behind'} AWS",
                "synchronize it (chrony, NTP): AWS refuses signatures from 300 s on, and LATEST means this machine's time",
            )
        return f"within {MOST_SKEW:.0f} s of AWS"

    path = await finding(PATH, reach(), action="kinesis:ListStreams")
    if path.status is not Status.PASSED:
        detail = f"{endpoint}: {path.detail}"
        path = Finding(
            path.subject, Status.FAILED, detail, "check region, DNS, proxy and firewall on the way to the endpoint"
        )
    return [path, await finding("clock", compare(), action="")]


def spark(installed: Callable[[str], str] = version) -> Finding:
    """Whether the PySpark here, if there is one, can run the source.

    Args:
        installed: The version of a package, or PackageNotFoundError.
    """
    try:
        found = installed("pyspark")
    except PackageNotFoundError:
        fix = "nothing, if the cluster brings it: the source needs Spark 4.0 or later"
        return Finding("Spark", Status.UNKNOWN, "PySpark is not installed here", fix)
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_SPARK:
        fix = "use Spark 4.0 or later: older ones have no Python data sources"
        return Finding("Spark", Status.FAILED, f"PySpark {found}", fix)
    return Finding("Spark", Status.PASSED, f"PySpark {found}")


def java(environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether the Java here, if there is one, can run Spark 4.

    Args:
        environment: Has `JAVA_HOME` and `PATH`.
    """
    home = environment.get("JAVA_HOME")
    program = str(Path(home) / "bin/java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if program is None:
        fix = "nothing, if the cluster brings it: Spark 4 needs Java 17 or later"
        return Finding("Java", Status.UNKNOWN, "there is no Java here", fix)
    fix = "point JAVA_HOME to a Java of version 17 or later"
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", Status.FAILED, f"{program} does not run: {error}", fix)
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        return Finding("Java", Status.UNKNOWN, f"{program} does not say its version: {said[:80]!r}", fix)
    good = int(match[1]) >= OLDEST_JAVA
    status, fix = (Status.PASSED, "") if good else (Status.FAILED, fix)
    return Finding("Java", status, f"Java {match[1]} ({program})", fix)
