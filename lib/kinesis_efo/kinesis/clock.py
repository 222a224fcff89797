"""Reads Kinesis' clock from the `Date` header of its responses. All times that are compared with times in a stream use this clock.

This machine's clock may be up to five minutes off before AWS rejects its requests. The header is rounded down to seconds, so Kinesis' time
is known only within bounds.
"""

from __future__ import annotations

import logging
from email.utils import parsedate_to_datetime
from typing import Any, Final

from kinesis_efo.clock import Clock

logger = logging.getLogger(__name__)

MOST_SKEW_SECONDS: Final = 2.0
"""If this machine's clock is certainly off by more than this many seconds, a warning is logged."""

_SENT: Final = "kinesis_efo.sent"


class KinesisClock:
    """Kinesis' clock, set by the responses of watched clients; implements `Clock`.

    `skew`: seconds that this machine's clock was ahead of Kinesis' clock at the last response (lowest estimate); negative if it was behind.

    Args:
        clock: This machine's clock, used until the first AWS response with a time.
        warns: Whether to log a warning, once, if this machine's clock is more than `MOST_SKEW_SECONDS` off.
    """

    def __init__(self, clock: Clock, *, warns: bool = True) -> None:
        self.skew = 0.0
        self._clock = clock
        self._answered: float | None = None
        self._warns = warns
        # Lower and upper bound of the difference between Kinesis' time and the monotonic time.
        self._bounds: tuple[float, float] | None = None

    def watch(self, client: Any, service: str = "kinesis") -> None:
        """Read the time from all responses of a botocore or aiobotocore client, including error responses.

        The clock of another AWS `service` may differ from Kinesis' clock, so use its time only to display ages, never for positions.
        """
        client.meta.events.register(f"request-created.{service}", self._on_request)
        client.meta.events.register(f"after-call.{service}", self._on_response)

    @property
    def is_set(self) -> bool:
        """Whether a response with a time has been received."""
        return self._bounds is not None

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def time(self) -> float:
        """Return a lower bound of Kinesis' time in epoch seconds. It is too low by at most one second plus the network delay."""
        return self._clock.time() if self._bounds is None else self._clock.monotonic() + self._bounds[0]

    @property
    def latest(self) -> float:
        """An upper bound of Kinesis' time in epoch seconds. It is too high by at most one second plus the duration of the last call."""
        return self._clock.time() if self._bounds is None else self._clock.monotonic() + self._bounds[1]

    @property
    def here(self) -> float:
        """This machine's time, epoch seconds."""
        return self._clock.time()

    @property
    def answered(self) -> float:
        """The `Date` header of the last response (epoch seconds, rounded down); this machine's time if there was no such header."""
        return self._clock.time() if self._answered is None else self._answered

    def _on_request(self, request: Any, **_: Any) -> None:
        # Each retry overwrites this time, so that a response is compared with the time at which its own attempt was sent.
        request.context[_SENT] = self._clock.monotonic()

    def _on_response(self, parsed: dict[str, Any], context: dict[str, Any] | None = None, **_: Any) -> None:
        try:
            headers = parsed["ResponseMetadata"]["HTTPHeaders"]
            # Ignore an error response of a proxy, which has no request id: the proxy's clock may be off.
            told = parsedate_to_datetime(headers["date"] if "x-amzn-requestid" in headers else "").timestamp()
        except (KeyError, TypeError, ValueError):
            self._answered = None
            return
        now, here = self._clock.monotonic(), self._clock.time()
        sent = (context or {}).get(_SENT, now)
        self._answered = told
        self._bounds = told - now, told + 1 - sent
        earliest, latest = told, told + 1 + now - sent
        self.skew = max(here - latest, 0.0) + min(here - earliest, 0.0)
        if abs(self.skew) > MOST_SKEW_SECONDS and self._warns:
            self._warns = False
            logger.warning(
                "this machine's clock is about %.0f s %s Kinesis' clock. Times in streams follow Kinesis' clock, but AWS rejects "
                "requests of a machine that is five minutes off: synchronize the clock (chrony, NTP)",
                abs(here - (earliest + latest) / 2),
                "ahead of" if self.skew > 0 else "behind",
            )
