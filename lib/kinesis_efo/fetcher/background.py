"""Tasks that nobody awaits: what ends one of them is told, whatever it is, so that none ends in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kinesis_efo.errors import FetcherError, KinesisEfoError

logger = logging.getLogger(__name__)


def in_background(
    work: Coroutine[Any, Any, None], what: str, failed: Callable[[KinesisEfoError], None]
) -> asyncio.Task[None]:
    """Start a task that runs until it is cancelled.

    Args:
        work: What to do.
        what: What that is, for messages, as `watching the shards`.
        failed: Called with the error that ended it. Another library's or a bug's is wrapped, so that it reaches the query, too.
    """

    async def guarded() -> None:
        try:
            await work
        except KinesisEfoError as error:
            failed(error)
        except Exception as error:
            logger.exception("%s failed", what)
            wrapped = FetcherError(f"{what} failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            failed(wrapped)

    return asyncio.create_task(guarded(), name=what)
