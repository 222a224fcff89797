"""What ListShards says that cannot be: of servers that are not Kinesis."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import AccessRefusedError, SequenceNumberError
from kinesis_efo.kinesis.topology import SharedCall, Topology, explained, starting_positions
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.records.distribution import Distribution
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock, run

REF = StreamRef("orders", "dev-orders", "arn:orders", None)
PATIENCE = Patience(RetrySettings(), LoopClock(), lambda: 1.0)


class Client:
    """A `kinesis` client that lists one shard, open or closed."""

    def __init__(self, first: str, last: str | None) -> None:
        self._numbers = {"StartingSequenceNumber": first} | ({} if last is None else {"EndingSequenceNumber": last})

    async def list_shards(self, **_: Any) -> Any:
        hashes = {"StartingHashKey": "0", "EndingHashKey": "9"}
        return {"Shards": [{"ShardId": "shardId-1", "HashKeyRange": hashes, "SequenceNumberRange": self._numbers}]}


def last_of(topology: Topology) -> int | None:
    (shard,) = asyncio.run(topology.shards("arn:orders"))
    return shard.last


class Empty(Client):
    """A `kinesis` client that lists no shard at first, and whose stream was created in second 1,000."""

    def __init__(self, answers: int) -> None:
        super().__init__("1000", None)
        self._answers = answers

    async def list_shards(self, **wanted: Any) -> Any:
        self._answers -= 1
        return {"Shards": []} if self._answers >= 0 else await super().list_shards(**wanted)

    async def describe_stream_summary(self, **_: Any) -> Any:
        created = datetime.fromtimestamp(1000.7, UTC)
        return {"StreamDescriptionSummary": {"StreamCreationTimestamp": created, "RetentionPeriodHours": 24}}


def started(client: Empty, start: Position) -> Position:
    lister = Topology(client, patience=PATIENCE)
    ((shard, position),) = run(starting_positions(lister, "arn:orders", start)).items()
    assert shard.shard_id == "shardId-1"
    return position


@pytest.mark.parametrize("start", [TRIM_HORIZON, Position.at_timestamp(1_002_000)])
def test_empty_list_of_shards_is_requested_again(start: Position, caplog: pytest.LogCaptureFixture) -> None:
    """Some servers give it for a stream that is being created. A query that believed it would read nothing, for ever."""
    assert started(Empty(10), start) == start
    assert "no shard of arn:orders is listed: it is being created or deleted" in caplog.text


@pytest.mark.parametrize("before", [1_000, 1_000_000, 1_001_000])
def test_start_before_the_first_shard_is_the_horizon(before: int, caplog: pytest.LogCaptureFixture) -> None:
    assert started(Empty(1), Position.at_timestamp(before)) == TRIM_HORIZON
    assert not caplog.text


def test_empty_list_is_retried_for_a_fast_clock() -> None:
    class Earlier(Empty):
        async def list_shards(self, **wanted: Any) -> Any:
            if wanted.get("ShardFilter", {}).get("Type") == "AT_TIMESTAMP":
                raise ClientError({"Error": {"Code": "InvalidArgumentException", "Message": ""}}, "ListShards")
            return await super().list_shards(**wanted)

    soon = Position.at_timestamp(round(SystemClock().time() * 1000) + 60_000)
    assert started(Earlier(3), soon) == soon


def test_refused_creation_time_starts_at_the_horizon() -> None:
    """It loses nothing."""

    class Refusing(Empty):
        async def describe_stream_summary(self, **_: Any) -> Any:
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": ""}}, "DescribeStreamSummary")

    assert started(Refusing(1), Position.at_timestamp(1_002_000)) == TRIM_HORIZON


@pytest.mark.parametrize("last", ["1000", "1001"])
def test_an_end_at_or_behind_the_beginning_counts(last: str) -> None:
    assert last_of(Topology(Client("1000", last))) == int(last)


@pytest.mark.parametrize(("first", "last"), [("0049", None), ("49", "0099")])
def test_numbers_with_leading_zeros_are_refused(first: str, last: str | None) -> None:
    listing = explained(Topology(Client(first, last)).shards("arn:orders"), REF, "manifest.json")
    with pytest.raises(SequenceNumberError, match=r"arn:orders, shard shardId-1 cannot be read: .* has leading zeros"):
        asyncio.run(listing)


@pytest.mark.parametrize(
    ("operation", "action"),
    [
        ("ListShards", "kinesis:ListShards"),
        ("AssumeRoleWithWebIdentity", "sts:AssumeRoleWithWebIdentity"),
        ("GetRoleCredentials", "sso:GetRoleCredentials"),
    ],
)
def test_refused_sign_in_names_its_permission(operation: str, action: str) -> None:
    async def deny() -> None:
        raise refused("AccessDenied", status=403, operation=operation)

    with pytest.raises(AccessRefusedError, match=f"The role needs {action} on it"):
        asyncio.run(explained(deny(), REF, "manifest.json"))


class Throttled(Client):
    """A `kinesis` client that throttles each call at first."""

    def __init__(self) -> None:
        super().__init__("1000", None)
        self.asked: list[str] = []

    def ask(self, call: str, answer: Any) -> Any:
        self.asked.append(call)
        if self.asked.count(call) == 1:
            raise refused("LimitExceededException", operation=call)
        return answer

    async def describe_stream_summary(self, StreamARN: str) -> Any:
        assert StreamARN == "arn:orders"
        summary = {
            "RetentionPeriodHours": 48,
            "StreamCreationTimestamp": datetime.fromtimestamp(1000.7, UTC),
            "RecordDistributionStrategy": "AUTO",
        }
        return self.ask("DescribeStreamSummary", {"StreamDescriptionSummary": summary})

    async def describe_stream_consumer(self, ConsumerARN: str) -> Any:
        if ConsumerARN == "arn:gone":
            raise refused("ResourceNotFoundException", operation="DescribeStreamConsumer")
        status = "DELETING" if ConsumerARN == "arn:deleted" else "ACTIVE"
        return self.ask("DescribeStreamConsumer", {"ConsumerDescription": {"ConsumerStatus": status}})


def test_consumer_exists_until_it_is_deleted() -> None:
    for arn, exists in (("arn:lake", True), ("arn:deleted", False), ("arn:gone", False)):
        assert run(Topology(Throttled(), patience=PATIENCE).consumer_exists(arn)) is exists
    with pytest.raises(ClientError, match="LimitExceeded"):
        run(Topology(Throttled()).consumer_exists("arn:lake"))


def test_distribution_is_requested_without_patience() -> None:
    client = Throttled()
    topology = Topology(client, patience=PATIENCE)
    with pytest.raises(ClientError, match="LimitExceeded"):
        run(topology.distribution("arn:orders"))
    assert run(topology.distribution("arn:orders")) is Distribution.AUTO
    assert client.asked == ["DescribeStreamSummary"] * 2


async def test_error_is_shared_by_waiting_requests_only() -> None:
    asked: list[float] = []

    async def ask() -> None:
        asked.append(LoopClock().monotonic())
        await asyncio.sleep(1)
        raise TimeoutError

    call = SharedCall(ask, LoopClock(), 5.0)
    errors = await asyncio.gather(call.get(), call.get(), call.get(), return_exceptions=True)
    assert [type(each) for each in errors] == [TimeoutError] * 3
    assert len(asked) == 1
    with pytest.raises(TimeoutError):
        await call.get()
    assert len(asked) == 2
