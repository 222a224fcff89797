"""Runs asyncio tasks: background tasks whose errors are stored, and groups of tasks that are cancelled as soon as one of them fails."""

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
    """Start a background task that runs `work`. `what` names the task in messages.

    If an error ends the task, the error is stored in `failure`. Errors of other libraries are wrapped in `FetcherError`.
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
    """Run coroutines concurrently and return their results. If one fails, raise its error and, unlike `gather`, cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
