"""Waits for SIGTERM, Ctrl-C or the end of the terminal, in commands that run until then."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class EndRequest(BaseException):
    """A signal asked the command to end. Not an `Exception` (like KeyboardInterrupt), which SDKs would treat as a failed request."""


class SignalWaiter:
    """Handles SIGTERM, SIGINT and SIGHUP, and waits for them."""

    def __init__(self) -> None:
        self._raises = False
        # The main thread runs the handler, but another thread may get the signal, so the main thread waits on a pipe.
        self._asked, ask = os.pipe()
        os.set_blocking(ask, False)
        signal.set_wakeup_fd(ask)
        # A command that was started with nohup should outlive the terminal.
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            signal.signal(number, self._handle)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, at most `seconds`. Returns whether there was one."""
        return bool(select.select([self._asked], [], [], seconds)[0])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this context, a signal raises `EndRequest`."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, *_: object) -> None:
        if self._raises:
            self._raises = False
            raise EndRequest
