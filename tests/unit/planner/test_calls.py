"""Calls to a query: answers, errors, and what is said once it has stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kinesis_efo.errors import DataLossError, FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.planner.calls import QueryCalls
from kinesis_efo.positions import Offset

NOWHERE = Offset({})


class Query:
    """Fails as it is told, or answers."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.asked: list[Any] = []

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        self.asked.append((offset, max_bytes, max_records, at_most))
        return PollReply([])

    async def commit(self, offset: Offset) -> None:
        if self.failure is not None:
            raise self.failure

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        await asyncio.sleep(3600)
        return None


class Running:
    """An event loop in a thread, and a fetcher in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.query = Query()
        self.calls = QueryCalls(self.query, self.loop, self.thread.is_alive)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    if running.thread.is_alive():
        running.stop()
    if not running.loop.is_closed():
        for task in asyncio.all_tasks(running.loop):
            task.cancel()
        running.loop.run_until_complete(asyncio.sleep(0))
        running.loop.close()


def test_calls_and_answers_pass_as_they_are(running: Running) -> None:
    assert running.calls.poll(NOWHERE, max_bytes=1, max_records=2, timeout=3.0) == PollReply([])
    assert running.query.asked == [(NOWHERE, 1, 2, 3.0)]
    assert running.query.asked[0][0] is NOWHERE
    running.calls.commit(NOWHERE)


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (DataLossError("it is gone"), DataLossError, "^it is gone$"),
        (ValueError("a bug"), FetcherError, "^the fetcher failed: ValueError: a bug$"),
        (TimeoutError("a slow one"), FetcherError, "^the fetcher failed: TimeoutError: a slow one$"),
        (asyncio.CancelledError(), FetcherUnreachableError, "its query has ended"),
    ],
)
def test_errors_keep_their_kind(
    running: Running, failure: BaseException, kind: type[KinesisEfoError], message: str
) -> None:
    running.query.failure = failure
    with pytest.raises(kind, match=message):
        running.calls.commit(NOWHERE)


def test_a_call_that_the_end_of_the_loop_leaves_waiting_is_told(running: Running) -> None:
    threading.Timer(0.1, running.stop).start()
    with pytest.raises(FetcherUnreachableError, match="its query has ended"):
        running.calls.tips(NOWHERE, timeout=0.2)


def test_a_call_after_the_end_is_told(running: Running) -> None:
    running.stop()
    running.loop.close()
    with pytest.raises(FetcherUnreachableError, match="its query has ended"):
        running.calls.commit(NOWHERE)
