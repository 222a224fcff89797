"""What somebody sees who looks at the connection between a task and a fetcher."""

import base64
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from kinesis_efo.calls import connection
from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.tls import make_certificate
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.positions import SHARD_END, Position, PositionKind, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fetching import reading
from tests.support.world import World

MARKER = b"card-4111-1111-1111-1111"
NETWORK = Listening("0.0.0.0", hosts=("127.0.0.1",))


def read_through_a_proxy(world: World, listening: Listening) -> tuple[bytes, bytes]:
    """Read with every call going through a proxy; returns what the proxy has seen, and the secret of the run."""
    world.put((f"k{n}", MARKER) for n in range(20))
    with (
        reading(world, listening=listening) as r,
        CuttingProxy(r.runtime.address.port, lambda _: None) as proxy,
    ):
        there = replace(r.runtime.address, namespace="elsewhere", port=proxy.port, hosts=NETWORK.hosts)
        with FetcherClient(there, r.runtime.secret) as client:
            r.client = client
            assert [row.data for row in r.until(20)] == [MARKER] * 20
        return bytes(proxy.passed), r.runtime.secret.encode()


def test_neither_a_record_nor_the_secret_is_seen(world: Callable[..., World]) -> None:
    seen, secret = read_through_a_proxy(world(), NETWORK)
    assert len(seen) > 20 * len(MARKER)
    assert not [told for told in (MARKER, base64.b64encode(MARKER), secret, b"orders", b"shardId-") if told in seen]


def test_the_secret_is_asked_for_over_tls_too(world: Callable[..., World]) -> None:
    with reading(world(), listening=NETWORK) as r:
        assert r.runtime.address.certificate is not None
        with FetcherClient(r.runtime.address, "guessed") as stranger, pytest.raises(FetcherRefusedError):
            next(stranger.get([ShardRange(*next(iter(r.offset.items())), SHARD_END)]))


def test_fetcher_killed_before_the_handshake_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    caller_context = connection.caller_context
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def killed(certificate: str) -> ssl.SSLContext:
            listening.close()
            return caller_context(certificate)

        monkeypatch.setattr(connection, "caller_context", killed)
        port, certificate = listening.getsockname()[1], make_certificate(datetime.now(UTC)).pem
        there = FetcherAddress("elsewhere", port, ("127.0.0.1",), certificate)
        with FetcherClient(there, "secret") as client, pytest.raises(FetcherUnreachableError, match="reset by peer"):
            next(client.get([ShardRange(ShardKey("orders", "shardId-1"), Position(PositionKind.AFTER, 1), SHARD_END)]))


def test_on_loopback_records_are_visible_and_the_secret_hidden(world: Callable[..., World]) -> None:
    seen, secret = read_through_a_proxy(world(), Listening())
    assert base64.b64encode(MARKER) in seen
    assert secret not in seen
