"""Retries calls that fail with transient errors, and logs the reason for each wait. If retrying does not help, raises the first error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, NoReturn, TypeVar

from kinesis_efo.aws_errors import Cause, cause_of, describe
from kinesis_efo.clock import Clock, deadline, in_thread
from kinesis_efo.errors import KinesisEfoError, ManifestError, TableUnavailableError
from kinesis_efo.options import RetrySettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WORD_SECONDS: Final = 5.0
"""Seconds after which the first warning about a wait is logged."""
NEXT_WORD_SECONDS: Final = 30.0
"""Seconds between later warnings."""

_PASSING: Final = (
    Cause.PASSING,
    Cause.CREDENTIALS_UNREACHABLE,
    # For a stream that was just created, ListShards may return this error even after DescribeStream returned ACTIVE.
    Cause.IN_USE,
)


def jitter(settings: RetrySettings, failures: int, random: Callable[[], float]) -> float:
    """Return how many seconds to wait after `failures` successive failures: random, up to a growing limit ("full jitter").

    >>> [jitter(RetrySettings(), failures, lambda: 1.0) for failures in (1, 2, 3, 10**6)]
    [1.0, 1.5, 2.25, 10.0]
    """
    # Limit the exponent: the power would eventually overflow.
    growth: float = settings.factor ** min(failures - 1, 200)
    return random() * min(settings.max_ms, settings.base_ms * growth) / 1000


def passes(error: BaseException) -> bool:
    """Whether the same call may succeed later: True for throttling, service and network errors, credentials providers that cannot be
    reached, and resources that are being created or changed.

    >>> passes(TimeoutError("no answer")), passes(ValueError("wrong"))
    (True, False)
    """
    if isinstance(error, TableUnavailableError):
        return True
    if isinstance(error, ManifestError):
        return error.__cause__ is not None and passes(error.__cause__)
    return isinstance(error, Exception) and not isinstance(error, KinesisEfoError) and cause_of(error) in _PASSING


class Patience:
    """Retries calls whose errors may be transient."""

    def __init__(self, settings: RetrySettings, clock: Clock, random: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random or Random().random

    async def call(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds or fails with a permanent error. `what` describes the call in log messages.

        Raises the permanent error or, if transient errors last too long, the first transient error. Expired credentials are retried once,
        because the credential files may already contain new ones.
        """
        began, settings = self._clock.monotonic(), self._settings
        failures, renewed, last = 0, False, "no answer yet"
        first: Exception | None = None

        def seconds() -> float:
            return self._clock.monotonic() - began

        async def warn() -> NoReturn:
            pause = FIRST_WORD_SECONDS
            while True:
                await self._clock.sleep(pause)
                logger.warning("waiting for %s for %.0f s: %s", what, seconds(), last)
                pause = NEXT_WORD_SECONDS

        word = asyncio.ensure_future(warn())
        try:
            while True:
                try:
                    with deadline(settings.timeout - seconds()):
                        return await attempt()
                except Exception as error:
                    expired = cause_of(error) is Cause.EXPIRED and not renewed
                    if not passes(error) and not expired:
                        raise error from None
                    failures, renewed, first = failures + 1, renewed or expired, first or error
                    last = str(error) if isinstance(error, KinesisEfoError) else describe(error)
                    delay, most = jitter(settings, failures, self._random), settings.max_retries
                    if (most is not None and failures > most) or seconds() + delay > settings.timeout:
                        logger.warning("%s: given up after %.0f s and %d tries", what, seconds(), failures)
                        raise first from None
                await self._clock.sleep(delay)
        finally:
            word.cancel()

    def load(self, location: str, load: Callable[[], T]) -> T:
        """Call `load` to load a manifest. Retries transient errors if `location` is in SSM or S3; a local file is read without retries."""
        if "://" not in location:
            return load()
        loading = self.call(f"manifest {location}", lambda: asyncio.wrap_future(in_thread(load)))
        # A notebook's thread already has an event loop, so use another thread: a daemon thread, which Ctrl-C does not have to wait for.
        return in_thread(asyncio.run, loading).result()
