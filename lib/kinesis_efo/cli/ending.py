"""Waits for SIGTERM, Ctrl-C or the end of the terminal, in commands that go on until then."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Asked(BaseException):
    """A signal asked for the end. Like KeyboardInterrupt no `Exception`, which SDKs would take for a failed request."""


class End:
    """Takes over SIGTERM, SIGINT and SIGHUP, and waits for them."""

    def __init__(self) -> None:
        self._raises = False
        # A handler runs in the main thread, but any thread may get the signal, and the main one would not wake up.
        self._asked, ask = os.pipe()
        os.set_blocking(ask, False)
        signal.set_wakeup_fd(ask)
        # Who starts a command with nohup wants it to outlive the terminal.
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            signal.signal(number, self._handle)

    def wait(self, seconds: float | None = None) -> bool:
        """Return once it was asked for, or after some seconds.

        Returns:
            Whether it was asked for.
        """
        return bool(select.select([self._asked], [], [], seconds)[0])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this context, a signal raises `Asked`."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, *_: object) -> None:
        if self._raises:
            self._raises = False
            raise Asked
