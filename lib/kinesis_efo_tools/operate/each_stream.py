"""Makes the same call for every stream of an application. An error for one stream does not hide the other streams' results."""

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
    """The results of a call for several streams: `found` has the results and `missing` the errors, by logical stream name."""

    found: Mapping[str, T]
    missing: Mapping[str, StreamError]


async def of_each(streams: Mapping[str, StreamRef], ask: Callable[[StreamRef], Awaitable[T]]) -> Answers[T]:
    """Call `ask` for all streams concurrently. Raises the first StreamError if every call failed."""
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
