"""What holds for all tests: how Hypothesis and Spark's JVMs are set, and which tests run in one process.

Hypothesis' examples are never timed, since the machines are noisy; in CI they are the same every time.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from tests.support.class_archive import jvm_options
from tests.support.missing import pytest_terminal_summary as pytest_terminal_summary

settings.register_profile("kinesis-efo", settings.get_profile("ci" if "CI" in os.environ else "default"), deadline=None)
settings.load_profile("kinesis-efo")

os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm_options())

# A shell without job control ignores SIGINT for what it starts in the background, and programs that tests interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the tests out: slow ones first and each by itself, those of the Spark session in one process, others by file.

    What is long and comes last keeps one process busy while the others have nothing to do; a session is a JVM.
    """
    order = {}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            order[item], group = 1, "the Spark session"
        elif item.get_closest_marker("slow"):
            order[item] = 0
            continue
        else:
            order[item], group = 2, str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=order.__getitem__)
