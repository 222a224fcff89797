"""The process that Spark keeps for a stream reader ends with its connection to Spark, not with a signal. Relies on nothing.

When a query stops, Spark closes the connection and sends SIGTERM right after: without care the signal wins, and `stop()`, which
releases the leases, is cut short or never called. A signal to the whole process group (Ctrl-C in a terminal, YARN, systemd)
comes while the driver may still want to finish its micro-batch. In both cases the end of the connection is what counts.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

_SPARKS_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def end_with_spark(when_asked: Callable[[], None]) -> threading.Event:
    """Leave the end of this process to its connection to Spark.

    Does nothing elsewhere than in the process that Spark keeps for a reader: whoever made the reader calls `stop()`.

    Args:
        when_asked: Runs once, in a thread of its own, after the process was asked to end.

    Returns:
        Set when Spark, or anybody, asks this process to end. Calls that may take long should return then.
    """
    asked = threading.Event()
    if _is_sparks_process() and threading.current_thread() is threading.main_thread():
        _log_to_stderr()

        def ask(*_: object) -> None:
            if not asked.is_set():
                asked.set()
                threading.Thread(target=when_asked, name="kinesis-efo end", daemon=True).start()

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return asked


def _log_to_stderr() -> None:
    """Nobody else configures logging in this process; what it writes to stderr is the driver's."""
    library = logging.getLogger("kinesis_efo")
    if not library.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        library.addHandler(handler)
        library.setLevel(os.environ.get("KINESIS_EFO_LOG_LEVEL", "INFO").upper())


def _is_sparks_process() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _SPARKS_PROCESS
