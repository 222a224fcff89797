"""Kinesis' clock, as the header `Date` of its answers tells it: whatever is compared with a time in a stream is measured by it.

This machine's clock may be minutes off, and AWS accepts its signatures up to five minutes. The header has whole seconds.
"""

from __future__ import annotations

import logging
from email.utils import parsedate_to_datetime
from typing import Any, Final

from kinesis_efo.clock import Clock

logger = logging.getLogger(__name__)

MOST_SKEW_SECONDS: Final = 2.0
"""A machine whose clock is certainly further off than that is told so."""

_SENT: Final = "kinesis_efo.sent"


class KinesisClock:
    """A clock that tells Kinesis' time, by the answers that its clients get; implements `Clock`.

    Args:
        clock: This machine's. Its time stands for Kinesis' until the first answer, and where a server does not tell the time.
        warns: Whether it logs, once, that this machine's clock is off.

    Attributes:
        skew: Seconds by which this machine's clock was certainly ahead of Kinesis' at the last answer, negative where it was behind.
    """

    def __init__(self, clock: Clock, *, warns: bool = True) -> None:
        self.skew = 0.0
        self._clock = clock
        self._answered: float | None = None
        self._warns = warns
        # How far Kinesis' clock is ahead of the monotonic one, at least and at most.
        self._bounds: tuple[float, float] | None = None

    def watch(self, client: Any, service: str = "kinesis") -> None:
        """Follow the answers that a client gets, refusals included.

        Args:
            client: A client of botocore or aiobotocore.
            service: Its service. Another than Kinesis is good for ages that people read, not for positions.
        """
        client.meta.events.register(f"request-created.{service}", self._note_sent)
        client.meta.events.register(f"after-call.{service}", self._note_answer)

    @property
    def knows(self) -> bool:
        """Whether an answer has told the time."""
        return self._bounds is not None

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def time(self) -> float:
        """Kinesis' time, epoch seconds: up to a second early, with what the last answer took on its way, and never late."""
        return self._clock.time() if self._bounds is None else self._clock.monotonic() + self._bounds[0]

    @property
    def latest(self) -> float:
        """Kinesis' time, epoch seconds: up to a second late, with what the last call took, and never early."""
        return self._clock.time() if self._bounds is None else self._clock.monotonic() + self._bounds[1]

    @property
    def here(self) -> float:
        """This machine's time, epoch seconds."""
        return self._clock.time()

    @property
    def answered(self) -> float:
        """When the last answer was given, epoch seconds: up to a second early, and never late. This machine's time where it did not say."""
        return self._clock.time() if self._answered is None else self._answered

    def _note_sent(self, request: Any, **_: Any) -> None:
        # Made anew for each attempt of the SDK, and it shares this with `after-call`.
        request.context[_SENT] = self._clock.monotonic()

    def _note_answer(self, parsed: dict[str, Any], context: dict[str, Any] | None = None, **_: Any) -> None:
        try:
            told = parsedate_to_datetime(parsed["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
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
                "this machine's clock is about %.0f s %s Kinesis'. Times in streams are measured by Kinesis' clock all the same, but AWS refuses "
                "the signatures of a machine that is five minutes off: synchronize it (chrony, NTP)",
                abs(here - (earliest + latest) / 2),
                "ahead of" if self.skew > 0 else "behind",
            )
