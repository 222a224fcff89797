"""Asks the supervisor in the driver's program to run fetchers as a Spark job.

The job runs as long as the connection is open, so it ends with this process, however that ends.
"""

from __future__ import annotations

import json
import logging
import pickle
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

from kinesis_efo.errors import FetcherError

if TYPE_CHECKING:
    from kinesis_efo.fetcher.remote import FetcherPlan

logger = logging.getLogger(__name__)

LENGTH: Final = struct.Struct("!I")
"""The length before the pickled plan."""


class JobRequest:
    """One request, and the supervisor's messages about it.

    Args:
        path: The supervisor's socket.
        plan: The settings of the fetchers.

    Raises:
        FetcherError: The supervisor cannot be reached.
    """

    def __init__(self, path: str, plan: FetcherPlan) -> None:
        self._problem = ""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
            text = pickle.dumps(plan)
            self._socket.sendall(LENGTH.pack(len(text)) + text)
        except OSError as error:
            self._socket.close()
            raise FetcherError(
                f"the program that called kinesis_efo.read_stream(..., fetchers=...) cannot be asked for fetchers at {path}: {error}. It "
                "has ended, or this query runs on another host than it: start the query in the program that opened the stream"
            ) from error
        threading.Thread(target=self._listen, name="kinesis-efo supervisor", daemon=True).start()

    def problem(self) -> str:
        """The supervisor's last message."""
        return self._problem

    def stop(self) -> None:
        """End the job."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _listen(self) -> None:
        try:
            with self._socket, self._socket.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._problem = str(json.loads(line))
                    logger.warning("fetchers: %s", self._problem)
        except (OSError, ValueError):
            logger.debug("the supervisor is gone", exc_info=True)
