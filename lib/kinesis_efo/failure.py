"""Keeps the error that ends a run or a fetcher; all parts of the run or fetcher share the object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError

logger = logging.getLogger(__name__)


def stopped() -> FetcherUnreachableError:
    """Make the error for calls that come after their query has ended."""
    return FetcherUnreachableError("the fetcher has stopped: its query has ended")


class Failure:
    """Keeps the first error. It belongs to one event loop and is not thread-safe, but any thread may read `error`.

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
        """Keep the error if it is the first, call the functions of `on_set`, and log the error if no call raises it within a minute. Later
        errors are only logged for debugging."""
        if self.error is None:
            self._said = False
            asyncio.get_running_loop().call_later(60.0, self.stop)
            self.adopt(error)
        else:
            logger.debug("an error after the one that ended the run: %s", error)

    def adopt(self, error: KinesisEfoError) -> None:
        """Keep an error that is logged elsewhere, and call the functions of `on_set`, unless there is an error already."""
        if self.error is None:
            self.error = error
            for wake in self._wakes:
                wake()

    def stop(self) -> None:
        """Make all later calls fail: with the first error, or else because the query has ended. Logs an error that no call has raised."""
        if not self._said:
            logger.error("%s", self.error)
        self._said = True
        self.adopt(stopped())

    def on_set(self, wake: Callable[[], None]) -> None:
        """Register a function that is called as soon as there is an error; immediately if there is one already."""
        if self.error is None:
            self._wakes.append(wake)
        else:
            wake()

    def raise_if_set(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            self._said = True
            raise self.error
