"""Takes what a stream brings in a thread of its own, so that the caller can give up waiting.

A call of PyArrow cannot be interrupted: one to a host that has vanished, or to a process that is paused, waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """What is pulled: `FlightStreamReader`."""

    def __iter__(self) -> Iterator[T_co]:
        """What it brings."""

    def cancel(self) -> None:
        """End it, also from another thread than the one that waits for it."""


class Silence(Exception):
    """Nothing has come for too long."""


class Pulled(Generic[T]):
    """What a stream brings, one item ahead of the reader.

    Args:
        open_stream: Opens the stream.
    """

    def __init__(self, open_stream: Callable[[], Stream[T]]) -> None:
        self._open_stream = open_stream
        self._changed = threading.Condition()
        self._stream: Stream[T] | None = None
        self._items: list[T] = []
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        threading.Thread(target=self._pull, name="kinesis-efo get", daemon=True).start()

    def opened(self, seconds: float) -> Pulled[T]:
        """Wait until the stream is open.

        Args:
            seconds: Longest time.

        Raises:
            Silence: It takes longer.
            Exception: What opening it raised.
        """
        with self._changed:
            self._wait(lambda: self._stream is not None, seconds)
            if self._stream is None and self._error is not None:
                raise self._error
        return self

    def items(self, seconds: float) -> Iterator[T]:
        """What the stream brings.

        Args:
            seconds: Longest time to wait for each. The time that the caller takes does not count.

        Raises:
            Silence: Nothing came for longer.
            Exception: What the stream raised.
        """
        while True:
            with self._changed:
                self._wait(lambda: bool(self._items), seconds)
                if not self._items:
                    if self._error is not None:
                        raise self._error
                    return
                item = self._items.pop()
                self._changed.notify_all()
            yield item

    def close(self) -> None:
        """End the stream. What it would still bring is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        if not self._changed.wait_for(lambda: self._ended or condition(), seconds):
            self.close()
            raise Silence

    def _pull(self) -> None:
        error: BaseException | None = None
        try:
            stream = self._open_stream()
            with self._changed:
                self._stream = stream
                self._changed.notify_all()
                closed = self._closed
            if closed:
                stream.cancel()
                return
            for item in stream:
                if not self._put(item):
                    return
        except BaseException as raised:
            error = raised
        finally:
            with self._changed:
                self._error = error
                self._ended = True
                self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Hand an item over, and wait until it was taken; False if nobody will take it."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or not self._items)
            return not self._closed
