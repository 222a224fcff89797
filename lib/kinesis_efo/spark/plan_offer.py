"""Offers a query's plan to the job of its fetchers, where the program that submits the job is elsewhere: behind Spark Connect.

The planner runs on the driver's host, and so does the planning of the job: two processes of one user. The planner listens on a
Unix socket in a directory that only this user can enter, and whoever connects is sent the plan.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.remote import FetcherPlan
from kinesis_efo.private_directory import is_private, notes_directory

_LOOK_EVERY: Final = 0.1
_ANSWER_SECONDS: Final = 10.0


class PlanOffer:
    """The plan of one query, for the taking as long as its planner lives.

    Args:
        name: What `kinesis_efo.read_stream` calls the job; no two DataFrames have the same.
        plan: What the fetchers are told.
        directory: Where sockets are.

    Raises:
        FetcherError: There is no such place, or another query of the same DataFrame runs.
    """

    optional = True
    """The program that submits the job may have gone."""

    def __init__(self, name: str, plan: FetcherPlan, directory: Path) -> None:
        self._plan = pickle.dumps(plan)
        self._path = _path(directory, name)
        self._taken = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if not is_private(directory):
                raise FetcherError(f"others than this user can enter {directory}: remove it, and start the query again")
            if _answers(self._path):
                raise FetcherError(
                    "another query of this DataFrame runs, and has its fetchers: stop it, or call kinesis_efo.read_stream for each query"
                )
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise FetcherError(f"the plan for fetchers cannot be offered at {self._path}: {error}") from error
        except FetcherError:
            self._socket.close()
            raise
        threading.Thread(target=self._serve, name="kinesis-efo plan", daemon=True).start()

    def problem(self) -> str:
        """Why there may be no fetchers."""
        if self._taken:
            return ""
        return "The program that called kinesis_efo.read_stream has not submitted their job: it has ended, or cannot reach Spark."

    def stop(self) -> None:
        """Offer nothing any more. The fetchers learn from the planner that the query has ended."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        with self._socket:
            while True:
                try:
                    connection, _ = self._socket.accept()
                    with connection:
                        connection.settimeout(_ANSWER_SECONDS)
                        connection.sendall(self._plan)
                        self._taken = True
                except (BrokenPipeError, ConnectionResetError, TimeoutError):
                    continue  # it only looked whether somebody is here
                except OSError:
                    return  # stopped


def offered_plan(name: str, at_most: float, directory: Callable[[], Path] = notes_directory) -> FetcherPlan | None:
    """The plan of a query that runs on this host.

    Args:
        name: What `kinesis_efo.read_stream` calls the job.
        at_most: Seconds to wait for a planner.
        directory: Where sockets are.

    Returns:
        The plan; None if no planner has offered one.
    """
    deadline = time.monotonic() + at_most
    path = _path(directory(), name)
    while True:
        try:
            if is_private(path.parent) and isinstance(plan := pickle.loads(_received(path)), FetcherPlan):
                return plan
        except (OSError, EOFError, pickle.UnpicklingError):
            pass
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOOK_EVERY)


def _received(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(str(path))
        with connection.makefile("rb") as received:
            return received.read()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        return connection.connect_ex(str(path)) == 0


def _path(directory: Path, name: str) -> Path:
    return directory / f"{Path(name).name}.plan"
