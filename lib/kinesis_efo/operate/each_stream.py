"""Asks the same of every stream of an application, so that one which is gone does not hide the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kinesis_efo.errors import StreamError
from kinesis_efo.manifest import StreamRef

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What was asked of several streams.

    Attributes:
        found: The answers, by the streams' logical names.
        missing: Why there is none, for the other streams.
    """

    found: Mapping[str, T]
    missing: Mapping[str, StreamError]


async def of_each(streams: Mapping[str, StreamRef], ask: Callable[[StreamRef], Awaitable[T]]) -> Answers[T]:
    """Ask all streams at the same time.

    Args:
        streams: The streams, by logical name.
        ask: Asks one.

    Raises:
        StreamError: No stream gave an answer; the error of the first.
    """
    answers = await asyncio.gather(*map(ask, streams.values()), return_exceptions=True)
    found: dict[str, T] = {}
    missing: dict[str, StreamError] = {}
    for name, answer in zip(streams, answers, strict=True):
        if isinstance(answer, StreamError):
            missing[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[name] = answer
    if missing and not found:
        raise next(iter(missing.values()))
    return Answers(found, missing)
