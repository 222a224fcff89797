"""A host that vanishes closes no connection. Whoever waits for it notices that within half a minute, and so does whom it waits for."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.hosts import Hosts, needed_hosts
from tests.support.world import wait_until

pytestmark = pytest.mark.cluster
SECRET = "secret"
WANTED = ShardRange(ShardKey("orders", "shardId-000000000000"), Position.after(0), Position.after(1))


class Waiting:
    """Has nothing yet for whoever reads.

    Attributes:
        readers: How many wait.
    """

    def __init__(self) -> None:
        self.readers = 0

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        return time.monotonic()

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        self.readers += 1
        try:
            await asyncio.Event().wait()
            yield []
        finally:
            self.readers -= 1


def wait_at(address: FetcherAddress) -> None:
    """What a task does on a host of its own: says why it waits no more."""
    with FetcherClient(address, SECRET, namespace="elsewhere") as client:
        try:
            _ = [list(part.payloads) for part in client.get([WANTED])]
        except FetcherUnreachableError as error:
            print(json.dumps([time.monotonic(), str(error)]), flush=True)  # noqa: T201


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with needed_hosts(("fetcher", "task"), tmp_path) as hosts:
        yield hosts


def test_both_ends_of_a_call_that_waits_notice(hosts: Hosts, tmp_path: Path) -> None:
    fetcher, loop = Waiting(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with hosts["fetcher"].entered():
        listening = Listening("0.0.0.0", hosts=(hosts["fetcher"].address,))
        service = FetcherService(lambda _query: fetcher, loop, SECRET, listening)
    told, log = msgspec.json.encode(service.address).decode(), tmp_path / "task.log"
    hosts["task"].popen([sys.executable, "-m", __name__, told], log=log)
    wait_until(lambda: fetcher.readers == 1, 60, f"a task that reads, {log}")
    assert log.read_text() == ""
    hosts["task"].cut()
    began = time.monotonic()
    wait_until(lambda: fetcher.readers == 0, 30, "the end of the read")
    wait_until(lambda: log.read_text().endswith("\n"), 30 - (time.monotonic() - began), "the end of the task")
    at, why = json.loads(log.read_text())
    assert at - began < 30
    assert "has sent nothing for 20 s" in why
    service.shutdown()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


if __name__ == "__main__":
    wait_at(msgspec.json.decode(sys.argv[1], type=FetcherAddress))
