"""What holds for all tests.

Hypothesis' examples are never timed, since the machines are noisy; in CI they are the same every time. The JVMs live too
short for the optimizing compiler to pay: without it a Spark test takes half the CPU.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("kinesis-efo", settings.get_profile("ci" if "CI" in os.environ else "default"), deadline=None)
settings.load_profile("kinesis-efo")

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
