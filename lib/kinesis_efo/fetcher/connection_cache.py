"""Keeps connections open from one task of a worker to the next: opening one costs more than a small micro-batch's records do.

Only those within a machine, where the kernel tells at once that the other side has gone.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from kinesis_efo.fetcher.wire import Wire

AT_MOST: Final = 4
"""Connections: the queries of a session share its workers. Those of queries that have ended make room in time."""


class ConnectionCache:
    """Connections that nobody uses at the moment. Safe for threads: one that is taken is nobody else's.

    Args:
        at_most: How many; the one that waits longest is closed.
        process: The id of this process. After a fork, the child does not use its parent's.
    """

    def __init__(self, at_most: int = AT_MOST, process: Callable[[], int] = os.getpid) -> None:
        self._at_most = at_most
        self._process = process
        self._owner: int | None = None
        self._wires: OrderedDict[Hashable, Wire] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, where: Hashable) -> Wire | None:
        """A connection that leads somewhere, if there is one."""
        with self._lock:
            self._own()
            return self._wires.pop(where, None)

    def keep(self, where: Hashable, wire: Wire) -> None:
        """Keep a connection. One that leads there too is closed, and those that the other side has closed; if there is no room, one more."""
        with self._lock:
            self._own()
            ended = [each for each, kept in self._wires.items() if each == where or kept.speaks]
            closing = [self._wires.pop(each) for each in ended]
            self._wires[where] = wire
            if len(self._wires) > self._at_most:
                closing.append(self._wires.popitem(last=False)[1])
        for each in closing:
            each.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self._own()
            wires = list(self._wires.values())
            self._wires.clear()
        for wire in wires:
            wire.close()

    def _own(self) -> None:
        before, self._owner = self._owner, self._process()
        if self._owner != before:
            # A child closes its own ends alone: those of its parent go on.
            for wire in self._wires.values():
                wire.close()
            self._wires.clear()


CONNECTIONS: Final = ConnectionCache()
"""The connections of this process."""
atexit.register(CONNECTIONS.close)
