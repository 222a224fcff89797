"""Stores the error that ends a run or a fetcher. All parts of the run or fetcher share one `Failure`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError

logger = logging.getLogger(__name__)


def stopped() -> FetcherUnreachableError:
    """Return the error for calls that arrive after their query has ended."""
    return FetcherUnreachableError("the fetcher has stopped: its query has ended")


class Failure:
    """Stores the first error. It belongs to one event loop and is not thread-safe, but any thread may read `error`.

    >>> failure = Failure()
    >>> failure.adopt(KinesisEfoError("first"))
    >>> failure.adopt(KinesisEfoError("second"))
    >>> failure.raise_if_set()
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.KinesisEfoError: first
    """

    def __init__(self) -> None:
        self.error: KinesisEfoError | None = None
        self._said = True
        self._wakes: list[Callable[[], None]] = []

    def set(self, error: KinesisEfoError) -> None:
        """Store the first error and call the functions registered with `on_set`. The error is logged if it is not raised within a minute.
        Later errors are only logged, at debug level."""
        if self.error is None:
            self._said = False
            asyncio.get_running_loop().call_later(60.0, self.stop)
            self.adopt(error)
        else:
            logger.debug("an error after the one that ended the run: %s", error)

    def adopt(self, error: KinesisEfoError) -> None:
        """Store an error that is logged elsewhere, and call the functions registered with `on_set`. Has no effect after another error."""
        if self.error is None:
            self.error = error
            for wake in self._wakes:
                wake()

    def stop(self) -> None:
        """Store `stopped()` if no error is stored, so that `raise_if_set` always raises. Log a stored error that was never raised."""
        if not self._said:
            logger.error("%s", self.error)
        self._said = True
        self.adopt(stopped())

    def on_set(self, wake: Callable[[], None]) -> None:
        """Register a function to call when an error is stored. If an error is stored already, calls the function immediately."""
        if self.error is None:
            self._wakes.append(wake)
        else:
            wake()

    def raise_if_set(self) -> None:
        """Raise the stored error, if there is one."""
        if self.error is not None:
            self._said = True
            raise self.error
