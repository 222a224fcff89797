"""Finds this host's Java installation, and checks whether Spark 4 runs on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""Oldest Java version that Spark 4 runs on (Spark's documentation, "Overview")."""
_TOO_NEW: Final = 24
"""First Java version on which Spark 4.0 and 4.1 do not run: it lacks the security manager, which their Hadoop uses."""
_FIX: Final = f"point JAVA_HOME to a Java of version {OLDEST} or later"


@dataclass(frozen=True, slots=True)
class Java:
    """A host's Java installation."""

    runs_spark: bool | None  # Whether Spark 4 runs on this Java; None if unknown
    detail: str
    fix: str = ""  # What to do to get a suitable Java; empty if this Java is suitable

    @property
    def remedy(self) -> str:
        """The error message for a missing or unsuitable Java. Explains how to install a suitable version."""
        return (
            f"Spark needs Java 17 or 21, but {self.detail}. Install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
            "macOS: brew install openjdk@17; else https://adoptium.net) and, if it is not the java on the PATH, point JAVA_HOME to it"
        )


def find_java(environment: Mapping[str, str] = os.environ, spark: str | None = None) -> Java:
    """Find the Java that Spark would start, from `JAVA_HOME` and `PATH`. `spark` is Spark's version, by default the installed PySpark's."""
    home = environment.get("JAVA_HOME")
    program = str(Path(home) / "bin/java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if program is None:
        return Java(None, "there is no Java here", f"none if the cluster has it: Spark 4 needs Java {OLDEST} or later")
    try:
        text = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Java(False, f"{program} does not run: {error}", _FIX)
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if match is None:
        return Java(None, f"{program} does not report its version: {text[:80]!r}", _FIX)
    version = int(match[1])
    if version >= _TOO_NEW and (spark := spark or _pyspark()).startswith(("4.0.", "4.1.")):
        return Java(
            False, f"Java {version} ({program}) is too new for Spark {spark}", "point JAVA_HOME to Java 17 or 21"
        )
    fits = version >= OLDEST
    return Java(fits, f"Java {version} ({program})", "" if fits else _FIX)


def _pyspark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # for example on EMR, where PySpark is a part of Spark and not a package
        return ""
