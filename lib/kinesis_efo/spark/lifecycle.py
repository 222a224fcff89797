"""Clean-up when Spark ends the reader's process: it sends SIGTERM and does not call `stop()`. Relies on nothing."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

log = logging.getLogger(__name__)


def on_sigterm(cleanup: Callable[[], None]) -> None:
    """Run `cleanup` once when this process gets SIGTERM, and then end it as the signal would have.

    Does nothing outside the main thread, where Python takes no handlers: there, whoever started us calls `stop()`.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        # Spark sends the signal twice; the second must not cut the clean-up short.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            cleanup()
        except Exception:
            log.exception("could not stop cleanly")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
