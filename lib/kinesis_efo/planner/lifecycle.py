"""Keeps the process that Spark starts for a stream reader alive until its connection to Spark closes, even if it receives a signal.

When a query stops, Spark closes the connection and sends SIGTERM right after. This signal would end the process before `stop()` has
released the leases. A signal to the whole process group (Ctrl-C in a terminal, YARN, systemd) may arrive while the driver is still
finishing its micro-batch.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

_SPARKS_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def end_with_spark(asked: threading.Event, when_asked: Callable[[], None]) -> None:
    """Handle SIGTERM and SIGINT in this process, so that it lives until Spark closes the connection.

    On the first SIGTERM, sets `asked` and calls `when_asked` in a separate thread. Does nothing in processes that Spark did not start for a
    reader: there, the code that created the reader calls `stop()`.
    """
    if is_sparks_process() and threading.current_thread() is threading.main_thread():
        log_to_stderr()

        # Python may not run its signal handlers while the main thread waits for Spark. So read signals from the wakeup descriptor.
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)

        def watch() -> None:
            while signal.SIGTERM not in receiver.recv(64):
                pass
            asked.set()
            when_asked()

        threading.Thread(target=watch, name="kinesis-efo end", daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def log_to_stderr() -> None:
    """Log to stderr, which is the driver's stderr, unless logging is configured."""
    library = logging.getLogger("kinesis_efo")
    if not library.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        library.addHandler(handler)
        library.setLevel(os.environ.get("KINESIS_EFO_LOG_LEVEL", "INFO").upper())


def is_sparks_process() -> bool:
    """Whether Spark started this process for a stream reader."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _SPARKS_PROCESS
