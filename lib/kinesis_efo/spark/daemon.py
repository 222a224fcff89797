"""Loads the modules that tasks import, then runs Spark's daemon for Python workers. Workers are forks, so they need not import them again.

It also changes how all code in these workers uses memory (latency.py).

`--conf spark.python.daemon.module=kinesis_efo.spark.daemon` selects this daemon. Workers share the memory of the loaded modules.

Forking is safe only if no other thread runs, so the threads of Arrow's allocator and of numpy's linear algebra are turned off. If the
process still has several threads, it runs Spark's daemon instead.
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
"""The modules that a worker's first task imports. Modules that are missing in the installed Spark are skipped."""
_SPARKS_OWN: Final = "pyspark.daemon"
_NO_THREADS: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
_THREADS: Final = Path("/proc/self/task")


def preload() -> bool:
    """Import the modules that workers need. Returns whether this process can be forked safely afterwards."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)
    return not _THREADS.exists() or len(list(_THREADS.iterdir())) == 1


def main() -> None:
    """Run the daemon."""
    if not preload():
        os.execv(sys.executable, [sys.executable, "-m", _SPARKS_OWN, *sys.argv[1:]])
    import_module("kinesis_efo.tasks.latency").keep_freed_memory()
    # Freeze the remaining objects: a later collection in a forked worker would write to the shared pages and so copy them.
    gc.collect()
    gc.freeze()
    import_module(_SPARKS_OWN).manager()


if __name__ == "__main__":
    main()
