"""Fetchers as processes of their own, without Spark: what its tasks do, to be killed and paused."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kinesis_efo.calls.address import Listening
from kinesis_efo.cluster.remote import FetcherPlan, fetch
from tests.support.fetching import QUICK

ROOT = Path(__file__).resolve().parents[2]


class FetcherProcesses:
    """Starts fetchers as a run asks for them; see `RunThread`.

    Args:
        number: How many.
        listening: Where they listen.
        change: Changes what they are told.

    Attributes:
        processes: One for each place.
    """

    def __init__(
        self,
        number: int,
        listening: Listening = Listening(),  # noqa: B008
        change: Callable[[FetcherPlan], FetcherPlan] = lambda plan: plan,
    ) -> None:
        self._number = number
        self._listening = listening
        self._change = change
        self._plan: FetcherPlan
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, plan: FetcherPlan) -> FetcherProcesses:
        self._plan = self._change(plan)
        for place in range(self._number):
            self.start(place)
        return self

    def start(self, place: int) -> None:
        """Start a fetcher at a place."""
        process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, cwd=ROOT)
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(pickle.dumps((self._plan, place, self._listening)))
        self.processes[place : place + 1] = [process]

    def kill(self, place: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a fetcher."""
        self.processes[place].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[place].wait()

    def problem(self) -> str:
        """See `RemoteFetchers`."""
        return ""

    def stop(self) -> None:
        """See `RemoteFetchers`."""

    def ended(self, seconds: float = 30.0) -> bool:
        """Whether all of them end by themselves within a time."""
        try:
            return all(process.wait(seconds) is not None for process in self.processes)
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        """See that nothing is left."""
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    """Fetch as standard input says."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    plan, place, listening = pickle.loads(sys.stdin.buffer.read())
    asyncio.run(fetch(plan, place, listening, QUICK))


if __name__ == "__main__":
    main()
