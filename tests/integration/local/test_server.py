"""The endpoint: clients, other services, malformed requests, and the command."""

import socket
import threading
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from kinesis_efo_local import LocalAws, NoFaults, Request, Settings

from .conftest import Bench, ask

Run = Callable[..., Bench]


@pytest.mark.slow
def test_s3_takes_any_key_and_no_larger_request(run: Run) -> None:
    most, there = 3_000_000, {"Bucket": "bucket", "Key": "a b/ü?.json"}
    s3 = run(max_request_bytes=most).aws.client("s3")
    s3.create_bucket(Bucket="bucket")
    s3.put_object(**there, Body=bytes(most))
    assert s3.head_object(**there)["ContentLength"] == most
    assert len(s3.get_object(**there)["Body"].read()) == most
    with pytest.raises(ClientError) as refused:
        s3.put_object(**there, Body=bytes(most + 1))
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413


def test_regions_have_their_own_streams(bench: Bench) -> None:
    bench.stream()
    other = bench.aws.client("kinesis", region_name="eu-west-1")
    assert other.list_streams()["StreamNames"] == []
    other.create_stream(StreamName="elsewhere", ShardCount=1)
    assert (
        ":eu-west-1:" in other.describe_stream_summary(StreamName="elsewhere")["StreamDescriptionSummary"]["StreamARN"]
    )
    nowhere = bench.aws.client("kinesis", region_name="moon-west-1")
    with pytest.raises(ClientError, match=r"Credential should be scoped to a valid region, .*; got 'moon-west-1'"):
        nowhere.create_stream(StreamName="elsewhere", ShardCount=1)
    assert list(bench.aws.kinesis_in("eu-west-1").streams) == ["elsewhere"]
    assert list(bench.aws.kinesis.streams) == ["orders"]


def test_tags_retention_record_size_and_mode_stay(bench: Bench) -> None:
    arn, client = bench.stream(), bench.client
    client.add_tags_to_stream(StreamName="orders", Tags={"team": "data", "env": "dev"})
    client.remove_tags_from_stream(StreamName="orders", TagKeys=["env"])
    assert client.list_tags_for_stream(StreamName="orders")["Tags"] == [{"Key": "team", "Value": "data"}]
    consumer = bench.consumer(arn)
    client.tag_resource(ResourceARN=consumer, Tags={"a": "b"})
    assert client.list_tags_for_resource(ResourceARN=consumer)["Tags"] == [{"Key": "a", "Value": "b"}]
    client.untag_resource(ResourceARN=consumer, TagKeys=["a"])
    assert client.list_tags_for_resource(ResourceARN=consumer)["Tags"] == []
    client.increase_stream_retention_period(StreamName="orders", RetentionPeriodHours=48)
    client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=2048)
    summary = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    assert (summary["RetentionPeriodHours"], summary["MaxRecordSizeInKiB"], summary["ConsumerCount"]) == (48, 2048, 1)
    with pytest.raises(ClientError, match="can not be longer"):
        client.decrease_stream_retention_period(StreamName="orders", RetentionPeriodHours=72)
    with pytest.raises(ClientError, match="between 24 and 8760 hours; got 1"):
        client.decrease_stream_retention_period(StreamName="orders", RetentionPeriodHours=1)
    client.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert client.describe_stream(StreamName="orders")["StreamDescription"]["StreamModeDetails"] == {
        "StreamMode": "ON_DEMAND"
    }
    limits = client.describe_limits()
    assert (limits["OpenShardCount"], limits["OnDemandStreamCount"]) == (1, 1)


@pytest.mark.parametrize(
    ("operation", "body", "code", "says"),
    [
        ("CreateStream", b"{", "SerializationException", "not valid"),
        ("CreateStream", b"[" * 100_000, "SerializationException", "not valid"),
        ("CreateStream", b'{"StreamName":"a b","ShardCount":0}', "ValidationException", "2 validation errors detected"),
        ("CreateStream", b'{"StreamName":"a"}', "InvalidArgumentException", "ShardCount"),
        ("PutRecord", b'{"StreamName":"nope","Data":"","PartitionKey":"k"}', "ResourceNotFoundException", "nope"),
        ("Frobnicate", b"{}", "UnknownOperationException", "'Frobnicate'; it knows AddTagsToStream, "),
    ],
)
def test_bad_requests_get_a_modelled_error(bench: Bench, operation: str, body: bytes, code: str, says: str) -> None:
    headers = {"X-Amz-Target": f"Kinesis_20131202.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    status, _, answer = ask(bench.aws, headers, body)
    assert (status, f'"__type":"{code}"' in answer.decode()) == (400, True)
    assert says in answer.decode()
    assert bench.aws.kinesis.calls(operation, code) == 1


def test_the_trace_lists_the_calls_in_order(run: Run) -> None:
    bench = run(trace_length=3)
    bench.stream()
    bench.put("a", "b")
    with pytest.raises(ClientError):
        bench.client.put_record(StreamName="nope", Data=b"", PartitionKey="secret")
    assert [(call.operation, call.outcome) for call in bench.aws.kinesis.trace] == [
        ("DescribeStreamSummary", "ok"),
        ("PutRecords", "ok"),
        ("PutRecord", "ResourceNotFoundException"),
    ]
    assert bench.aws.kinesis.trace[1].params == {"StreamName": "orders", "StreamARN": None, "Records": 2}


def test_port_in_use_is_an_error_until_stopped() -> None:
    with LocalAws() as aws:
        before = set(threading.enumerate())
        for options in ({"port": aws.port}, {"tls_port": aws.port}):
            with pytest.raises(OSError, match="in use"):
                LocalAws(**options).start()
        assert not set(threading.enumerate()) - before
        for name in ("tls_endpoint_url", "ca_path"):
            with pytest.raises(RuntimeError, match="offers no TLS: pass tls_port=0"):
                getattr(aws, name)
        assert "AWS_CA_BUNDLE" not in aws.environment
        with pytest.raises(RuntimeError, match="already running"):
            aws.start()
    with LocalAws(port=aws.port, settings=Settings(region="eu-central-1")) as again:
        assert again.client("kinesis").meta.region_name == "eu-central-1"
    with pytest.raises(RuntimeError, match="not running"):
        _ = LocalAws().kinesis


def test_stopping_closes_connections_that_were_just_made() -> None:
    busy, stopping = threading.Event(), threading.Event()

    class Blocking(NoFaults):
        """All connections are accepted in the turn of the loop in which it is told to stop."""

        async def before(self, request: Request) -> None:
            busy.set()
            stopping.wait(30)

    aws = LocalAws(faults=Blocking()).start()
    clients = [socket.create_connection(("127.0.0.1", aws.port), timeout=30)]
    clients[0].sendall(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.ListStreams\r\nContent-Length: 2\r\n\r\n{}"
    )
    busy.wait(30)
    clients += [socket.create_connection(("127.0.0.1", aws.port), timeout=30) for _ in range(100)]
    threading.Timer(0.1, stopping.set).start()
    aws.stop()
    assert [ended(client) for client in clients] == [True] * 101


def ended(client: socket.socket) -> bool:
    """Read a connection to its end, and close it."""
    with client:
        try:
            while client.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
    return True


def test_server_listens_on_loopback_only(bench: Bench) -> None:
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in [*others, "127.0.0.2"]:
        with pytest.raises(OSError, match=r"refused|timed out"):
            socket.create_connection((str(address), bench.aws.port), timeout=1).close()
