"""What is removed from Spark's Python workers; that they work with it is tested with every query."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import zipimport
from pathlib import Path
from zipfile import ZipFile

import pytest

from kinesis_efo.tasks import latency
from kinesis_efo.tasks.latency import acknowledge_quickly, keep_freed_memory, keep_zip_directories, leave_imports_alone


def test_zip_directory_is_read_again_after_changes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, reads = zipimport.zipimporter.invalidate_caches, []

    def counted(self: zipimport.zipimporter) -> None:
        reads.append(self.archive)
        original(self)

    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", counted)
    keep_zip_directories()
    patched = zipimport.zipimporter.invalidate_caches
    keep_zip_directories()
    assert zipimport.zipimporter.invalidate_caches is patched, "once is enough"

    archive = tmp_path / "modules.zip"

    def write(*names: str) -> None:
        with ZipFile(archive, "w") as file:
            for name in names:
                file.writestr(f"{name}.py", "")

    write("one")
    importer = zipimport.zipimporter(str(archive))
    importer.invalidate_caches()
    importer.invalidate_caches()
    assert reads == [str(archive)]
    write("one", "two")
    importer.invalidate_caches()
    assert len(reads) == 2
    assert importer.find_spec("two") is not None
    archive.unlink()
    importer.invalidate_caches()
    assert importer.find_spec("one") is None


def test_garbage_collector_ignores_objects_before_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.setattr(latency, "_frozen_in", 0)
    leave_imports_alone()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    later = [[number] for number in range(1000)]
    leave_imports_alone()
    assert gc.get_freeze_count() <= frozen, "what came later is collected"
    del later


@pytest.mark.parametrize("collects", [True, False])
def test_imports_run_without_garbage_collection(collects: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with contextlib.suppress(ImportError), latency.without_collections():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
def test_connections_within_the_machine_acknowledge_at_once() -> None:
    before = acknowledge_quickly()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            assert acknowledge_quickly() == before + 2, "both ends; not the socket that listens"
            assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
            assert client.fileno() >= 0


_MAPPED = """
import ctypes

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
from kinesis_efo.tasks.latency import keep_freed_memory

def mapped():
    before = libc.mallinfo2().hblks
    batch = bytes(20 << 20)
    return libc.mallinfo2().hblks - before

first = mapped()
assert keep_freed_memory()
print(first, mapped())
batch = bytes(20 << 20)
del batch
print(libc.mallinfo2().keepcost >> 20)
"""


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="what it sets is glibc's")
def test_memory_of_one_batch_is_reused() -> None:
    said = subprocess.run([sys.executable, "-c", _MAPPED], check=True, capture_output=True, text=True).stdout.split()
    assert said[:2] == ["1", "0"], "a region of its own at first, and none once memory is kept"
    assert int(said[2]) >= 20, "MiB at the end of the heap that stay"


def test_without_glibc_memory_is_left_as_it_is() -> None:
    assert not keep_freed_memory(object())


_INSTALLED = """
import gc
import zipimport
from kinesis_efo.tasks import compat, latency

compat.SPARK_VERSION = latency.SPARK_VERSION = (4, 0)
before = zipimport.zipimporter.invalidate_caches
latency.install()
print(gc.get_freeze_count() > 10_000, zipimport.zipimporter.invalidate_caches is not before)
"""


@pytest.mark.parametrize(("tuning", "printed"), [("", "True True\n"), ("OFF", "False False\n")])
def test_workers_freeze_modules_and_keep_directories_unless_off(tuning: str, printed: str) -> None:
    given = {**os.environ, "KINESIS_EFO_TUNING": tuning}
    command = [sys.executable, "-c", _INSTALLED]
    assert subprocess.run(command, env=given, check=True, capture_output=True, text=True).stdout == printed


_DAEMON = """
import sys
from types import SimpleNamespace
from kinesis_efo.spark import daemon
from kinesis_efo.tasks import latency

latency.keep_freed_memory = lambda: print("tuned")
sys.modules["pyspark.daemon"] = SimpleNamespace(manager=lambda: print("forks"))
daemon.main()
"""


def test_the_daemon_tunes_itself_before_it_forks_workers() -> None:
    done = subprocess.run([sys.executable, "-c", _DAEMON], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["tuned", "forks"]
