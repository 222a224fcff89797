"""Handles signals. Some commands run until SIGTERM, Ctrl-C or the closing of the terminal; the others end on Ctrl-C."""

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
    """How Ctrl-C ends the process by force if it is still running a moment later. A command sets this before it starts to work.

    Attributes:
        code: The exit code with which the process is ended.
        handled: How many times Ctrl-C does not end the process by force, because the command handles it and completes its work.
    """

    code: ExitCode = ExitCode.INTERRUPTED
    handled: int = 0


forced_end: Final = ForcedEnd()


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Context manager that ends the process within a second after Ctrl-C, whatever its threads are waiting for.

    Python runs its own handler only after the main thread's system call returns, and exits only after worker threads have ended. Both can
    take long, for example if a name server does not respond.
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
    """Raised if a signal ends the command. Like KeyboardInterrupt, not derived from Exception: SDKs would treat it as a failed request."""


class SignalWaiter:
    """Handles SIGTERM, SIGINT and SIGHUP, and waits for them."""

    def __init__(self) -> None:
        self._raises = False
        # Python writes to this pipe as soon as any thread receives a signal, which wakes `wait`. The main thread runs the handler later.
        self._asked, ask = os.pipe()
        os.set_blocking(ask, False)
        signal.set_wakeup_fd(ask)
        # A command that was started with nohup should outlive the terminal.
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            signal.signal(number, self._handle)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, at most `seconds`. Returns whether there was a signal."""
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
