"""What a fetcher leaves behind in its process once it has stopped: no thread, no open file, no port, no subscription."""

import gc
import socket
import threading
from collections.abc import Callable

import psutil
import pytest

from kinesis_efo.errors import ConsumerNotFoundError, FetcherUnreachableError, KinesisEfoError
from tests.support.fetching import Reading, reading
from tests.support.world import World, wait_until

pytestmark = pytest.mark.slow
MakeWorld = Callable[..., World]


def ends_well(w: World, r: Reading) -> None:
    r.commit()


def fails(w: World, r: Reading) -> None:
    told: list[dict[str, str]] = []
    r.runtime.streams_changed = told.append
    w.kinesis.deregister_stream_consumer(ConsumerARN=w.consumers["orders"])
    with pytest.raises(ConsumerNotFoundError):
        r.poll(timeout=20.0)
    assert told == [{}], "others of the program are not to join it"


def is_stopped_while_somebody_asks(w: World, r: Reading) -> None:
    refusals: list[BaseException] = []

    def ask() -> None:
        try:
            r.poll(timeout=30.0)
        except KinesisEfoError as error:
            refusals.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    r.runtime.stop()
    asking.join(60)
    assert [type(error) for error in refusals] == [FetcherUnreachableError]


def open_files() -> int:
    gc.collect()
    return psutil.Process().num_fds()


@pytest.mark.parametrize("end", [ends_well, fails, is_stopped_while_somebody_asks])
def test_nothing_is_left_of_a_fetcher(world: MakeWorld, end: Callable[[World, Reading], None]) -> None:
    def once() -> None:
        w = world({"orders": 3})
        w.put([(f"k{n}", b"%08d" % n) for n in range(100)])
        with reading(w, leaseTimeout="60s") as r:
            port = r.runtime.address.port
            r.until(100)
            end(w, r)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        names = set(w.streams.values())
        wait_until(lambda: not [s for s in w.aws.kinesis.subscriptions if s.consumer.stream.name in names], 60)
        assert all("leaseOwner" not in row for row in w.leases().values())
        w.kinesis.close()
        w.dynamodb.close()

    once()  # what is loaded and kept once, stays
    threads, files = threading.active_count(), open_files()
    for _ in range(2):
        once()
    wait_until(lambda: threading.active_count() <= threads, 60, f"{threading.enumerate()}")
    wait_until(lambda: open_files() <= files, 60, f"{open_files()} open files, {files} before")
