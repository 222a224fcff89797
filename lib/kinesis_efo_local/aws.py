"""`LocalAws`: runs the local AWS in a background thread of this process. The CLI uses it, too."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .certificate import make_tls
from .data_directory import DataDirectory, DataError, Table, read_tables, write_tables
from .fault_injection import FaultInjection, NoFaults
from .listening import Listener
from .moto_proxy import ACCOUNT, MotoProxy
from .rows import Row, put_rows
from .server import LOOPBACK, Server
from .settings import Settings
from .state import Clock, Kinesis

ACCESS_KEY, SECRET_KEY = "AKIALOCALKINESISEFO0", "local-secret"


_making = threading.Lock()


@cache
def _session() -> Any:
    # All servers of the process share one session, because creating one takes a third of a second to read the SDK's models and endpoints.
    import boto3

    return boto3.session.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)


class LocalAws:
    """An AWS endpoint on this machine: Kinesis in memory, moto for every other service.

    Serves HTTP/1.1 and HTTP/2 (with prior knowledge or by upgrade) on its port, and both over TLS on a second port if `tls_port` is set.
    Use it as a context manager, or call `start` and `stop`. Stopping releases all of its threads, sockets, tasks and temporary files.
    Two instances in one process have separate Kinesis states, but share the state of moto, which has only one per process.

    Args:
        settings: Settings of the server; the defaults are close to the real service.
        host: Address to bind. There is no authentication: unless this is a loopback address, everyone on the network has access.
        port: Port to bind; 0 picks a free one.
        faults: Faults to inject, for tests.
        clock: Clock of the local Kinesis, for tests; any object with `time()` and `monotonic()`.
        tls_port: Port to bind for TLS; 0 picks a free one, None disables TLS.
        data_dir: Directory that keeps the data of Kinesis, and the DynamoDB tables in `settings.region`, from `stop` to the next
            `start`; None keeps nothing.

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
        tls_port: int | None = None,
        data_dir: Path | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._host = host
        self._wanted_port = port
        self._wanted_tls_port = tls_port
        self._data = None if data_dir is None else DataDirectory(data_dir)
        self._tables: list[Table] = []
        self._unkept: DataError | None = None
        self._faults = faults or NoFaults()
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._server: Server | None = None
        self._port = self._tls_port = 0
        self._ca_path: Path | None = None
        self._clients: list[Any] = []
        self._writer: Any = None

    def start(self) -> LocalAws:
        """Start the server, and return once it answers requests.

        Raises:
            OSError: An address cannot be bound.
            DataError: The data directory cannot be used.
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
        """Stop the server: end all subscriptions and free the ports. Does nothing if the server is not running.

        Raises:
            DataError: The server has stopped, but the data could not be written to `data_dir`.
        """
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        self._writer = None
        while self._clients:
            self._clients.pop().close()
        if self._unkept is not None:
            unkept, self._unkept = self._unkept, None
            raise unkept

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def endpoint_url(self) -> str:
        """The URL to give clients as `endpoint_url`."""
        return self._url("http", self._port)

    @property
    def tls_endpoint_url(self) -> str:
        """The URL of the TLS port, for clients that verify with `ca_path`.

        Raises:
            RuntimeError: `tls_port` was not set, or the server has not been started.
        """
        if not self._tls_port:
            raise RuntimeError("the local AWS offers no TLS: pass tls_port=0, and start it")
        return self._url("https", self._tls_port)

    @property
    def ca_path(self) -> str:
        """Path of the PEM file with the CA certificate that clients of the TLS port need, for example as boto3's `verify`.

        Raises:
            RuntimeError: `tls_port` was not set, or the server is not running.
        """
        if self._ca_path is None:
            raise RuntimeError("the local AWS offers no TLS: pass tls_port=0, and start it")
        return str(self._ca_path)

    @property
    def kinesis(self) -> Kinesis:
        """The state of Kinesis in `settings.region`: streams, open subscriptions, the trace of calls."""
        return self.kinesis_in(self.settings.region)

    def kinesis_in(self, region: str) -> Kinesis:
        """The state of Kinesis in the given region."""
        if self._server is None:
            raise RuntimeError("the local AWS is not running: enter its context or call start()")
        return self._server.kinesis(region)

    def put(self, stream: str, rows: Iterable[Row], *, seconds: float = 60.0) -> int:
        """Put rows into a stream, in order unless Kinesis throttles some of them.

        Args:
            stream: Name of the stream in Kinesis.
            rows: Each row is data, or a tuple of partition key and data. Data is bytes, text, or an object, which is encoded as JSON.
                The default partition key is the row's number.
            seconds: How long to retry records that Kinesis throttles.

        Returns:
            The number of rows.

        Raises:
            ClientError: The stream does not exist, or a record is too large.
            TimeoutError: Kinesis does not accept all records in time.

        Example:
            >>> with LocalAws() as aws:
            ...     _ = aws.client("kinesis").create_stream(StreamName="orders", ShardCount=1)
            ...     aws.put("orders", [{"id": 1}, "text", b"bytes", ("customer-7", {"id": 2})])
            4
        """
        if self._writer is None:
            self._writer = self.client("kinesis")
        return put_rows(self._writer, stream, rows, seconds)

    def backdate(self, stream: str, seconds: float) -> None:
        """Give all records that are put from now on an earlier arrival time, for example to create a backlog of several hours at once.

        Sequence numbers and the creation times of shards do not change, so a read by time may skip a shard that is younger than its
        records. To create older shards as well, use a `clock` that is set back.

        Args:
            stream: Name of the stream.
            seconds: How much earlier than the real arrival time; 0 ends the backdating.

        Raises:
            RuntimeError: The server is not running.
            AwsError: The stream does not exist.

        Example:
            >>> with LocalAws() as aws:
            ...     kinesis = aws.client("kinesis")
            ...     _ = kinesis.create_stream(StreamName="orders", ShardCount=1)
            ...     aws.backdate("orders", 3600)
            ...     _ = kinesis.put_record(StreamName="orders", PartitionKey="k", Data=b"of an hour ago")
        """
        # A single assignment is atomic: the server's thread sees either the old or the new value.
        self.kinesis.stream({"StreamName": stream}).traits.backdated_seconds = seconds

    def register_consumer(self, stream_arn: str, name: str, created: int) -> None:
        """Register a consumer with a given creation time in its ARN, for example to get the consumer ARN of an existing manifest.

        The consumer becomes ACTIVE after `Settings.consumer_creating_seconds`, like any other.

        Args:
            stream_arn: ARN of the stream.
            name: Name of the consumer.
            created: Creation time in the consumer's ARN, epoch seconds.

        Raises:
            RuntimeError: The server is not running.
            AwsError: The stream does not exist, or already has a consumer of this name.

        Example:
            >>> with LocalAws() as aws:
            ...     _ = aws.client("kinesis").create_stream(StreamName="orders", ShardCount=1)
            ...     aws.register_consumer("arn:aws:kinesis:us-east-1:123456789012:stream/orders", "lake", 1700000000)
        """
        kinesis = self.kinesis
        assert self._loop is not None

        async def register() -> None:
            kinesis.register_consumer(kinesis.stream({"StreamARN": stream_arn}), name, {}, created)

        # Only the server's thread may change the state.
        asyncio.run_coroutine_threadsafe(register(), self._loop).result()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make every AWS SDK of a child process use this endpoint."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": self.settings.region,
            "AWS_REGION": self.settings.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        # Only clients of the TLS port need AWS_CA_BUNDLE; AWS_ENDPOINT_URL refers to the port without TLS.
        return variables if self._ca_path is None else {**variables, "AWS_CA_BUNDLE": self.ca_path}

    def client(self, service: str, **options: Any) -> Any:
        """Create a boto3 client for this endpoint; `stop` closes its connections.

        Args:
            service: Name of the service, for example `"kinesis"` or `"dynamodb"`.
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

    def _url(self, scheme: str, port: int) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{port}"

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        data = self._data
        moto = (
            MotoProxy(self.settings.account_id)
            if data is None
            else MotoProxy(self.settings.account_id, self._restore_tables, self._keep_tables)
        )
        any_host = not LOOPBACK.fullmatch(self._host)
        self._server = Server(self.settings, self._faults, self._clock, moto, any_host=any_host)
        listener = Listener(self._server.answer, self.settings.max_concurrent_streams, self.settings.max_request_bytes)
        with ExitStack() as files:
            try:
                if data is not None:
                    data.open()
                    files.callback(data.close)
                    self._server.restore(data.account(self.settings.account_id))
                    self._tables = data.tables()
                await listener.start()
                self._port = await self._listen(listener, self._wanted_port, None)
                if self._wanted_tls_port is not None:
                    folder = files.enter_context(tempfile.TemporaryDirectory(prefix="kinesis-efo-local-"))
                    context, self._ca_path = make_tls(self._host, Path(folder))
                    self._tls_port = await self._listen(listener, self._wanted_tls_port, context)
            except BaseException as error:
                await listener.end_pushes()
                await listener.close()
                ready.set_exception(error)
                return
            ready.set_result(None)
            try:
                await self._stopping.wait()
            finally:
                self._ca_path = None
                await listener.end_pushes()
                await asyncio.gather(self._server.close(), listener.close())
                if data is not None:
                    with self._keeping():
                        data.keep_account(self._server.keep())

    def _restore_tables(self, url: str) -> None:
        with closing(self._dynamodb(url)) as dynamodb:
            write_tables(dynamodb, self._tables)

    def _keep_tables(self, url: str) -> None:
        if self._data is not None:
            with self._keeping(), closing(self._dynamodb(url)) as dynamodb:
                self._data.keep_tables(read_tables(dynamodb))

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Context manager that stores an error raised while writing the data directory. `stop` raises it after stopping the server."""
        try:
            yield
        except (OSError, BotoCoreError, ClientError) as error:
            self._unkept = DataError(f"the data directory could not be written, so it is as it was before: {error}")

    def _dynamodb(self, url: str) -> Any:
        with _making:
            client = _session().client("dynamodb", region_name=self.settings.region, endpoint_url=url)
        client.meta.events.register("before-call", self._for_this_account)
        return client

    def _for_this_account(self, params: dict[str, Any], **_: Any) -> None:
        params["headers"][ACCOUNT] = self.settings.account_id

    async def _listen(self, listener: Listener, port: int, tls: ssl.SSLContext | None) -> int:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, port), family=family, backlog=1024)
        # asyncio sets TCP_NODELAY only if the socket has a protocol number. Without TCP_NODELAY, events may be delayed by up to 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await listener.listen(listening, tls)
        bound: int = listening.getsockname()[1]
        return bound
