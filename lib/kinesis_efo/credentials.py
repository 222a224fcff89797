"""Credentials that change while a query runs: files that something else writes anew are read again.

The SDK reads files of credentials once, and renews by itself only what says when it expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError

from kinesis_efo.aws_errors import Cause, cause_of_code
from kinesis_efo.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""So often the files are looked at."""
_AGAIN_SECONDS: Final = 1.0
_REPEATED_BY_OTHERS: Final = ("PutRecords",)
"""The SDK cannot send these bodies twice (raw_bodies.py); the producer repeats the call."""
_FILES: Final = ("credentials_file", "config_file")


class Provider:
    """What a session asks for its credentials: its component `credential_provider`.

    Args:
        load: Returns the credentials, or None; for aiobotocore, awaitable.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self.load_credentials = load


def watch(session: Any, clock: Clock) -> None:
    """Let a session look for its credentials again where their files changed (once a minute), and where AWS says that they have expired.

    Args:
        session: botocore's or aiobotocore's, which has made no client yet.
        clock: Time.
    """
    moment = _Moment([Path(os.path.expanduser(session.get_config_variable(name))) for name in _FILES], clock)  # noqa: PTH111
    usual = session.get_component("credential_provider").load_credentials

    def anew() -> Any:
        # A session keeps what it has read of the files. It takes its profile from the environment, as this one did: an explicit one would
        # take the place of keys in the environment.
        return type(session)().get_credentials()

    async def load_async() -> Any:
        return None if (found := await usual()) is None else _AsyncWatched(found, anew, moment)

    def load() -> Any:
        return None if (found := usual()) is None else _Watched(found, anew, moment)

    def again(response: tuple[Any, dict[str, Any]] | None, attempts: int, operation: Any, **_: Any) -> float | None:
        """Let the SDK sign a call once more that was refused as expired: it was not carried out."""
        if response is None or cause_of_code(response[1].get("Error", {}).get("Code", "")) is not Cause.EXPIRED:
            return None
        moment.expired()
        return _AGAIN_SECONDS if attempts == 1 and operation.name not in _REPEATED_BY_OTHERS else None

    session.register_component("credential_provider", Provider(load_async if isinstance(session, AioSession) else load))
    session.register("needs-retry", again)


class _Moment:
    """When credentials are looked for again."""

    def __init__(self, files: list[Path], clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._stamps = self._seen = self._look()
        self._looked = clock.monotonic()
        self._expired = False

    def expired(self) -> None:
        """Note that AWS calls the credentials expired."""
        self._expired = True

    def has_come(self) -> bool:
        """Whether to look for them now."""
        now = self._clock.monotonic()
        if now - self._looked < (_AGAIN_SECONDS if self._expired else LOOK_SECONDS):
            return False
        self._looked = now
        self._seen = self._look()
        return self._expired or self._seen != self._stamps

    def taken(self, found: Any, kept: Any) -> Any:
        """What is used from now on: what was found, or the credentials as they are if that is None or does not fit.

        A file that is just being written lets the SDK look elsewhere: whoever it would be then is taken only if AWS has refused the
        old ones.
        """
        fits = found is not None and (self._expired or found.method == kept.method)
        self._expired = False
        if not fits:
            return kept
        # Of before they were read: what is written meanwhile is looked at again.
        self._stamps = self._seen
        logger.info("credentials were read again (%s)", found.method)
        return found

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class _Watched:
    """The credentials of the moment; everything else is theirs."""

    def __init__(self, found: Any, anew: Callable[[], Any], moment: _Moment) -> None:
        self._found = found
        self._anew = anew
        self._moment = moment
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def get_frozen_credentials(self) -> Any:
        """See botocore's `Credentials`."""
        with self._lock:
            if self._moment.has_come():
                try:
                    found = self._anew()
                except BotoCoreError as error:
                    found = None
                    _missed(error)
                self._found = self._moment.taken(found, self._found)
        return self._found.get_frozen_credentials()


class _AsyncWatched:
    """`_Watched` for aiobotocore."""

    def __init__(self, found: Any, anew: Callable[[], Awaitable[Any]], moment: _Moment) -> None:
        self._found = found
        self._anew = anew
        self._moment = moment
        self._lock = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    async def get_frozen_credentials(self) -> Any:
        """See aiobotocore's `AioCredentials`."""
        async with self._lock:
            if self._moment.has_come():
                try:
                    found = await self._anew()
                except BotoCoreError as error:
                    found = None
                    _missed(error)
                self._found = self._moment.taken(found, self._found)
        return await self._found.get_frozen_credentials()


def _missed(error: BotoCoreError) -> None:
    logger.warning("credentials cannot be read again, and stay as they are: %s", error)
