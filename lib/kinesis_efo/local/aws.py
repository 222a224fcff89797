"""`LocalAws`: runs the local AWS in a background thread of this process. The CLI uses it, too."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import time
from functools import cache
from types import TracebackType
from typing import Any

from aiohttp import web

from .fault_injection import FaultInjection, NoFaults
from .server import Server
from .settings import Settings
from .state import Clock, Kinesis

ACCESS_KEY, SECRET_KEY = "AKIALOCALKINESISEFO0", "local-secret"


_making = threading.Lock()


@cache
def _session() -> Any:
    # One for all servers of the process: each new one spends a third of a second on reading the SDK's models and endpoints.
    import boto3

    return boto3.session.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)


class LocalAws:
    """An AWS endpoint on this machine: Kinesis in memory, moto for every other service.

    A context manager; `start` and `stop` do the same by hand. It leaves no thread, socket or task behind when it stops.
    Two at once in one process have a Kinesis each, but share moto's state: moto has one per process.

    Args:
        settings: Behaviour; by default like the real service's.
        host: Address to bind. There is no authentication: with another address than loopback, anybody on the network has access.
        port: Port to bind; 0 picks a free one.
        faults: Faults to inject, for tests.
        clock: Source of Kinesis' times, for tests; any object with `time()` and `monotonic()`.

    Example:
        >>> with LocalAws(settings=Settings(subscription_seconds=2)) as aws:
        ...     kinesis = aws.client("kinesis")
        ...     _ = kinesis.create_stream(StreamName="orders", ShardCount=4)
    """

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: FaultInjection | None = None,
        clock: Clock = time,
    ) -> None:
        self.settings = settings or Settings()
        self._host = host
        self._wanted_port = port
        self._faults = faults or NoFaults()
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._server: Server | None = None
        self._port = 0
        self._clients: list[Any] = []

    def start(self) -> LocalAws:
        """Start the server; return once it answers requests.

        Raises:
            OSError: The address cannot be bound.
        """
        if self._thread is not None:
            raise RuntimeError(f"the local AWS is already running at {self.endpoint_url}; stop it first")
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="local-aws", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """End all subscriptions and free the port. Does nothing if it is not running."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        while self._clients:
            self._clients.pop().close()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def endpoint_url(self) -> str:
        """The URL to give clients as `endpoint_url`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def kinesis(self) -> Kinesis:
        """The state of Kinesis in `settings.region`: streams, open subscriptions, the trace of calls."""
        return self.kinesis_in(self.settings.region)

    def kinesis_in(self, region: str) -> Kinesis:
        """The state of Kinesis in any region."""
        if self._server is None:
            raise RuntimeError("the local AWS is not running: enter its context or call start()")
        return self._server.kinesis(region)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make every AWS SDK of a child process use this endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": self.settings.region,
            "AWS_REGION": self.settings.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, **options: Any) -> Any:
        """Create a boto3 client for this endpoint; `stop` closes its connections.

        Args:
            service: For example `"kinesis"` or `"dynamodb"`.
            options: Passed to `Session.client`; `region_name` is `settings.region` by default.
        """
        region = options.pop("region_name", self.settings.region)
        with _making:
            client = _session().client(service, region_name=region, endpoint_url=self.endpoint_url, **options)
        self._clients.append(client)
        return client

    def __enter__(self) -> LocalAws:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._server = Server(self.settings, self._faults, self._clock)
        # With `handler_cancellation`, a subscription closes as soon as its client disconnects.
        runner = web.AppRunner(
            self._server.app(),
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            shutdown_timeout=0.5,
        )
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listening = socket.create_server((self._host, self._wanted_port), family=family, backlog=1024)
            await runner.setup()
            await web.SockSite(runner, listening).start()
            self._port = listening.getsockname()[1]
        except BaseException as error:
            await runner.cleanup()
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            await self._stopping.wait()
        finally:
            # asyncio and aiohttp forget connections that were accepted just before the server closes.
            self._loop.remove_reader(listening)
            for _ in range(3):
                await asyncio.sleep(0)
            # aiohttp leaves connections open whose client does not read what was sent.
            connections = [connection.transport for connection in runner.server.connections] if runner.server else []
            await self._server.close()
            await runner.cleanup()
            for connection in connections:
                if connection is not None:
                    connection.abort()
            await asyncio.sleep(0)
