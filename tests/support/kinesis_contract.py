"""What every fake of Kinesis must do as the service does: events, answers, refusals and shards.

The facts, and who recorded them of the service, are in `tests/KINESIS.md`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, EventStreamError

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.transport import Transport, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position
from tests.support.contracts import Contract

NUMBER: Final = re.compile(r"0|([1-9]\d{0,128})")
ALL_HASHES: Final = (0, 2**128 - 1)

Scenario = Callable[[Any], Awaitable[None]]


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


class Fake(ABC):
    """One of the fakes, with a stream whose shard 0 holds records.

    Attributes:
        ref: The stream and its consumer.
        transport: Subscribes to its shards.
    """

    ref: StreamRef
    transport: Transport

    @asynccontextmanager
    async def subscribed(self, shard: int, position: Position) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events from a position on, as their JSON."""
        events = await self.transport.subscribe(self.ref, shard_id(shard), position, Unlimited())

        async def decoded() -> AsyncIterator[dict[str, Any]]:
            async for event in events:
                yield json.loads(event.payload)

        try:
            yield decoded()
        finally:
            events.close()

    async def next_turn(self) -> None:
        """Let so much time pass that the same consumer may subscribe to the same shard again: none, unless one minds."""
        await asyncio.sleep(0)

    async def events(self, shard: int, position: Position, count: int) -> list[dict[str, Any]]:
        """So many events from a position on; fewer if the subscription ends by itself."""
        await self.next_turn()
        read: list[dict[str, Any]] = []
        async with self.subscribed(shard, position) as events:
            async for event in events:
                read.append(event)
                if len(read) == count:
                    break
        return read

    async def records(self, shard: int) -> list[dict[str, Any]]:
        """All records of a shard: those of the events before the first one without any."""
        await self.next_turn()
        read: list[dict[str, Any]] = []
        async with self.subscribed(shard, TRIM_HORIZON) as events:
            async for event in events:
                if not event["Records"]:
                    break
                read += event["Records"]
        return read


class LivingFake(Fake):
    """One that takes records and reshards."""

    @abstractmethod
    async def put(self, shard: int, count: int) -> None:
        """Put small records into a shard."""

    @abstractmethod
    async def split(self, shard: int) -> None:
        """Split a shard in two halves, and wait until it is done."""

    @abstractmethod
    async def merge(self, one: int, other: int) -> None:
        """Merge two shards, and wait until it is done."""

    @abstractmethod
    async def shards(self) -> list[Shard]:
        """The shards, as ListShards tells them."""


class CalledFake(LivingFake):
    """One whose calls are answered one by one."""

    @abstractmethod
    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        """An answer's JSON.

        Raises:
            ClientError: It is an error, with its code, message and status.
        """

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""

    async def iterator(self, shard: int, kind: str, number: str | None = None) -> str:
        more = {} if number is None else {"StartingSequenceNumber": number}
        asked = {"StreamARN": self.ref.stream_arn, "ShardId": shard_id(shard), "ShardIteratorType": kind, **more}
        return str((await self.call("GetShardIterator", **asked))["ShardIterator"])

    async def answer(self, iterator: str, limit: int = 1000) -> dict[str, Any]:
        await self.pass_time(0.25)
        return await self.call("GetRecords", StreamARN=self.ref.stream_arn, ShardIterator=iterator, Limit=limit)


def numbers(*events: dict[str, Any]) -> list[int]:
    return [int(record["SequenceNumber"]) for event in events for record in event["Records"]]


def continuation(event: dict[str, Any]) -> Position:
    return Position.after(int(event["ContinuationSequenceNumber"]))


def refused(error: ClientError) -> tuple[str, str, int]:
    answer: Any = error.response
    return answer["Error"]["Code"], answer["Error"]["Message"], answer["ResponseMetadata"]["HTTPStatusCode"]


def check_record(record: dict[str, Any]) -> None:
    assert NUMBER.fullmatch(record["SequenceNumber"])
    base64.b64decode(record["Data"], validate=True)
    assert isinstance(record["PartitionKey"], str)
    arrived = record["ApproximateArrivalTimestamp"]
    assert isinstance(arrived, int | float), "seconds, with milliseconds behind the point"
    assert abs(arrived * 1000 - round(arrived * 1000)) < 0.01
    assert 1e9 < arrived < 1e10
    assert set(record) <= {"SequenceNumber", "Data", "PartitionKey", "ApproximateArrivalTimestamp", "EncryptionType"}


def check_children(told: list[dict[str, Any]], parents: list[str], hashes: tuple[int, int]) -> None:
    """Check that children are whole, and take all hash keys of their parents."""
    ranges = []
    for child in told:
        assert set(child) == {"ShardId", "ParentShards", "HashKeyRange"}
        assert sorted(child["ParentShards"]) == parents
        low, high = child["HashKeyRange"]["StartingHashKey"], child["HashKeyRange"]["EndingHashKey"]
        assert NUMBER.fullmatch(low) and NUMBER.fullmatch(high)
        ranges.append((int(low), int(high)))
    check_cover(ranges, hashes)


def check_cover(ranges: list[tuple[int, int]], hashes: tuple[int, int]) -> None:
    ranges = sorted(ranges)
    assert (ranges[0][0], ranges[-1][1]) == hashes
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))


class KinesisContract(Contract):
    """Each fake is new, and its shard 0 holds at least 20 records in at least two events."""


class EventsContract(KinesisContract):
    """The events of a shard that is only read."""

    async def test_an_event_has_the_fields_of_the_api(self, fake: Fake) -> None:
        for event in await fake.events(0, TRIM_HORIZON, 2):
            assert set(event) - {"ChildShards"} == {"ContinuationSequenceNumber", "MillisBehindLatest", "Records"}
            assert NUMBER.fullmatch(event["ContinuationSequenceNumber"])
            assert isinstance(event["MillisBehindLatest"], int)
            assert event["MillisBehindLatest"] >= 0
            assert not event.get("ChildShards")
            assert event["Records"]
            for record in event["Records"]:
                check_record(record)

    async def test_records_are_ordered_up_to_the_continuation(self, fake: Fake) -> None:
        events = await fake.events(0, TRIM_HORIZON, 2)
        assert all(before < after for before, after in pairwise(numbers(*events)))
        for event in events:
            assert int(event["ContinuationSequenceNumber"]) >= numbers(event)[-1]

    async def test_event_before_more_records_has_a_lag(self, fake: Fake) -> None:
        first, _ = await fake.events(0, TRIM_HORIZON, 2)
        assert first["MillisBehindLatest"] > 0

    async def test_behind_a_continuation_the_next_record_is_the_first(self, fake: Fake) -> None:
        first, second = await fake.events(0, TRIM_HORIZON, 2)
        (again,) = await fake.events(0, continuation(first), 1)
        assert numbers(again)[0] == numbers(second)[0]
        (once_more,) = await fake.events(0, continuation(first), 1)
        assert numbers(once_more)[0] == numbers(second)[0], "a position can be read from again and again"

    async def test_start_after_a_number_begins_with_the_next_record(self, fake: Fake) -> None:
        first, _ = await fake.events(0, TRIM_HORIZON, 2)
        (again,) = await fake.events(0, Position.after(numbers(first)[-1]), 1)
        assert numbers(again)[0] > numbers(first)[-1]

    async def test_idle_shard_sends_empty_events_that_advance(self, fake: Fake) -> None:
        last = int((await fake.records(0))[-1]["SequenceNumber"])
        await fake.next_turn()
        async with fake.subscribed(0, Position.after(last)) as events:
            at = last
            for _ in range(2):
                idle = await anext(events)
                assert idle["Records"] == []
                assert idle["MillisBehindLatest"] == 0
                assert not idle.get("ChildShards")
                assert int(idle["ContinuationSequenceNumber"]) >= at
                at = int(idle["ContinuationSequenceNumber"])
        (still_idle,) = await fake.events(0, Position.after(at), 1)
        assert still_idle["Records"] == []


class LivingContract(EventsContract):
    """Shards that are written, split and merged meanwhile."""

    async def test_new_records_follow_the_continuation_of_idle_events(self, fake: LivingFake) -> None:
        last = int((await fake.records(0))[-1]["SequenceNumber"])
        (idle,) = await fake.events(0, Position.after(last), 1)
        await fake.put(0, 3)
        read: list[int] = []
        await fake.next_turn()
        async with fake.subscribed(0, continuation(idle)) as events:
            while len(read) < 3:
                read += numbers(await anext(events))
        assert read[0] > int(idle["ContinuationSequenceNumber"])
        assert read == numbers({"Records": (await fake.records(0))[-3:]})

    async def test_split_shard_ends_with_two_children(self, fake: LivingFake) -> None:
        before = await fake.records(0)
        await fake.split(0)
        *events, end = await fake.events(0, TRIM_HORIZON, 1000)
        assert numbers(*events) == numbers({"Records": before}), "none is lost, none comes twice"
        assert all(event["ContinuationSequenceNumber"] is not None for event in events)
        assert end["ContinuationSequenceNumber"] is None
        assert end["Records"] == []
        assert end["MillisBehindLatest"] == 0
        assert len(end["ChildShards"]) == 2
        (whole,) = [shard.hash_range for shard in await fake.shards() if shard.shard_id == shard_id(0)]
        check_children(end["ChildShards"], [shard_id(0)], whole)

    async def test_both_merged_shards_end_with_the_same_child(self, fake: LivingFake) -> None:
        await fake.split(0)
        await fake.merge(1, 2)
        (one,), (other,) = [(await fake.events(shard, TRIM_HORIZON, 1000))[-1:] for shard in (1, 2)]
        assert one["ChildShards"] == other["ChildShards"]
        assert [child["ShardId"] for child in one["ChildShards"]] == [shard_id(3)]
        (whole,) = [shard.hash_range for shard in await fake.shards() if shard.shard_id == shard_id(0)]
        check_children(one["ChildShards"], [shard_id(1), shard_id(2)], whole)

    async def test_start_after_the_last_record_has_only_the_end(self, fake: LivingFake) -> None:
        last = int((await fake.records(0))[-1]["SequenceNumber"])
        await fake.split(0)
        (end,) = await fake.events(0, Position.after(last), 1000)
        assert end["ContinuationSequenceNumber"] is None
        assert len(end["ChildShards"]) == 2

    async def test_shard_that_closes_during_reading_ends_its_subscription(self, fake: LivingFake) -> None:
        last = int((await fake.records(0))[-1]["SequenceNumber"])
        await fake.next_turn()
        async with fake.subscribed(0, Position.after(last)) as events:
            await anext(events)
            await fake.split(0)
            rest = [event async for event in events]
        assert [event["ContinuationSequenceNumber"] is None for event in rest][-1]
        assert numbers(*rest) == []

    async def test_numbers_of_children_are_behind_those_of_their_parents(self, fake: LivingFake) -> None:
        before = await fake.records(0)
        await fake.split(0)
        for child in (1, 2):
            await fake.put(child, 2)
            assert numbers({"Records": await fake.records(child)})[0] > numbers({"Records": before})[-1]

    async def test_shards_are_listed_with_parents_hash_keys_and_numbers(self, fake: LivingFake) -> None:
        last = int((await fake.records(0))[-1]["SequenceNumber"])
        (opened,) = [shard for shard in await fake.shards() if shard.shard_id == shard_id(0)]
        assert opened.last is None
        assert opened.parents == ()
        await fake.split(0)
        await fake.merge(1, 2)
        shards = {shard.shard_id: shard for shard in await fake.shards()}
        assert (shards[shard_id(0)].last or 0) >= last, "where it ended is told once it is closed"
        assert shards[shard_id(1)].parents == shards[shard_id(2)].parents == (shard_id(0),)
        assert sorted(shards[shard_id(3)].parents) == [shard_id(1), shard_id(2)]
        check_cover([shard.hash_range for shard in shards.values() if shard.last is None], ALL_HASHES)
        for shard in shards.values():
            assert shard.last is None or shard.last >= shard.first
            assert all(shards[parent].first < shard.first for parent in shard.parents)


class AnswersContract(KinesisContract):
    """GetShardIterator and GetRecords."""

    async def test_an_answer_has_the_fields_of_the_api(self, fake: CalledFake) -> None:
        answer = await fake.answer(await fake.iterator(0, "TRIM_HORIZON"), 5)
        assert set(answer) - {"ChildShards"} == {"Records", "NextShardIterator", "MillisBehindLatest"}
        assert isinstance(answer["NextShardIterator"], str)
        assert isinstance(answer["MillisBehindLatest"], int)
        assert answer["MillisBehindLatest"] > 0, "there are more"
        assert len(answer["Records"]) == 5, "as many as the limit says"
        for record in answer["Records"]:
            check_record(record)

    async def test_next_iterator_advances_and_the_same_one_repeats(self, fake: CalledFake) -> None:
        iterator = await fake.iterator(0, "TRIM_HORIZON")
        first, again = await fake.answer(iterator, 5), await fake.answer(iterator, 5)
        assert numbers(first) == numbers(again)
        second = await fake.answer(first["NextShardIterator"], 5)
        assert numbers(second)[0] > numbers(first)[-1]
        behind = await fake.answer(
            await fake.iterator(0, "AFTER_SEQUENCE_NUMBER", first["Records"][-1]["SequenceNumber"]), 5
        )
        assert numbers(behind) == numbers(second)

    async def test_iterator_of_an_empty_answer_brings_new_records(self, fake: CalledFake) -> None:
        answer = await fake.answer(await fake.iterator(0, "TRIM_HORIZON"))
        empty = await fake.answer(answer["NextShardIterator"])
        assert empty["Records"] == []
        assert empty["MillisBehindLatest"] == 0
        await fake.put(0, 2)
        later = await fake.answer(empty["NextShardIterator"])
        assert len(later["Records"]) == 2
        assert numbers(later) == numbers(await fake.answer(answer["NextShardIterator"])), "the old one brings them, too"

    async def test_fully_read_closed_shard_has_no_next_iterator(self, fake: CalledFake) -> None:
        await fake.split(0)
        answer, read = await fake.answer(await fake.iterator(0, "TRIM_HORIZON"), 5), []
        while True:
            read += numbers(answer)
            if answer.get("NextShardIterator") is None:
                break
            assert not answer.get("ChildShards")
            answer = await fake.answer(answer["NextShardIterator"], 5)
        assert len(read) >= 20
        assert all(before < after for before, after in pairwise(read))
        assert len(answer["ChildShards"]) == 2
        (whole,) = [shard.hash_range for shard in await fake.shards() if shard.shard_id == shard_id(0)]
        check_children(answer["ChildShards"], [shard_id(0)], whole)

    async def test_a_shard_that_does_not_exist_is_named(self, fake: CalledFake) -> None:
        with pytest.raises(ClientError) as caught:
            await fake.iterator(77, "TRIM_HORIZON")
        code, message, status = refused(caught.value)
        assert (code, status) == ("ResourceNotFoundException", 400)
        assert re.fullmatch(rf"Shard {shard_id(77)} in stream \S+ under account \d{{12}} does not exist", message)

    async def test_sixth_call_in_a_second_is_refused(self, fake: CalledFake) -> None:
        iterator = await fake.iterator(0, "TRIM_HORIZON")
        await fake.pass_time(1.1)

        async def fifty_calls() -> None:
            for _ in range(50):
                await fake.call("GetRecords", StreamARN=fake.ref.stream_arn, ShardIterator=iterator, Limit=1)

        with pytest.raises(ClientError) as caught:
            await fifty_calls()
        code, message, status = refused(caught.value)
        assert (code, status) == ("ProvisionedThroughputExceededException", 400)
        assert re.fullmatch(rf"Rate exceeded for shard {shard_id(0)} in stream \S+ under account \d{{12}}\.", message)
        await fake.pass_time(1.1)
        assert (await fake.answer(await fake.iterator(0, "TRIM_HORIZON"), 1))["Records"]


class ServiceContract(LivingContract):
    """What SubscribeToShard refuses, and where it begins."""

    async def test_missing_shard_or_consumer_is_named(self, fake: CalledFake) -> None:
        with pytest.raises(ClientError) as caught:
            async with fake.subscribed(77, TRIM_HORIZON):
                pass
        code, message, status = refused(caught.value)
        assert (code, status) == ("ResourceNotFoundException", 400)
        assert shard_id(77) in message
        asked = {"ShardId": shard_id(0), "StartingPosition": {"Type": "TRIM_HORIZON"}}
        with pytest.raises(ClientError) as caught:
            await fake.call("SubscribeToShard", ConsumerARN=f"{fake.ref.stream_arn}/consumer/nobody:1", **asked)
        assert refused(caught.value)[0] == "ResourceNotFoundException"

    async def test_subscription_at_a_number_begins_with_its_record(self, fake: CalledFake) -> None:
        records = await fake.records(0)
        (event,) = await fake.events(0, Position.inside(int(records[3]["SequenceNumber"]), 0), 1)
        assert event["Records"][0] == records[3]

    async def test_closed_shard_repeats_its_end_at_the_tip(self, fake: CalledFake) -> None:
        await fake.split(0)
        await fake.next_turn()
        events = await fake.transport.subscribe(fake.ref, shard_id(0), None, Unlimited())
        told = [json.loads(event.payload) async for event in events]
        events.close()
        assert [event["ContinuationSequenceNumber"] for event in told] == [None]
        assert len(told[0]["ChildShards"]) == 2


class IteratorTimeContract(KinesisContract):
    """How long an iterator may be used: `iterator_seconds`."""

    iterator_seconds = 300.0

    async def test_expired_iterator_names_its_creation_time(self, fake: CalledFake) -> None:
        iterator = await fake.iterator(0, "TRIM_HORIZON")
        await fake.pass_time(self.iterator_seconds + 1)
        with pytest.raises(ClientError) as caught:
            await fake.answer(iterator)
        code, message, status = refused(caught.value)
        assert (code, status) == ("ExpiredIteratorException", 400)
        assert message.startswith("Iterator expired. The iterator was created at time ")
        assert "which is further in the future than the tolerated delay of" in message


class SubscriptionTimeContract(KinesisContract):
    """How long a subscription lasts, `subscription_seconds`, and when another one takes over."""

    subscription_seconds = 300.0

    async def test_second_subscription_is_refused_early_and_later_takes_over(self, fake: CalledFake) -> None:
        await fake.next_turn()
        async with fake.subscribed(0, TRIM_HORIZON) as first:
            await anext(first)
            with pytest.raises(ClientError) as caught:
                async with fake.subscribed(0, TRIM_HORIZON):
                    pass
            code, message, status = refused(caught.value)
            assert (code, status) == ("ResourceInUseException", 400)
            assert message.startswith("Another active subscription exists for this consumer: ")
            await fake.next_turn()
            async with fake.subscribed(0, TRIM_HORIZON) as second:
                assert (await anext(second))["Records"]
                with pytest.raises(EventStreamError) as ended:
                    _ = [event async for event in first]
                assert ended.value.response["Error"]["Code"] == "ResourceInUseException"

    async def test_subscription_ends_after_its_time_without_an_error(self, fake: CalledFake) -> None:
        await fake.next_turn()
        began = asyncio.get_running_loop().time()
        async with fake.subscribed(0, TRIM_HORIZON) as events:
            read = [event async for event in events]
        took = asyncio.get_running_loop().time() - began
        assert self.subscription_seconds - 0.1 <= took <= self.subscription_seconds + 5
        assert read
        assert all(event["ContinuationSequenceNumber"] is not None for event in read)
