"""What holds for all tests: how Hypothesis, Terraform and Spark's JVMs are set, and which tests run in one process.

Hypothesis' examples are never timed, since the machines are noisy. `make test` tries a few of each test, in CI the same every time;
`make seeds` tries many: `KINESIS_EFO_EXAMPLES` says how many.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from zlib import crc32

import botocore.hooks
import botocore.loaders
import botocore.session
import pytest
from hypothesis import settings

from tests.support.class_archive import jvm_options
from tests.support.examples import EXAMPLES
from tests.support.missing import pytest_terminal_summary as pytest_terminal_summary

settings.register_profile(
    "kinesis-efo", settings.get_profile("ci" if "CI" in os.environ else "default"), deadline=None, max_examples=EXAMPLES
)
settings.load_profile("kinesis-efo")

UNIT = Path(__file__).parent / "unit"

os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm_options())
# NumPy's threads would spin on the two cores without anything to compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Each client reads the certificates that it trusts, also one that speaks no TLS: those of the world's authorities take 20 ms of CPU.
# Tests with TLS name their own authority.
os.environ["AWS_CA_BUNDLE"] = str(Path(__file__).parent / "support" / "nobody.pem")
# Sessions of the SDK share what they have read of its descriptions of services and endpoints; each would take 0.3 s of CPU for it.
botocore.session.create_loader = cache(botocore.loaders.create_loader)
# Each session looks for the former names of 65 services in the names of its events, which takes 6 ms: tests use two of these services.
botocore.hooks.EVENT_ALIASES = {old: botocore.hooks.EVENT_ALIASES[old] for old in ("elasticmapreduce", "logs")}
# Terraform ends before its garbage matters: a sixth of its CPU time went into collecting it.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "512MiB")

# A shell without job control ignores SIGINT for what it starts in the background, and programs that tests interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Forgive older Pythons a TLS socket whose other side has gone before the handshake: they leave it open until it is collected."""
    if sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2):  # python/cpython#113280
        config.addinivalue_line("filterwarnings", "ignore:unclosed <ssl.SSLSocket (?!.*raddr):ResourceWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the tests out by file, those of the Spark session in two processes, file by file, and those of the cluster in one.

    A session is a JVM, a cluster is six, and files have fixtures that take long. What is long comes first: coming last, it would
    keep one process busy while the others have nothing to do. This runs before pytest-xdist's own hook, which reads the groups.
    """
    quick = {item.path for item in items if UNIT in item.path.parents}
    quick -= {item.path for item in items if item.get_closest_marker("slow")}
    order = {item: 3 if item.path in quick else 2 for item in items}
    group = {item: str(item.path) for item in items}
    # One process with all tests of the session would be busy long after the others have ended.
    for name, processes in (("cluster", 1), ("spark", 2)):
        sharing = [item for item in items if name in getattr(item, "fixturenames", ())]
        files = sorted({item.path for item in sharing})
        for item in sharing:
            group[item] = f"the fixture {name}, process {1 + files.index(item.path) % processes}"
            order[item] = 1 if name == "spark" else 0
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group[item]))
    # What waits and what computes come mixed: one kind after the other, the first would leave a core without work.
    mixed = {item: crc32(item.nodeid.partition("::")[0].encode()) if order[item] > 1 else 0 for item in items}
    items.sort(key=lambda item: (order[item], mixed[item]))


_MOST_GROWTH_BYTES = 128 << 20
_kept_bytes = sys.maxsize


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Give large data of tests back to the system: it stays in cycles of few objects, and in the allocator's heaps.

    The garbage collector counts objects, so it does not see that they are large.
    """
    global _kept_bytes  # noqa: PLW0603
    if sys.platform == "linux":
        if _resident_bytes() > _kept_bytes + _MOST_GROWTH_BYTES:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            _kept_bytes = _resident_bytes()
        _kept_bytes = min(_kept_bytes, _resident_bytes())


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep long texts out of the names of tests: each process sends the names of all tests, and those of some would have megabytes."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in docstrings only where there are any: looking at every test's took a tenth of the time of collecting."""
    found = yield
    if b">>>" in file_path.read_bytes():
        return found
    return [each for each in found if type(each) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what is collected here: it stays, and looking at it again and again took a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that the groups count, and keep the garbage collector off what lives as long as the process."""
    grouping = getattr(session.config.option, "loadgroup", False)
    if grouping and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError(
            "pytest-xdist ignores the groups of tests: every process would start a Spark of its own"
        )
    gc.collect()
    gc.freeze()
