"""Fetchers behind Spark Connect: a client submits them, they come and go with their query, and the query outlives the client."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from kinesis_efo_local import LocalAws
from tests.support.arriving import arriving, numbered
from tests.support.driven import Driver, assert_once_and_in_order
from tests.support.ports import accepts, free_ports
from tests.support.world import World, wait_until

# On 4.0, whose clients of Spark Connect have offsets in a form of their own.
pytestmark = [pytest.mark.spark40, pytest.mark.slow, pytest.mark.long]
MakeWorld = Callable[..., World]

SPARK = Path(pyspark.__file__).parent
CLIENT = Path(__file__).parents[2] / "cluster" / "driver.py"
CONF = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # A client that does not come back is given up after minutes.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "3s",
    "spark.connect.execute.manager.detachedTimeout": "3s",
    "spark.connect.execute.manager.maintenanceInterval": "1s",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Server:
    """A Spark Connect server with four cores, in a process group of its own."""

    def __init__(self, aws: LocalAws, directory: Path) -> None:
        (port,) = free_ports()
        self.url = f"sc://127.0.0.1:{port}"
        self.log = directory / "server.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            **aws.environment,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        conf = {**CONF, "spark.connect.grpc.binding.port": str(port)}
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        name = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = [str(SPARK / "bin" / "spark-submit"), "--class", name, "--master", "local[4]", *options]
        self.process = self._popen([*command, "spark-internal"], self.log, {"SPARK_HOME": str(SPARK)})
        wait_until(lambda: self._listens(port), 120, f"the server, see {self.log}")

    def client(self, directory: Path) -> Driver:
        """Start a client of this server."""
        log = directory / f"client{len(list(directory.glob('client*')))}.log"
        return Driver(self._popen([sys.executable, str(CLIENT), json.dumps({"remote": self.url})], log), log)

    def close(self) -> None:
        """End it with all its processes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            self.process.kill()
        self.process.wait()

    def _popen(self, command: list[str], log: Path, more: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**self._environment, **(more or {})},
                start_new_session=True,
            )

    def _listens(self, port: int) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-5000:]
        return accepts(port)


@pytest.fixture
def server(world: MakeWorld, tmp_path: Path) -> Iterator[Server]:
    server = Server(world().aws, tmp_path)
    yield server
    server.close()


def test_a_query_outlives_its_client(server: Server, world: MakeWorld, tmp_path: Path) -> None:
    w = world({"orders": 4})
    put = w.put(numbered(200))
    client = server.client(tmp_path)
    with arriving(w, first=put) as count:
        query = client.start("first", w, tmp_path, options={"leaseTimeout": "4s"})
        query.wait_for_rows(put + 1)
        told = r"^query first, micro-batch \d+: [\d,]+ rows in .*; 4 shards, at most [\d,]+ ms behind"
        wait_until(lambda: re.search(told, client.said(), re.MULTILINE), 30, "the lag, told by the client")
        client.kill()
        assert client.process.stdin is not None
        client.process.stdin.close()
        before = count[0]
        wait_until(lambda: len(query.rows()) > before, 60, "rows that come only now", every=0.2)
    wait_until(lambda: len(query.rows()) >= count[0], 60, "all rows", every=0.2)
    assert_once_and_in_order(query.rows(), count[0])
    os.kill(server.process.pid, signal.SIGTERM)
    server.process.wait(60)
