"""Replaces Spark's daemon for Python workers (`--conf spark.python.daemon.module=kinesis_efo.spark.daemon`).

This daemon imports the modules that tasks need, and then runs Spark's daemon. Workers are forks of it, so they share the memory of these
modules, and start without importing them again. It also makes workers retain freed memory (see latency.py).

Forking is only safe in a process with a single thread. Therefore, the threads of Arrow's allocator and of numpy's linear algebra are turned
off. If there are still several threads, Spark's daemon is started in a new interpreter, without preloaded modules.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

PRELOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "kinesis_efo.spark.source",
    "kinesis_efo.spark.stream_reader",
    "kinesis_efo.records.decoder",
    "encodings.ascii",
)
"""The modules that a worker would otherwise import for its first task. Modules that the installed Spark lacks are skipped."""
_SPARKS_OWN: Final = "pyspark.daemon"
_NO_THREADS: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
_THREADS: Final = Path("/proc/self/task")


def preload() -> bool:
    """Import the modules that workers need. Returns whether this process can be forked safely, because it has a single thread."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)
    return not _THREADS.exists() or len(list(_THREADS.iterdir())) == 1


def main() -> None:
    if not preload():
        os.execv(sys.executable, [sys.executable, "-m", _SPARKS_OWN, *sys.argv[1:]])
    import_module("kinesis_efo.tasks.latency").keep_freed_memory()
    # Exclude all objects from garbage collection: a collection in a worker would modify, and thus copy, memory shared with the daemon.
    gc.collect()
    gc.freeze()
    import_module(_SPARKS_OWN).manager()


if __name__ == "__main__":
    main()
