"""The local AWS over HTTP/2: how a connection begins and ends, its windows, its streams, and the faults of both."""

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame, HeadersFrame, RstStreamFrame

from kinesis_efo_local import Freeze, GoAway, NoFaults, Request
from tests.support.h2_client import H2Client
from tests.support.world import wait_until

from .conftest import Bench

Run = Callable[..., Bench]
SHARD = "shardId-{:012d}"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "localhost")]


def subscribe(client: H2Client, consumer: str, shard: int = 0, kind: str = "TRIM_HORIZON") -> int:
    """Subscribe to a shard; returns the number of the stream."""
    position = {"Type": kind}
    params = {"ConsumerARN": consumer, "ShardId": SHARD.format(shard), "StartingPosition": position}
    return client.call("SubscribeToShard", params)


def all_begun(client: H2Client, consumer: str, shards: Iterable[int]) -> list[int]:
    """Subscribe to shards, and wait for the first event of each."""
    streams = [subscribe(client, consumer, shard) for shard in shards]
    client.until(lambda: all(keys(client.bodies[stream]) for stream in streams))
    return streams


def keys(body: bytes | bytearray) -> list[str]:
    """The keys of the records in an event stream."""
    found = []
    while body:
        size, headers = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
        if len(body) < size:
            break
        found += [each["PartitionKey"] for each in json.loads(body[12 + headers : size - 4]).get("Records", ())]
        body = body[size:]
    return found


def put(bench: Bench, shard: int, key: str, shards: int = 3, data: bytes = b"x") -> None:
    where = str(2**128 // shards * shard)
    bench.client.put_record(StreamName="orders", Data=data, PartitionKey=key, ExplicitHashKey=where)


def spread(bench: Bench, shards: int) -> tuple[Bench, str]:
    """A consumer of a stream, each shard of which has a record with the shard's number as its key."""
    consumer = bench.consumer(bench.stream(shards))
    for shard in range(shards):
        put(bench, shard, str(shard), shards)
    return bench, consumer


def fill(bench: Bench, megabytes: int, shard: int = 0, shards: int = 1) -> None:
    """Put so many records of a megabyte into a shard."""
    for _ in range(megabytes):
        put(bench, shard, "big", shards, bytes(1_000_000))


def open_shards(bench: Bench) -> list[int]:
    return sorted(each.shard.index for each in bench.aws.kinesis.subscriptions)


@contextmanager
def secured(bench: Bench, name: str = "localhost", *protocols: str, version: Any = None) -> Iterator[ssl.SSLSocket]:
    """A connection over TLS that offers these protocols, to a server of this name."""
    context = ssl.create_default_context(cafile=bench.aws.ca_path)
    # As Python 3.13 has it by default.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(list(protocols))
    address = ("127.0.0.1", int(bench.aws.tls_endpoint_url.rpartition(":")[2]))
    with socket.create_connection(address, 20) as plain, context.wrap_socket(plain, server_hostname=name) as client:
        yield client


# -- beginnings


@pytest.mark.parametrize("tls", [False, True])
def test_one_connection_carries_calls_and_subscriptions(run: Run, tls: bool) -> None:
    bench, consumer = spread(run(tls_port=0), 2)
    with bench.http2(tls=tls) as client:
        streams = [subscribe(client, consumer, shard) for shard in range(2)]
        for shard, stream in enumerate(streams):
            client.until(lambda stream=stream: keys(client.bodies[stream]))
            assert keys(client.bodies[stream]) == [str(shard)]
            assert client.headers[stream][":status"] == "200"
            assert client.headers[stream]["content-type"] == "application/vnd.amazon.eventstream"
        status, body = client.answer(client.call("ListShards", {"StreamName": "orders"}))
        assert (status, len(json.loads(body)["Shards"])) == (200, 2)
        assert not client.ended & set(streams)
        # Those of the real service.
        assert client.settings[SettingCodes.MAX_CONCURRENT_STREAMS] == 5
        assert client.settings[SettingCodes.INITIAL_WINDOW_SIZE] == 1 << 20


def test_http11_connection_is_upgraded_and_answered(bench: Bench) -> None:
    _, consumer = spread(bench, 1)
    params = {"ConsumerARN": consumer, "ShardId": SHARD.format(0), "StartingPosition": {"Type": "TRIM_HORIZON"}}
    body = json.dumps(params).encode()
    request = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.SubscribeToShard\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with bench.http2(upgrade=request) as client:
        client.until(lambda: keys(client.bodies[1]) == ["0"])
        assert client.answer(client.call("ListStreams", {}))[0] == 200
    wait_until(lambda: not bench.aws.kinesis.subscriptions)


def test_upgrade_with_wrong_settings_is_refused(bench: Bench) -> None:
    for wrong in ("AAMAAABk!", "A", "AAMA", "AAIAAAAF"):
        with socket.create_connection(("127.0.0.1", bench.aws.port), timeout=20) as client:
            client.sendall(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                b"HTTP2-Settings: " + wrong.encode() + b"\r\n\r\n"
            )
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_preface_in_pieces_is_understood(bench: Bench) -> None:
    with socket.create_connection(("127.0.0.1", bench.aws.port), timeout=20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]):
            client.sendall(bytes([byte]))
        assert client.recv(9)[3] == 4
    with socket.create_connection(("127.0.0.1", bench.aws.port), timeout=20) as client:
        client.sendall(PREFACE[:10])
    with socket.create_connection(("127.0.0.1", bench.aws.port), timeout=20) as client:
        client.sendall(PREFACE[:10] + b"garbage\r\n\r\n")
        assert client.recv(1 << 16).split()[1] == b"400"
    assert bench.client.list_streams()["StreamNames"] == []


def test_tls_accepts_versions_of_sdks_and_local_names(run: Run) -> None:
    bench = run(tls_port=0)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for name in ("localhost", "127.0.0.1", "::1"):
            for protocols, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)):
                with secured(bench, name, *protocols, version=version) as client:
                    assert client.selected_alpn_protocol() == chosen


# -- requests


def test_bug_ends_its_stream_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(NoFaults):
        async def before(self, request: Request) -> None:
            if request.operation == "DescribeLimits":
                raise RuntimeError("a bug of the test's")

    with run(faults=Broken()).http2() as client:
        broken = client.call("DescribeLimits", {})
        client.until(lambda: broken in client.resets)
        assert client.resets[broken] == ErrorCodes.INTERNAL_ERROR
        assert client.answer(client.call("CreateStream", b"{"))[0] == 400
    assert "a bug of the test's" in caplog.text


@pytest.mark.slow
def test_large_requests_arrive_and_larger_ones_are_refused(run: Run) -> None:
    limit = 16 * 1024 * 1024
    bench = run(max_request_bytes=limit)
    bench.stream()
    with bench.http2() as client:
        records = [{"Data": "A" * 40_000, "PartitionKey": "k"}] * 340
        body = json.dumps({"StreamName": "orders", "Records": records}).encode()
        status, answer = client.answer(client.call("PutRecords", body))
        assert (status, json.loads(answer)["FailedRecordCount"]) == (200, 0)
        # Kinesis says what is wrong with it, so all of it has come.
        padded = b'{"StreamName":"orders","Records":[]' + b" " * (limit - 36) + b"}"
        assert len(padded) == limit
        status, answer = client.answer(client.call("PutRecords", padded))
        assert (status, json.loads(answer)["__type"]) == (400, "ValidationException")
        assert client.answer(client.call("PutRecords", padded + b" "))[0] == 413
        with bench.http2() as other:
            other.call("PutRecords", padded + b" " * 10_000_000)
            other.until(lambda: other.resets)
            assert (other.headers[1][":status"], other.resets[1]) == ("413", ErrorCodes.NO_ERROR)
            assert other.answer(other.call("ListStreams", {}))[0] == 200
        assert client.answer(client.call("ListStreams", {}))[0] == 200


# -- streams


def test_stream_above_the_limit_is_refused(run: Run) -> None:
    bench, consumer = spread(run(max_concurrent_streams=3), 5)
    with bench.http2() as client:
        streams = [subscribe(client, consumer, shard) for shard in range(5)]
        client.until(lambda: len(client.resets) == 2)
        assert client.resets == {streams[3]: ErrorCodes.REFUSED_STREAM, streams[4]: ErrorCodes.REFUSED_STREAM}
        client.until(lambda: all(keys(client.bodies[stream]) for stream in streams[:3]))
        assert open_shards(bench) == [0, 1, 2]
        client.reset(streams[0])
        again = subscribe(client, consumer, 3)
        client.until(lambda: keys(client.bodies[again]) == ["3"])
        assert bench.aws.kinesis.calls("SubscribeToShard") == 4
        # One more, and given up before the server has read either.
        headers = HeadersFrame(21, client.h2.encoder.encode(REQUEST), flags=["END_HEADERS", "END_STREAM"])
        client.socket.sendall(headers.serialize() + RstStreamFrame(21, error_code=8).serialize())
        client.ping()
        assert client.goaways == []
        assert open_shards(bench) == [1, 2, 3]


@pytest.mark.parametrize("tls", [False, True])
def test_reset_or_lost_connection_ends_its_subscriptions(run: Run, tls: bool) -> None:
    bench, consumer = spread(run(idle_event_seconds=60, tls_port=0), 2)
    with bench.http2(tls=tls) as client:
        first, second = all_begun(client, consumer, range(2))
        client.reset(first)
        wait_until(lambda: open_shards(bench) == [1])
        put(bench, 1, "more", 2)
        client.until(lambda: keys(client.bodies[second]) == ["1", "more"])
    wait_until(lambda: open_shards(bench) == [])


def test_goaway_of_the_client_leaves_open_streams(run: Run) -> None:
    bench, consumer = spread(run(resubscribe_seconds=0), 1)
    with bench.http2() as client:
        stream = subscribe(client, consumer)
        client.until(lambda: keys(client.bodies[stream]) == ["0"])
        # Not by h2, which would take no more.
        client.socket.sendall(GoAwayFrame(0, last_stream_id=0).serialize())
        fill(bench, 1)
        client.until(lambda: keys(client.bodies[stream]) == ["0", "big"])
        client.reset(stream)
        client.to_end()
        assert (client.closed, client.goaways) == ("end", [])
    with bench.http2() as client:
        subscribe(client, consumer)
        client.until(lambda: keys(client.bodies[stream]))
        client.socket.sendall(GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.PROTOCOL_ERROR).serialize())
        client.to_end()
    assert open_shards(bench) == []


# -- windows


def test_window_of_a_stream_limits_it_alone(bench: Bench) -> None:
    _, consumer = spread(bench, 2)
    fill(bench, 3)
    with bench.http2(window=10_000, consume=False) as client:
        full = subscribe(client, consumer, 0)
        client.until(lambda: len(client.bodies[full]) == 10_000)
        other = subscribe(client, consumer, 1)
        client.until(lambda: keys(client.bodies[other]) == ["1"])
        client.ping()
        assert len(client.bodies[full]) == 10_000
        client.h2.increment_flow_control_window(5_000, full)
        client.flush()
        client.until(lambda: len(client.bodies[full]) == 15_000)
        client.ping()
        assert len(client.bodies[full]) == 15_000
        assert bench.aws.kinesis.subscriptions[0].bytes < 1_000_000


def test_stream_ends_cleanly_if_read_and_is_reset_otherwise(run: Run) -> None:
    bench, consumer = spread(run(subscription_seconds=0.5, resubscribe_seconds=0), 1)
    fill(bench, 1)
    with bench.http2() as client:
        assert keys(client.answer(subscribe(client, consumer))[1]) == ["0", "big"]
    wait_until(lambda: open_shards(bench) == [])
    with bench.http2(consume=False) as client:
        stream = subscribe(client, consumer)
        client.until(lambda: stream in client.resets)
        assert client.resets[stream] == ErrorCodes.CANCEL
        assert open_shards(bench) == []
        client.h2.increment_flow_control_window(1_000)
        assert client.answer(client.call("ListStreams", {}))[0] == 200


def test_unread_socket_stops_the_push(bench: Bench) -> None:
    _, consumer = spread(bench, 1)
    fill(bench, 40)
    with bench.http2(window=(1 << 31) - 1) as client:
        client.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        subscribe(client, consumer)
        wait_until(lambda: open_shards(bench))
        sent = [0]

        def at_rest() -> bool:
            before, sent[0] = sent[0], bench.aws.kinesis.subscriptions[0].bytes
            threading.Event().wait(0.3)
            return 0 < before == sent[0]

        wait_until(at_rest)
        # The kernel's buffers hold the rest.
        assert sent[0] < 30_000_000
        client.until(lambda: len(client.bodies[1]) > 40 * 1_333_333)


# -- faults


class Second(NoFaults):
    """Takes these steps in place of the second event of the first shard."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Any]:
        strikes = subscription.events == 1 and subscription.shard.index == 0
        return [frame if step == "frame" else step for step in self.steps] if strikes else [frame]


def faulty(run: Run, *steps: Any, shards: int = 3) -> tuple[Bench, H2Client, list[int]]:
    """Subscriptions to all shards on one connection, each of which has had its first event."""
    bench, consumer = spread(run(faults=Second(*steps), idle_event_seconds=60), shards)
    client = bench.http2()
    # The first shard's stream is in the middle.
    order = [1, 0, *range(2, shards)][-shards:]
    streams = dict(zip(order, all_begun(client, consumer, order), strict=True))
    return bench, client, [streams[shard] for shard in range(shards)]


def test_goaway_with_grace_refuses_only_new_streams(run: Run) -> None:
    bench, client, streams = faulty(run, GoAway(), "frame")
    with client:
        put(bench, 0, "struck")
        client.until(lambda: client.goaways)
        assert client.goaways == [(max(streams), ErrorCodes.NO_ERROR)]
        client.until(lambda: keys(client.bodies[streams[0]]) == ["0", "struck"])
        put(bench, 1, "more")
        client.until(lambda: keys(client.bodies[streams[1]]) == ["1", "more"])
        late = client.call("ListStreams", {})
        client.ping()
        assert late not in client.headers
        for stream in streams:
            assert client.closed is None
            client.reset(stream)
        client.to_end()
        assert client.closed == "end"
    assert open_shards(bench) == []


def test_goaway_without_grace_ends_later_streams(run: Run) -> None:
    bench, client, streams = faulty(run, GoAway(ErrorCodes.INTERNAL_ERROR, grace=False))
    with client:
        put(bench, 0, "struck")
        client.until(lambda: client.goaways)
        assert client.goaways == [(streams[1], ErrorCodes.INTERNAL_ERROR)]
        wait_until(lambda: open_shards(bench) == [1])
        put(bench, 1, "more")
        client.until(lambda: keys(client.bodies[streams[1]]) == ["1", "more"])
        client.reset(streams[1])
        client.to_end()
        assert client.closed == "end"
    bench, client, _ = faulty(run, GoAway(grace=False), shards=1)
    with client:
        put(bench, 0, "struck", 1)
        client.to_end()
        assert (client.goaways, client.closed) == ([(0, ErrorCodes.NO_ERROR)], "end")
    assert open_shards(bench) == []


def test_frozen_connection_does_not_answer_until_it_thaws(run: Run) -> None:
    bench, client, streams = faulty(run, Freeze(3.0), "frame")
    with client:
        put(bench, 0, "struck")
        put(bench, 1, "more")
        # A call over HTTP/1.1 is answered after the server has acted on what came before.
        wait_until(lambda: bench.client.list_streams())
        client.h2.ping(b"12345678")
        client.flush()
        client.socket.settimeout(0.3)
        before = bytes(client.bodies[streams[0]])
        with pytest.raises(TimeoutError):
            client.until(lambda: client.pongs)
        assert client.bodies[streams[0]] == before
        client.socket.settimeout(20)
        client.until(lambda: client.pongs and keys(client.bodies[streams[0]]) == ["0", "struck"])
        client.until(lambda: keys(client.bodies[streams[1]]) == ["1", "more"])


# -- garbage and endings


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "wrong",
    [
        b"garbage and more garbage", frame(0, 0, 1, b"data on a stream that is not open"), frame(1, 4, 1, b"\xff" * 5),
        frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2, b"\xff" * 100,
    ],
)  # fmt: skip
@pytest.mark.parametrize("tls", [False, True])
def test_garbage_ends_the_connection_with_a_goaway(
    run: Run, wrong: bytes, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench, consumer = spread(run(tls_port=0), 1)
    with bench.http2(tls=tls) as client:
        first = subscribe(client, consumer)
        client.until(lambda: keys(client.bodies[first]))
        client.reset(first)
        client.ping()
        client.socket.sendall(wrong.replace(b"\0\0\0\1", b"\0\0\0\3") if wrong[3:4] in b"\0\1\11\5" else wrong)
        client.to_end()
        assert client.goaways
        assert client.goaways[0][1] != ErrorCodes.NO_ERROR
    assert bench.client.list_streams()["StreamNames"] == ["orders"]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_connection_without_tls_or_preface_is_closed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    bench = run(tls_port=0)
    plain = socket.create_connection(("127.0.0.1", int(bench.aws.tls_endpoint_url.rpartition(":")[2])), timeout=20)
    with plain, secured(bench, "localhost", "h2") as client:
        for each in (plain, client):
            each.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            with suppress(ConnectionResetError):
                while each.recv(1 << 16):
                    pass
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_stopping_ends_every_connection_and_leaves_nothing_behind(run: Run) -> None:
    before = set(threading.enumerate())
    bench, consumer = spread(run(idle_event_seconds=60, tls_port=0), 4)
    fill(bench, 30, 0, 4)
    port, folder = int(bench.aws.tls_endpoint_url.rpartition(":")[2]), Path(bench.aws.ca_path).parent
    clients = [bench.http2(tls=tls) for tls in (False, True)]
    # One of each does not read, with a window that lets everything through.
    clients += [bench.http2(tls=tls, window=(1 << 31) - 1) for tls in (False, True)]
    for shard, client in enumerate(clients):
        client.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        subscribe(client, consumer, shard)
    wait_until(lambda: open_shards(bench) == [0, 1, 2, 3])
    upgrade = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.ListStreams\r\n"
    clients.append(bench.http2(upgrade=upgrade + b"Content-Length: 2\r\n\r\n{}"))
    assert clients[-1].answer(1)[0] == 200
    silent = [socket.create_connection(("127.0.0.1", each), timeout=20) for each in (bench.aws.port, port)]
    assert folder.exists()
    bench.aws.stop()
    for client in clients:
        client.to_end()
        client.close()
    for each in silent:
        with each, suppress(ConnectionResetError):
            assert each.recv(1) == b""
    assert not folder.exists()
    assert not set(threading.enumerate()) - before
