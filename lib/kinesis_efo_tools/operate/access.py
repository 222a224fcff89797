"""AWS clients for the command line: created on first use, closed together, with shorter timeouts than queries use."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aiobotocore.config import AioConfig

from kinesis_efo.aws import COMMAND_SECONDS, AsyncClients
from kinesis_efo.aws_errors import CALL_ERRORS, NoAnswerError
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.options import AwsSettings

CONFIG: Final = AioConfig(
    connect_timeout=5, read_timeout=15, retries={"mode": "standard", "total_max_attempts": 3}, max_pool_connections=64
)
"""Short timeouts, for interactive commands."""


class Clients(Protocol):
    """Provides AWS clients."""

    async def client(self, service: str) -> Any:
        """Return the aiobotocore client of a service, such as `kinesis`."""
        ...


class Access:
    """AWS clients that share a region, endpoint and role. An async context manager.

    `clock` has Kinesis' time, from its responses. `table_clock` has DynamoDB's time, which determines the age of lease table rows.

    Args:
        region: The region if `aws` does not set one.
        clock: This machine's clock.
    """

    def __init__(self, aws: AwsSettings, region: str, clock: Clock | None = None) -> None:
        self.clock = KinesisClock(clock or SystemClock(), warns=False)  # no warning: `doctor` checks the clock itself
        self.table_clock = KinesisClock(clock or SystemClock(), warns=False)
        self._clients = AsyncClients(aws, region, seconds=COMMAND_SECONDS)
        self._opened: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def client(self, service: str) -> Any:
        async with self._opening:
            if service not in self._opened:
                context = await self._clients.open(service, CONFIG)
                self._opened[service] = await self._stack.enter_async_context(context)
                if service in (clocks := {"kinesis": self.clock, "dynamodb": self.table_clock}):
                    clocks[service].watch(self._opened[service], service)
        return self._opened[service]

    async def kinesis_time(self, stream_arn: str) -> float:
        """Return Kinesis' time in epoch seconds. Calls ListShards if Kinesis has not sent a response yet.

        Raises NoAnswerError if that call times out. After any other error without a response, returns this machine's time.
        """
        if not self.clock.is_set:
            try:
                await (await self.client("kinesis")).list_shards(StreamARN=stream_arn, MaxResults=1)
            except NoAnswerError:
                raise  # do not make the caller wait for a second timeout
            except CALL_ERRORS:
                pass  # an error response contains the time, too, and the caller's next call raises the error again
        return self.clock.time()

    async def credentials(self) -> Any:
        return await self._clients.credentials()

    async def open(self, service: str, config: AioConfig) -> AbstractAsyncContextManager[Any]:
        """Create a separate client with its own connections, as an async context manager."""
        return await self._clients.open(service, config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
