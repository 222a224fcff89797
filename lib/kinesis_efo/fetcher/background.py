"""Tasks beside others: none ends in silence if nobody awaits it, and none is left behind if another one failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.failure import Failure

logger = logging.getLogger(__name__)
T = TypeVar("T")


def in_background(work: Coroutine[Any, Any, None], what: str, failure: Failure) -> asyncio.Task[None]:
    """Start a task that runs until it is cancelled.

    Args:
        work: What to do.
        what: What that is, for messages, as `watching the shards`.
        failure: Keeps the error that ended it. Another library's or a bug's is wrapped, so that it reaches the query, too.
    """

    async def guarded() -> None:
        try:
            await work
        except KinesisEfoError as error:
            failure.set(error)
        except Exception as error:
            logger.exception("%s failed", what)
            wrapped = FetcherError(f"{what} failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            failure.set(wrapped)

    return asyncio.create_task(guarded(), name=what)


async def all_of(*work: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all, done at the same time. If one fails, the others have been cancelled and have ended when its error is raised.

    `asyncio.gather` would let them run on, up to the end of the event loop and into it.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
