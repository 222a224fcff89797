"""One cluster, and one local AWS, for all tests that need them; every test has streams of its own."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.cluster import AWS, HOSTS, Cluster
from tests.support.driven import Driver
from tests.support.hosts import Hosts, needed_hosts
from tests.support.world import world as world


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster is six JVMs: `make cluster` starts one, and `make test` none."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with needed_hosts(HOSTS, tmp_path_factory.mktemp("hosts")) as hosts, pytest.MonkeyPatch.context() as patch:
        # Where there is a proxy, these hosts are not behind it.
        before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
        patch.setenv("no_proxy", ",".join([before, *(host.address for host in hosts)]))
        yield hosts


@pytest.fixture(scope="session")
def local_aws(hosts: Hosts) -> Iterator[LocalAws]:
    # Small events, because a micro-batch is made of whole ones.
    settings = Settings(
        consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0, max_event_records=20
    )
    aws = LocalAws(settings=settings, host=hosts[AWS].address)
    with hosts[AWS].entered():
        aws.start()
    yield aws
    aws.stop()


@pytest.fixture(scope="session")
def cluster(hosts: Hosts, local_aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(hosts, local_aws, tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def driver(cluster: Cluster) -> Driver:
    """A driver on the master's host: client mode. Tests that do no harm to it share it, because its start takes long."""
    return cluster.driver()


@pytest.fixture
def new_driver(cluster: Cluster) -> Iterator[Callable[..., Driver]]:
    """Starts drivers that are a test's own; arguments as `Cluster.driver`. All are killed after it."""
    started: list[Driver] = []

    def start(*args: Any, **kwargs: Any) -> Driver:
        started.append(cluster.driver(*args, **kwargs))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()
