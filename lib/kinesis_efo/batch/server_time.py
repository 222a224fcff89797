"""Tells what time it is for Kinesis, by the header `Date` of its answers: this machine's clock may be some seconds off."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

from kinesis_efo.clock import Clock


class ServerTime:
    """The time of the last answer that a client got.

    Args:
        client: A client of botocore or aiobotocore.
        clock: This machine's clock, for servers that do not tell theirs.
    """

    def __init__(self, client: Any, clock: Clock) -> None:
        self._clock = clock
        self._answered: float | None = None
        self._ahead = 0.0
        client.meta.events.register("after-call.kinesis", self._answer, unique_id="kinesis-efo-server-time")

    @property
    def answered(self) -> float:
        """When the last answer was given, epoch seconds; up to a second early, and never late."""
        return self._clock.time() if self._answered is None else self._answered

    @property
    def ahead(self) -> float:
        """Seconds by which this machine's clock was ahead of Kinesis' at the last answer; negative if behind. Right to a second."""
        return self._ahead

    def _answer(self, parsed: dict[str, Any], **_: Any) -> None:
        try:
            told = parsedate_to_datetime(parsed["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            self._answered = self._clock.time()
            return
        self._answered = told
        now = self._clock.time()
        # The header has whole seconds: anything between it and the next second may be right.
        self._ahead = max(now - (told + 1), 0.0) + min(now - told, 0.0)
