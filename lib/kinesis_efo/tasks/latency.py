"""Removes delays and unnecessary work in Spark's Python workers, with four measures, where the system supports them:

1. The JVM sends a task's command and then its partition. Nagle's algorithm delays the partition until the worker's kernel acknowledges the
   command, which takes 40 ms. On Linux, setting `TCP_QUICKACK` after the command makes the kernel acknowledge it immediately.
2. Spark 4.0 invalidates import caches for every task, so Python (3.10+) reads the directory of pyspark.zip again, which takes 30 ms.
   `keep_zip_directories` skips this while the zip is unchanged, as Spark 4.2+ does.
3. Spark collects garbage after every task, visiting all imported objects: 20 ms of CPU time. `gc.freeze` excludes these objects.
4. glibc returns memory to the system after each batch, and each page of the next batch causes a page fault: a tenth of a worker's CPU time
   under full load. With `mallopt`, glibc retains up to 32 MiB (https://man7.org/linux/man-pages/man3/mallopt.3.html).

Measures 1 to 3 are applied in every worker, when it unpickles a reader (`__setstate__`) between the command and the partition. Measure 4
affects all code in a worker, so it is only applied in workers of `kinesis_efo.spark.daemon`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import socket
import sys
import zipimport
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from kinesis_efo.tasks.compat import SPARK_VERSION

_FDS = Path("/proc/self/fd")
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
"""Bytes of freed memory that glibc is to retain: the largest value that it accepts for `_MMAP_THRESHOLD`."""
_SWITCH: Final = "KINESIS_EFO_TUNING"
_frozen_in = 0
"""Id of the process in which `leave_imports_alone` was called. Avoids `gc.get_freeze_count`, which takes longer than a small task."""


def install() -> None:
    """Speed up this worker's next task: set `TCP_QUICKACK`, exclude imported objects from garbage collection, cache zip directories."""
    acknowledge_quickly()
    if os.environ.get(_SWITCH, "").lower() != "off":
        leave_imports_alone()
        if SPARK_VERSION < (4, 2):
            keep_zip_directories()


def acknowledge_quickly() -> int:
    """Set `TCP_QUICKACK` on this process's loopback connections; return their count. The kernel resets the option after a while."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not sys.platform.startswith("linux"):
        return 0
    count = 0
    for entry in os.listdir(_FDS):  # noqa: PTH208 - names are all that is needed
        with contextlib.suppress(OSError):
            if str((_FDS / entry).readlink()).startswith("socket:"):
                count += _acknowledge_quickly(int(entry), option)
    return count


def _acknowledge_quickly(descriptor: int, option: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        peer = connection.getpeername()[0]
        if not peer.startswith(("127.", "::1", "::ffff:127.")):
            return 0
        connection.setsockopt(socket.IPPROTO_TCP, option, 1)
        return 1


def leave_imports_alone() -> None:
    """Exclude all existing objects of this process from garbage collection. Only the first call in a process has an effect.

    Garbage that exists now is never freed, but there is little: Spark has just run the collector, or the process is new.
    """
    global _frozen_in  # noqa: PLW0603 - what the process's own collector is told
    if _frozen_in != os.getpid():
        gc.freeze()
        _frozen_in = os.getpid()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Turn the garbage collector off in a `with` block that imports modules, which saves a tenth of the import time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@cache
def keep_freed_memory(libc: Any = None) -> bool:
    """Make glibc retain up to 32 MiB of this process's freed memory for the next batch. Returns whether that is supported."""
    set_option = getattr(libc or ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    # Set both thresholds, because glibc stops adjusting both automatically once one is set.
    return bool(set_option(_MMAP_THRESHOLD, _KEPT_BYTES)) and bool(set_option(_TRIM_THRESHOLD, _KEPT_BYTES))


def keep_zip_directories() -> None:
    """Keep `zipimport`'s cached directory of each zip file until the file changes. Spark before 4.2 drops the cache for every task."""
    importer: Any = zipimport.zipimporter
    original = importer.invalidate_caches
    if getattr(original, "keeps_directory", False):
        return
    stamps: dict[str, tuple[int, int]] = {}

    def invalidate_caches(self: Any) -> None:
        try:
            status = Path(self.archive).stat()
            stamp = (status.st_mtime_ns, status.st_size)
        except OSError:
            original(self)
            return
        if stamps.get(self.archive) != stamp:
            original(self)
            stamps[self.archive] = stamp

    invalidate_caches.keeps_directory = True  # type: ignore[attr-defined]
    importer.invalidate_caches = invalidate_caches
