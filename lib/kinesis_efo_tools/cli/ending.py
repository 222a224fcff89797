"""Handles signals: ends a command within a second after Ctrl-C, or lets it run until SIGTERM, SIGINT or SIGHUP."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kinesis_efo_tools.cli.output import ExitCode

_GRACE_SECONDS: Final = 0.8


@dataclass
class ForcedEnd:
    """Settings for ending the process by force, if it is still running a moment after Ctrl-C. A command sets them before it starts to work.

    Attributes:
        code: Exit code of the process if it is ended by force.
        handled: How often the command handles Ctrl-C itself, to complete its work, before Ctrl-C ends the process by force.
    """

    code: ExitCode = ExitCode.INTERRUPTED
    handled: int = 0


forced_end: Final = ForcedEnd()


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Context manager that ends the process within a second after Ctrl-C, whatever its threads are waiting for.

    Python calls its own signal handler only after the main thread's system call returns, and exits only after worker threads have ended.
    Both can take long, for example if a name server does not respond.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        with received:
            while (number := received.recv(1)) and (number[0] != signal.SIGINT or forced_end.handled > 0):
                forced_end.handled -= number[0] == signal.SIGINT
        if number:
            time.sleep(_GRACE_SECONDS)
            os._exit(forced_end.code)

    threading.Thread(target=watch, name="kinesis-efo interrupt", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        written.close()


class EndRequest(BaseException):
    """Raised if a signal ends the command. Not derived from Exception, which SDKs would treat as a failed request."""


class SignalWaiter:
    """Handles SIGTERM, SIGINT and SIGHUP, and waits for them."""

    def __init__(self) -> None:
        self._raises = False
        # Python writes to this pipe as soon as any thread receives a signal; this wakes `wait`. `_handle` runs later, in the main thread.
        self._asked, ask = os.pipe()
        os.set_blocking(ask, False)
        signal.set_wakeup_fd(ask)
        # nohup ignores SIGHUP; leave it ignored, so that the command outlives the terminal.
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            signal.signal(number, self._handle)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, for at most `seconds` (None: forever). Returns whether a signal was received."""
        return bool(select.select([self._asked], [], [], seconds)[0])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Context manager in which a signal raises `EndRequest` immediately."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, *_: object) -> None:
        if self._raises:
            self._raises = False
            raise EndRequest
