"""Each call of a start, with each fault that passes, in virtual time: it is waited out, told, and given up with the first cause."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    ReadTimeoutError,
)

from kinesis_efo.decisions.losses import Facts
from kinesis_efo.errors import KinesisEfoError, ManifestError, StreamNotFoundError
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import owner_id
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import LeaseListener, RunLease
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import StreamRef, load_manifest
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.positions import TRIM_HORIZON, Position
from tests.support.messages import raises
from tests.support.virtual_time import LoopClock

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
REF = StreamRef("orders", "dev-orders", ARN, f"{ARN}/consumer/lake:1")
SHARD = {
    "ShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    "SequenceNumberRange": {"StartingSequenceNumber": "1"},
}
CREATED = datetime.fromtimestamp(1_600_000_000, UTC)
RETRY = RetrySettings(timeout=120)


def answered(code: str, status: int) -> Exception:
    response: Any = {"Error": {"Code": code, "Message": "later"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Some")


FAULTS: dict[str, Callable[[], Exception]] = {
    "throttled": lambda: answered("ThrottlingException", 400),
    "in use": lambda: answered("ResourceInUseException", 400),
    "silent": lambda: ReadTimeoutError(endpoint_url="https://aws"),
    "reset": lambda: ConnectionResetError("reset by peer"),
    "credentials": lambda: CredentialRetrievalError(provider="container-role", error_msg="no answer"),
}


class Aws:
    """Fails one operation until a moment; then answers as AWS does."""

    def __init__(self, operation: str, fault: Callable[[], Exception], seconds: float) -> None:
        self.operation = operation
        self.fault = fault
        self.clock = LoopClock()
        self.until = self.clock.monotonic() + seconds
        self.meta = SimpleNamespace(region_name="eu-west-1", partition="aws", endpoint_url="https://dynamodb")
        self.items: dict[str, Any] = {}

    def _pass(self, operation: str) -> None:
        if operation == self.operation and self.clock.monotonic() < self.until:
            raise self.fault()

    async def describe_table(self, **_: Any) -> dict[str, Any]:
        self._pass("DescribeTable")
        key = {"AttributeName": "leaseKey"}
        table = {"KeySchema": [{**key, "KeyType": "HASH"}], "AttributeDefinitions": [{**key, "AttributeType": "S"}]}
        return {"Table": {**table, "TableStatus": "ACTIVE", "TableArn": "arn:table"}}

    async def scan(self, **_: Any) -> dict[str, Any]:
        self._pass("Scan")
        return {"Items": list(self.items.values())}

    async def put_item(self, *, Item: Any, **_: Any) -> dict[str, Any]:
        self._pass("PutItem")
        self.items[Item["leaseKey"]["S"]] = Item
        return {}

    async def update_item(self, *, Key: Any, **_: Any) -> dict[str, Any]:
        return {"Attributes": self.items[Key["leaseKey"]["S"]]}

    async def delete_item(self, *, Key: Any, **_: Any) -> dict[str, Any]:
        del self.items[Key["leaseKey"]["S"]]
        return {}

    async def list_shards(self, **_: Any) -> dict[str, Any]:
        self._pass("ListShards")
        return {"Shards": [SHARD]}

    async def describe_stream_summary(self, **_: Any) -> dict[str, Any]:
        self._pass("DescribeStreamSummary")
        return {"StreamDescriptionSummary": {"RetentionPeriodHours": 1_000_000, "StreamCreationTimestamp": CREATED}}


async def take_lease(aws: Aws) -> None:
    """What a run does with its table: the check, the scan, the take."""
    table = LeaseTable(aws, "leases", declared_by="manifest.json")
    timing = Timing(10, RETRY.timeout)
    run_lease = RunLease(table, owner_id(Random(1)), LeaseKeys({"orders": "dev-orders"}), timing, aws.clock, Random(1))
    try:
        await run_lease.start(LeaseListener(), "")
        run_lease.request(["orders"])
        await run_lease.wait_held(["orders"])
    finally:
        await run_lease.stop()


def stream(aws: Aws) -> Stream:
    return Stream(REF, SimpleNamespace(), Topology(aws, aws.clock), RETRY, "manifest.json", aws.clock)  # type: ignore[arg-type]


async def list_shards(aws: Aws) -> None:
    await stream(aws).refresh(patient=True)


async def start_new(aws: Aws) -> None:
    long_ago = Position.at_timestamp(round((aws.clock.time() - 40 * 3600 * 24) * 1000))
    await stream(aws).starting_positions(long_ago)


async def start_from_horizon(aws: Aws) -> None:
    await stream(aws).starting_positions(TRIM_HORIZON)


async def check_begun(aws: Aws) -> None:
    await stream(aws).check_position("shardId-000000000000", Position.at_timestamp(0), Facts())


CALLS: dict[str, tuple[str, Callable[[Aws], Awaitable[None]]]] = {
    "table check": ("DescribeTable", take_lease),
    "looking for the lease": ("Scan", take_lease),
    "taking the lease": ("PutItem", take_lease),
    "listing": ("ListShards", list_shards),
    "start at a time, retention": ("DescribeStreamSummary", start_new),
    "start at a time, shards": ("ListShards", start_new),
    "start at the horizon": ("ListShards", start_from_horizon),
    "check of what was planned": ("DescribeStreamSummary", check_begun),
}
every_call = pytest.mark.parametrize("call", CALLS)
every_fault = pytest.mark.parametrize("fault", FAULTS)


# Shows AWS away at a start.
@pytest.mark.slow
@every_call
@every_fault
async def test_passing_faults_are_waited_out(call: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    operation, do = CALLS[call]

    with caplog.at_level(logging.WARNING):
        aws = Aws(operation, FAULTS[fault], seconds=100)
        began = aws.clock.monotonic()
        await do(aws)
        assert aws.clock.monotonic() - began >= 100
    assert caplog.messages, "it says what it waits for"


@every_call
async def test_lasting_faults_fail_with_the_first_cause(call: str) -> None:
    operation, do = CALLS[call]
    faults = iter([answered("ThrottlingException", 400)])

    aws = Aws(operation, lambda: next(faults, None) or answered("InternalServerError", 500), seconds=10_000)
    began = aws.clock.monotonic()
    with pytest.raises((KinesisEfoError, ClientError), match=r"Throttling|InternalServerError") as caught:
        await do(aws)
    assert 60 <= aws.clock.monotonic() - began <= 140
    if operation != "Scan" and operation != "PutItem":  # these name the last one
        assert "ThrottlingException" in str(caught.value)


# Shows AWS away at a start.
@every_call
@pytest.mark.parametrize("code", ["AccessDeniedException", "ResourceNotFoundException", "ValidationException"])
async def test_permanent_faults_fail_at_once(call: str, code: str) -> None:
    operation, do = CALLS[call]

    aws = Aws(operation, lambda: answered(code, 400), seconds=10_000)
    began = aws.clock.monotonic()
    with pytest.raises((KinesisEfoError, ClientError), match=f"{code}|does not exist"):
        await do(aws)
    assert aws.clock.monotonic() - began < 1


async def test_missing_stream_is_named_with_its_manifest() -> None:
    aws = Aws("ListShards", lambda: answered("ResourceNotFoundException", 400), 10_000)
    with raises(
        StreamNotFoundError,
        "stream 'orders': arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders (from manifest.json) does not exist "
        "(any more): ResourceNotFoundException: later. Was it deployed to this account and region?",
    ):
        await list_shards(aws)


async def test_one_warning_after_five_seconds_and_one_every_thirty(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kinesis_efo.patience"):
        await list_shards(Aws("ListShards", FAULTS["throttled"], seconds=70))
    said = "waiting for ListShards of stream 'orders' for {} s: ThrottlingException: later"
    assert caplog.messages == [said.format(seconds) for seconds in (5, 35, 65)]


async def test_a_slow_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clock = LoopClock()
        await Patience(RETRY, clock).call("AssumeRole of reader", partial(clock.sleep, 20))
    assert caplog.messages == ["waiting for AssumeRole of reader for 5 s: no answer yet"]


async def test_expired_credentials_are_retried_once() -> None:
    """They may have come from a file that has newer ones by now."""
    patience, left = Patience(RETRY, LoopClock()), [answered("ExpiredTokenException", 400)]

    async def ask() -> str:
        if left:
            raise left.pop()
        return "answer"

    assert await patience.call("ListShards", ask) == "answer"
    left.extend([answered("ExpiredTokenException", 400)] * 2)
    with pytest.raises(ClientError, match="Expired"):
        await patience.call("ListShards", ask)


class Session:
    """SSM and S3 that fail a few times."""

    def __init__(self, fault: Callable[[], Exception], times: int) -> None:
        self.fault = fault
        self.times = times
        self.asked = 0

    def client(self, service: str, /) -> Any:
        return SimpleNamespace(get_parameter=self._get, get_object=self._get)

    def _get(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self.times:
            raise self.fault()
        return {"Parameter": {"Value": "{}"}, "Body": SimpleNamespace(read=lambda _size: b"{}")}


@pytest.mark.parametrize("location", ["ssm:///kinesis-efo/dev/lake", "s3://bucket/lake"])
@every_fault
def test_a_manifest_is_waited_for(location: str, fault: str) -> None:
    session = Session(FAULTS[fault], times=3)
    patience = Patience(RetrySettings(base_ms=1, max_ms=1), LoopClock())
    said = (
        f"manifest {location} has schemaVersion None; this version of kinesis-efo reads 1. Deploy the infrastructure and "
        "run the job with the same release"
    )
    with raises(ManifestError, said):
        patience.load(location, partial(load_manifest, location, session.client))  # it came, and is not valid
    assert session.asked == 4


@pytest.mark.parametrize("location", ["ssm:///kinesis-efo/dev/lake", "s3://bucket/lake"])
@pytest.mark.parametrize("code", ["AccessDeniedException", "ParameterNotFound", "NoSuchKey"])
def test_a_permanent_manifest_error_is_not_waited_for(location: str, code: str) -> None:
    session = Session(lambda: answered(code, 400), times=100)
    with pytest.raises(ManifestError, match=code):
        Patience(RETRY, LoopClock()).load(location, partial(load_manifest, location, session.client))
    assert session.asked == 1


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        (RetrySettings(max_retries=3), [0, 1, 2.5, 4.75]),
        (RetrySettings(max_retries=0), [0]),
        (RetrySettings(timeout=2.5), [0, 1, 2.5]),
        (RetrySettings(timeout=2.4), [0, 1]),
    ],
)
async def test_retries_end_with_their_number_or_timeout(settings: RetrySettings, times: list[float]) -> None:
    at: list[float] = []
    clock = LoopClock()
    began = clock.monotonic()

    async def ask() -> None:
        at.append(clock.monotonic() - began)
        raise FAULTS["throttled"]()

    with pytest.raises(ClientError, match="Throttling"):
        await Patience(settings, clock, lambda: 1.0).call("ListShards", ask)
    assert at == times


async def test_a_finished_call_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clock = LoopClock()
        assert await Patience(RETRY, clock).call("ListShards", partial(asyncio.sleep, 1, "answer")) == "answer"
        await clock.sleep(100)
    assert caplog.messages == []


def test_a_manifest_in_a_file_is_loaded_once() -> None:
    patience = Patience(RETRY, LoopClock())
    assert patience.load("manifest.json", lambda: "loaded") == "loaded"

    def broken() -> None:
        raise ManifestError("missing") from ConnectionResetError()

    with pytest.raises(ManifestError, match="missing"):
        patience.load("manifest.json", broken)
