"""A connection to one of this library's Arrow Flight services: finds the way, and raises the errors of the other side as they were."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.errors import FetcherError, FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.address import CERTIFICATE_NAME, FetcherAddress, network_namespace
from kinesis_efo.fetcher.connection_cache import ConnectionCache
from kinesis_efo.fetcher.messages import SECRET_HEADER, unpack_error
from kinesis_efo.hosts import LOOPBACK

T = TypeVar("T")
_LARGE_FRAMES: Final = ("grpc.http2.max_frame_size", 1 << 20)
"""gRPC cuts messages into HTTP/2 frames of 16 KiB unless the receiver allows more, which takes a sixth off its work."""
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)
"""gRPC takes a proxy from the environment, which is there for the way out of the cluster."""
_CONNECT_TIMEOUT: Final = "grpc.min_reconnect_backoff_ms"
"""What gRPC calls the time that it gives to an attempt to connect, TLS included."""
_CONNECT_SECONDS: Final = 5.0
_LAST_CONNECT_SECONDS: Final = 20.0
"""gRPC's own: a machine under load answers late, and after the last way there is no other."""

_reached: dict[tuple[str, ...], str] = {}
"""The host that a fetcher answered at, by the hosts to try: the tasks of a worker come one after the other, in this process."""


class Connection:
    """One connection to one service. Not to be shared between threads.

    It connects with the first call, by the first way that leads there.

    Args:
        address: How to reach it.
        secret: The secret of the run.
        namespace: The network namespace of this process.
        connect_seconds: Time for each way but the last.
        last_connect_seconds: Time for the last way.
        kept: Where connections within the machine stay open for the next task; None: nowhere.
    """

    service = "fetcher"
    """What is there, for messages."""

    def __init__(
        self,
        address: FetcherAddress,
        secret: str,
        *,
        namespace: str | None = None,
        connect_seconds: float = _CONNECT_SECONDS,
        last_connect_seconds: float = _LAST_CONNECT_SECONDS,
        kept: ConnectionCache | None = None,
    ) -> None:
        self._address = address
        self._secret = secret
        self._namespace = network_namespace() if namespace is None else namespace
        self._connect_seconds = connect_seconds
        self._last_connect_seconds = last_connect_seconds
        self._location = str(address)
        self._client: flight.FlightClient | None = None
        self._kept = kept
        self._local = False
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed |= kind is not None
        self.close()

    def close(self) -> None:
        """Close the connection, or keep it for the next one to the same place."""
        if self._client is not None and self._kept is not None and self._local and not self._failed:
            self._kept.keep(self._address, self._client)
            self._client = None
        self._drop()

    def action(self, name: str, request: msgspec.Struct, answer: type[T], seconds: float) -> T:
        """Make a call with one answer.

        Args:
            name: Its name.
            request: What is asked.
            answer: The type of the answer.
            seconds: Longest time to wait for it.

        Raises:
            FetcherUnreachableError: Nobody answers, or not in time.
            KinesisEfoError: The error of the other side.
        """
        with self.translated():
            action = flight.Action(name, msgspec.json.encode(request))
            (result,) = self.call(lambda client: list(client.do_action(action, self.options(seconds))))
            return msgspec.json.decode(result.body.to_pybytes(), type=answer)

    def call(self, call: Callable[[flight.FlightClient], T]) -> T:
        """Make a call; the first one finds the way. Every call may be repeated."""
        if self._client is not None:
            return call(self._client)
        if self._kept is not None and (kept := self._kept.take(self._address)) is not None:
            self._client, self._local = kept, True
            self._location = self._address.location(LOOPBACK)
            try:
                return call(kept)
            except flight.FlightUnavailableError:
                self._drop()
        hosts = self._address.hosts_from(self._namespace)
        tried: list[str] = []
        for host in sorted(hosts, key=lambda host: host != _reached.get(hosts)):
            seconds = self._connect_seconds if len(tried) < len(hosts) - 1 else self._last_connect_seconds
            began = time.monotonic()
            client = self._connect(host, seconds)
            try:
                answer = call(client)
            except flight.FlightUnavailableError as error:
                self._drop()
                took = time.monotonic() - began
                tried.append(f"{self._location} ({_reason(error)}{f', after {took:.0f} s' if took >= 1 else ''})")
            else:
                _reached[hosts] = host
                return answer
        raise self._unreachable(tried)

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self, host: str, seconds: float) -> flight.FlightClient:
        pinned: dict[str, str] = {}
        if self._address.certificate is not None:
            pinned = {"tls_root_certs": self._address.certificate, "override_hostname": CERTIFICATE_NAME}
        self._location, self._local = self._address.location(host), host == LOOPBACK
        self._client = flight.FlightClient(
            self._location,
            generic_options=[_LARGE_FRAMES, _NO_PROXY, (_CONNECT_TIMEOUT, int(seconds * 1000))],
            **pinned,
        )
        return self._client

    def _unreachable(self, tried: Iterable[str]) -> FetcherUnreachableError:
        if not tried:
            return FetcherUnreachableError(
                f"the {self.service} listens on the loopback address only, and this task is in another network namespace than it: name an "
                "address that tasks reach (kinesis-efo option 'fetcherHost')"
            )
        return FetcherUnreachableError(
            f"no {self.service} answers at {', '.join(tried)}. It runs beside the driver while its query does. Let executors open connections "
            "to it (security groups, network policies; kinesis-efo option 'fetcherPort' fixes its port), or name an address of it that "
            "they reach ('fetcherHost')"
        )

    def options(self, timeout: float | None) -> flight.FlightCallOptions:
        """The options of a call, with the secret and a timeout in seconds."""
        return flight.FlightCallOptions(timeout=timeout, headers=[(SECRET_HEADER.encode(), self._secret.encode())])

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise Flight's errors as this library's. After any error, the connection is not kept."""
        completed = False
        try:
            yield
            completed = True
        except flight.FlightUnauthenticatedError:
            raise FetcherRefusedError(
                f"the {self.service} at {self._location} does not know this run's secret: it belongs to another run"
            ) from None
        except flight.FlightUnavailableError as error:
            raise self._unreachable([f"{self._location} ({_reason(error)})"]) from None
        except flight.FlightCancelledError:
            # This client never cancels a call that it waits for: the service did, by shutting down in the middle of it.
            raise FetcherUnreachableError(
                f"the {self.service} at {self._location} has stopped in the middle of a call; its query has ended, or restarts"
            ) from None
        except flight.FlightTimedOutError as error:
            raise FetcherUnreachableError(
                f"the {self.service} at {self._location} did not answer in time: {error}"
            ) from None
        except flight.FlightError as error:
            if error.extra_info:
                raise unpack_error(bytes(error.extra_info)) from None
            raise FetcherError(f"the {self.service} at {self._location}: {_first_line(error)}") from None
        except pa.ArrowException as error:
            raise FetcherError(f"the {self.service} at {self._location}: {_first_line(error)}") from None
        finally:
            self._failed |= not completed


def _reason(error: flight.FlightUnavailableError) -> str:
    """The part of gRPC's message that says something."""
    reason = _first_line(error)
    for verbose in ("with message: ", "failed to connect to all addresses; last error: "):
        reason = reason.rpartition(verbose)[2]
    if "certificate verify failed" in reason:
        return f"another certificate than the fetcher's is shown there: {reason}"
    return reason


def _first_line(error: Any) -> str:
    return str(error).split("\n", 1)[0]
