"""A query whose tasks cannot reach the fetcher fails with its address in the message."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.arriving import numbered
from tests.support.cluster import MASTER, READER, RUN
from tests.support.driven import Driver
from tests.support.hosts import Hosts
from tests.support.world import World

pytestmark = pytest.mark.slow
MakeWorld = Callable[..., World]


@pytest.mark.spark40
@pytest.mark.cluster
def test_an_unrouted_address_is_named(world: MakeWorld, hosts: Hosts, driver: Driver, tmp_path: Path) -> None:
    w = world()
    w.put(numbered(10))
    with hosts[MASTER].lonely_address("203.0.113.7"):
        query = driver.start("not-routed", w, tmp_path, options={"fetcherHost": "203.0.113.7"})
        message = query.failure()
    assert "203.0.113.7" in message
    assert query.rows() == []


@pytest.mark.spark
@pytest.mark.cluster
def test_a_blocked_port_is_named(world: MakeWorld, hosts: Hosts, driver: Driver, tmp_path: Path) -> None:
    w, host = world(), hosts[MASTER]
    put = w.put(numbered(10))
    query = driver.start("blocked", w, tmp_path)
    query.wait_for_rows(put)
    listening = [*host.processes(READER), *host.processes(RUN)]
    ports = {port for process in listening for port in host.listening(process)}
    assert ports
    for port in ports:
        host.block(port)
    try:
        w.put(numbered(10, first=put))
        message = query.failure(300)
    finally:
        for port in ports:
            host.unblock(port)
    assert any(f"{name}:{port}" in message for name in (host.name, host.address) for port in ports)
