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

from pyarrow import flight

AT_MOST: Final = 4
"""Connections: the queries of a session share its workers. Those of queries that have ended make room in time."""
_PARENTS: Final[list[flight.FlightClient]] = []
"""Clients of this process's parent, held here because Python would close them with their last reference."""


class ConnectionCache:
    """Clients that nobody uses at the moment. Safe for threads: one that is taken is nobody else's.

    Args:
        at_most: How many; the one that waits longest is closed.
        process: The id of this process. After a fork, the child leaves its parent's connections alone.
    """

    def __init__(self, at_most: int = AT_MOST, process: Callable[[], int] = os.getpid) -> None:
        self._at_most = at_most
        self._process = process
        self._owner: int | None = None
        self._clients: OrderedDict[Hashable, flight.FlightClient] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, where: Hashable) -> flight.FlightClient | None:
        """A client that leads somewhere, if there is one."""
        with self._lock:
            self._own()
            return self._clients.pop(where, None)

    def keep(self, where: Hashable, client: flight.FlightClient) -> None:
        """Keep a client; if there is one that leads there, or no room, one is closed."""
        with self._lock:
            self._own()
            too_many = [self._clients.pop(where)] if where in self._clients else []
            self._clients[where] = client
            if len(self._clients) > self._at_most:
                too_many.append(self._clients.popitem(last=False)[1])
        for each in too_many:
            each.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self._own()
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.close()

    def _own(self) -> None:
        before, self._owner = self._owner, self._process()
        if self._owner != before:
            # A parent's are not closed either: that would end threads that this process does not have.
            _PARENTS.extend(self._clients.values())
            self._clients.clear()


CONNECTIONS: Final = ConnectionCache()
"""The clients of this process."""
atexit.register(CONNECTIONS.close)
