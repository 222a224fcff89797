"""The pool: as many connections as the requests need, opened a few at a time, and no place is ever lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.http2.pool import Pool
from kinesis_efo.http2.response import ConnectionLost
from tests.support.virtual_time import run


class Fake:
    """A connection without a network. A request holds its place until the test gives it back."""

    def __init__(self, changed: Callable[[Any], None], most_streams: int) -> None:
        self.most_streams = most_streams
        self.active = self.looked_at = 0
        self.closed = False
        self.lingers = False
        self.aborted = False
        self._changed = changed
        self.gone = asyncio.Event()

    @property
    def places(self) -> int:
        self.looked_at += 1
        return 0 if self.closed else max(0, self.most_streams - self.active)

    def take_place(self) -> None:
        assert self.places > 0, "a place that is not there was given away"
        self.active += 1

    def give_place(self) -> None:
        assert self.active > 0
        self.active -= 1
        self._changed(self)

    def allow(self, streams: int) -> None:
        self.most_streams = streams
        self._changed(self)

    def drain(self) -> None:
        self.closed = True
        self._changed(self)

    def close(self) -> None:
        self.drain()
        if not self.lingers:
            self.go()

    def go(self) -> None:
        self.gone.set()
        self._changed(self)

    def abort(self, why: Exception) -> None:
        self.aborted = True
        self.drain()
        self.go()


class Network:
    """Dials connections; remembers them, and how many were under way at a time."""

    def __init__(self, streams: int = 5) -> None:
        self.streams = streams
        self.round_trip = 0.1
        self.connections: list[Fake] = []
        self.dials = 0
        self.under_way = 0
        self.most_under_way: list[int] = []
        self.faults: list[Exception] = []

    async def dial(self, changed: Callable[[Any], None]) -> Any:
        self.dials += 1
        self.under_way += 1
        self.most_under_way.append(self.under_way)
        try:
            await asyncio.sleep(self.round_trip)
            if self.faults:
                raise self.faults.pop(0)
            self.connections.append(Fake(changed, self.streams))
            return self.connections[-1]
        finally:
            self.under_way -= 1


@asynccontextmanager
async def opened(network: Network, most: int = 1000) -> AsyncIterator[Pool]:
    pool = Pool(network.dial, most)
    yield pool
    await pool.close()
    assert network.under_way == 0
    assert all(connection.gone.is_set() for connection in network.connections)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def places(pool: Pool, count: int) -> list[Any]:
    return await asyncio.gather(*(pool.place() for _ in range(count)))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_longest_waiting_request_is_served_first() -> None:
    network = Network(streams=1)
    async with opened(network, most=1) as pool:
        served: list[int] = []

        async def ask(number: int) -> None:
            connection = await pool.place()
            served.append(number)
            await asyncio.sleep(1)
            connection.give_place()

        await asyncio.gather(*(ask(number) for number in range(5)))
        assert served == [0, 1, 2, 3, 4]
        assert network.dials == 1


async def test_service_that_hangs_up_gets_one_dial() -> None:
    network = Network()
    dial = network.dial

    async def hung_up(changed: Callable[[Any], None]) -> Any:
        connection = await dial(changed)
        connection.close()
        return connection

    network.dial = hung_up  # type: ignore[method-assign]
    async with opened(network) as pool:
        with pytest.raises(ConnectionLost, match="closed the connection before it accepted a request"):
            await pool.place()
        assert network.dials == 1
        assert not pool.connections


async def test_close_fails_waiting_and_later_requests() -> None:
    network = Network()
    async with opened(network) as pool:
        waiting = [asyncio.ensure_future(pool.place()) for _ in range(3)]
        await asyncio.sleep(0.05)
        await pool.close()
        for place in [*waiting, pool.place()]:
            with pytest.raises(ConnectionLost, match="the client was closed"):
                await place
        assert network.connections == []


async def test_close_waits_one_second_for_slow_peers() -> None:
    network = Network(streams=1)
    async with opened(network) as pool:
        slow, deaf, early = await places(pool, 3)
        slow.lingers = deaf.lingers = early.lingers = True
        early.close()
        asyncio.get_running_loop().call_later(0.5, slow.go)
        asyncio.get_running_loop().call_later(0.7, early.go)
        begin = asyncio.get_running_loop().time()
        await pool.close()
        assert asyncio.get_running_loop().time() - begin == 1
        assert [connection.aborted for connection in (slow, deaf, early)] == [False, True, False]


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "give", "cancel", "lose", "drain", "allow", "fail", "wait", "turn"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 4))
def test_no_place_is_lost_whatever_happens(todo: list[tuple[str, int]], most: int) -> None:
    async def main() -> None:
        network = Network(streams=2)
        async with opened(network, most) as pool:
            asked: list[asyncio.Future[Any]] = []
            held: list[Any] = []

            def collect() -> None:
                for place in [each for each in asked if each.done()]:
                    asked.remove(place)
                    if not place.cancelled() and place.exception() is None:
                        held.append(place.result())

            for step, number in todo:
                collect()
                alive = [connection for connection in network.connections if not connection.closed]
                match step:
                    case "ask":
                        asked.append(asyncio.ensure_future(pool.place()))
                    case "give" if held:
                        held.pop(number % len(held)).give_place()
                    case "cancel" if asked:
                        asked[number % len(asked)].cancel()
                    case "lose" if alive:
                        alive[number % len(alive)].close()
                    case "drain" if alive:
                        alive[number % len(alive)].drain()
                    case "allow" if alive:
                        alive[number % len(alive)].allow(number)
                    case "fail":
                        network.faults.append(ConnectionRefusedError("refused"))
                    case "wait":
                        await asyncio.sleep(number / 20)
                    case "turn":
                        await asyncio.sleep(0)
                assert len(pool.connections) <= most
            # From now on nothing fails, and everyone gives back what he has.
            network.faults.clear()
            for connection in network.connections:
                connection.allow(2)
            while asked:
                await asyncio.sleep(0.2)
                collect()
                while held:
                    held.pop().give_place()
            await settle()
            collect()
            while held:
                held.pop().give_place()
            assert [connection.active for connection in network.connections] == [0] * len(network.connections)
            for connection in network.connections:
                if connection.closed and not connection.gone.is_set():
                    connection.go()

    run(main())


@pytest.mark.slow
async def test_lost_network_gets_one_dial_at_a_time() -> None:
    network = Network()
    async with opened(network) as pool:
        await places(pool, 1000)
        for connection in network.connections:
            connection.close()
        network.round_trip = 10
        network.faults = [TimeoutError("lost")] * 60
        before = network.dials

        async def keep_asking() -> None:
            while True:
                try:
                    await pool.place()
                    return
                except TimeoutError:
                    await asyncio.sleep(5)

        asking = [asyncio.ensure_future(keep_asking()) for _ in range(1000)]
        await asyncio.sleep(600)
        assert network.dials - before <= 60
        assert max(network.most_under_way[before:]) == 1
        network.faults.clear()
        network.round_trip = 0.1
        await asyncio.wait_for(asyncio.gather(*asking), 30)
