"""A standalone Spark cluster on hosts: the master on one, a worker on each of the others, of the PySpark that runs the tests."""

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark

import kinesis_efo
from kinesis_efo_local import LocalAws
from tests.support.driven import Driver
from tests.support.hosts import Host, Hosts
from tests.support.world import wait_until

MASTER: Final = "driver"
WORKERS: Final = ("worker1", "worker2")
AWS: Final = "aws"
HOSTS: Final = (MASTER, *WORKERS, AWS)
"""The hosts of a cluster with its local AWS. The master's host is for drivers, too."""

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
WORKER: Final = "deploy.worker.Worker"
READER: Final = "python_streaming_source_runner"
RUN: Final = "run_process"
"""Words in the command lines, for `Host.processes`, of executors, workers, and what Spark keeps on the driver's host for each stream
reader: the fetcher is in it."""
DAEMON: Final = "pyspark.daemon"
"""The same of the daemon that forks Spark's Python workers, and of these."""

_PORT: Final = 7077
_WEB_PORT: Final = 8080
_DRIVER: Final = Path(__file__).parents[1] / "cluster" / "driver.py"
# Many small executors fit; a worker that was cut off is given up after the timeout, or a little later.
_RESOURCES: Final = ("--cores", "8", "--memory", "8g", "--webui-port", "0")
_DAEMONS: Final = f"-Dspark.worker.timeout=10 -Dspark.master.ui.port={_WEB_PORT} -Dspark.master.rest.enabled=false"


class Cluster:
    """Starts master and workers, and returns when all workers have registered. `Hosts.close` ends all of it.

    Args:
        hosts: With the names of `HOSTS`.
        aws: Whom drivers and executors read from.
        directory: For logs, and for the workers' files.
    """

    def __init__(self, hosts: Hosts, aws: LocalAws, directory: Path) -> None:
        self.hosts = hosts
        self.master = f"spark://{MASTER}:{_PORT}"
        self._aws = aws
        self._directory = directory
        self._drivers = 0
        self._daemon(hosts[MASTER], "master.Master", "--host", MASTER, "--port", str(_PORT))
        wait_until(self._listens, 60, f"Spark's master, {directory / 'driver.log'}")
        for name in WORKERS:
            self.start_worker(name)
        self.wait_for_workers()

    def start_worker(self, name: str) -> None:
        """Start the worker of a host, where none runs."""
        place = ("--host", name, "--work-dir", str(self._directory / name))
        self._daemon(self.hosts[name], "worker.Worker", *place, *_RESOURCES, self.master)

    def wait_for_workers(self, names: Sequence[str] = WORKERS, seconds: float = 60.0) -> None:
        """Wait until exactly these workers are registered."""
        what = f"the workers {names}, see {self._directory}"
        wait_until(lambda: self._alive() == sorted(names), seconds, what, every=0.2)

    def driver(self, on: str = MASTER, *, conf: Mapping[str, str] | None = None, **config: Any) -> Driver:
        """Start a driver program, which starts an executor on each worker.

        Args:
            on: The host that it runs on.
            conf: Spark's configuration beyond what `driver.py` sets.
            config: See `driver.py`.
        """
        self._drivers += 1
        host, log = self.hosts[on], self._directory / f"driver{self._drivers}.log"
        argument = json.dumps({"master": self.master, "conf": dict(conf or {}), **config})
        return Driver(host.popen([sys.executable, str(_DRIVER), argument], log=log, env=self._environment()), log)

    def _daemon(self, host: Host, name: str, *args: str) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {
            **self._environment(),
            "SPARK_HOME": str(spark_class.parents[1]),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMONS,
        }
        command = [str(spark_class), f"org.apache.spark.deploy.{name}", *args]
        host.popen(command, log=self._directory / f"{host.name}.log", env=environment)

    def _environment(self) -> dict[str, str]:
        """Of daemons, drivers and, through the workers, executors. Nothing in it tells Spark where it is: its host does."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        return {
            **inherited,
            **self._aws.environment,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(kinesis_efo.__file__).parents[1]),
        }

    def _listens(self) -> bool:
        try:
            socket.create_connection((self.hosts[MASTER].address, _PORT), 5).close()
        except OSError:
            return False
        return True

    def _alive(self) -> list[str]:
        url = f"http://{self.hosts[MASTER].address}:{_WEB_PORT}/json/"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                workers = json.load(answer)["workers"]
        except OSError:
            return []
        return sorted(worker["host"] for worker in workers if worker["state"] == "ALIVE")


def fetchers_on(host: Host) -> list[psutil.Process]:
    """The fetchers on a host: workers forked by Spark's Python daemon that listen."""
    daemons = {process.pid for process in host.processes(DAEMON)}

    def is_one(process: psutil.Process) -> bool:
        try:
            return process.ppid() in daemons and bool(host.listening(process))
        except psutil.NoSuchProcess:
            return False

    return [process for process in host.processes(DAEMON) if is_one(process)]


def fetchers(hosts: Hosts) -> int:
    """The number of fetchers on all workers."""
    return sum(len(fetchers_on(hosts[name])) for name in WORKERS)


def executor_of(fetcher: psutil.Process) -> psutil.Process:
    """The JVM that a fetcher is a task of. Other drivers have executors on its host, too."""
    return next(each for each in fetcher.parents() if each.name() == "java")
