"""What holds for all tests.

Hypothesis' examples are never timed, since the machines are noisy; in CI they are the same every time.
"""

from __future__ import annotations

import os

from hypothesis import settings

from tests.support.class_archive import jvm_options

settings.register_profile("kinesis-efo", settings.get_profile("ci" if "CI" in os.environ else "default"), deadline=None)
settings.load_profile("kinesis-efo")

os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm_options())
