"""Every fault alone: a single one costs nothing but time; one that persists ends the query with the error in the table."""

import asyncio
from typing import Any

import pytest

from kinesis_efo.errors import (
    AccessRefusedError,
    ConsumerNotFoundError,
    ConsumerTakenOverError,
    InvalidRequestError,
    KeyUnusableError,
    KinesisEfoError,
    RetriesExhaustedError,
)
from kinesis_efo_local.subscribe import open_subscription
from tests.emulator.faults import ScriptedFaults
from tests.emulator.memory_world import MemoryWorld
from tests.emulator.script import BROKEN, EXCEPTIONS, ODD, REFUSALS, SLOW, Fault
from tests.support.messages import raises

FOR_EVER = 1 << 30


def world_with(*script: Fault, **arguments: Any) -> tuple[MemoryWorld, ScriptedFaults]:
    """A world with one shard and these faults."""
    began = asyncio.get_running_loop().time()
    faults = ScriptedFaults(script, lambda: asyncio.get_running_loop().time() - began)
    return MemoryWorld(faults=faults, **{"settings": {"max_event_records": 5}, **arguments}), faults


PASSING = [
    *(Fault(kind, 0, seconds=20 if kind in SLOW else 0) for kind in (*BROKEN, *ODD, *SLOW)),
    *(Fault("refuse", 0, code=code) for code in REFUSALS),
    *(Fault("exception", 0, code=code) for code in EXCEPTIONS),
]


# Shows 16, 21, 24, 33, invariant 2.
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: " ".join(filter(None, (fault.kind, fault.code))))
async def test_once_it_costs_nothing_but_time(fault: Fault) -> None:
    world, faults = world_with(fault)
    world.put_some(30)
    query = await world.read(seconds=120)
    assert len(faults.strikes) == 1
    assert not query.oracle.verdicts


ENDLESS: dict[str, tuple[type[KinesisEfoError], str]] = {
    **dict.fromkeys(BROKEN, (RetriesExhaustedError, "too many failures in a row without any progress")),
    **dict.fromkeys([f"refuse {code}" for code in REFUSALS[:6]], (RetriesExhaustedError, "too many failures in a row")),
    **{f"refuse {code}": (KeyUnusableError, code) for code in REFUSALS[6:11]},
    "refuse ResourceInUseException: too soon": (ConsumerTakenOverError, "is used by another program"),
    "refuse ResourceInUseException: not active": (RetriesExhaustedError, "has not become ACTIVE within 5 minutes"),
    "refuse ExpiredTokenException": (AccessRefusedError, "expired and do not refresh themselves"),
    "refuse AccessDeniedException": (AccessRefusedError, "Allow kinesis:SubscribeToShard on it to arn:aws:sts:"),
    "refuse InvalidArgumentException": (InvalidRequestError, "check that checkpoint and ARN belong together"),
    "refuse ResourceNotFoundException": (RetriesExhaustedError, "ResourceNotFoundException"),
    "exception ResourceInUseException": (ConsumerTakenOverError, "is used by another program"),
    "exception ResourceNotFoundException": (RetriesExhaustedError, "ResourceNotFoundException"),
    "exception KMSThrottlingException": (RetriesExhaustedError, "KMSThrottlingException"),
    "exception InternalFailureException": (RetriesExhaustedError, "InternalFailureException"),
    **{f"exception {code}": (KeyUnusableError, code) for code in EXCEPTIONS[1:6]},
}


# Shows 16, 22, 30, 72.
@pytest.mark.parametrize("name", ENDLESS)
async def test_lasting_fault_fails_the_query_with_its_error(name: str) -> None:
    kind, _, code = (name, "", "") if name in BROKEN else name.partition(" ")
    error, text = ENDLESS[name]
    world, _ = world_with(Fault(kind, 0, times=FOR_EVER, code=code))
    world.put_some(30)
    with pytest.raises(error, match=text) as caught:
        await world.read(seconds=1000)
    assert type(caught.value) is error
    assert "shardId-000000000000" in str(caught.value)
    assert world.application.rows == []


def test_every_kind_of_fault_is_in_the_table() -> None:
    refusals = {f"refuse {code}" for code in REFUSALS} | {f"exception {code}" for code in EXCEPTIONS}
    assert ENDLESS.keys() >= {*BROKEN, *refusals}


# Shows 48.
@pytest.mark.parametrize("kind", ODD)
async def test_odd_events_may_come_for_ever(kind: str) -> None:
    world, faults = world_with(Fault(kind, 0, times=FOR_EVER), shards=2)
    world.put_some(60)
    world.split(0)
    world.put_some(60)
    await world.read(seconds=120)
    assert len(faults.strikes) > 10


# Shows 23, 31.
async def test_ten_failures_between_two_events_are_retried_each_time() -> None:
    """Progress resets the count: 30 times ten failures in a row."""
    world, _ = world_with(*[Fault("reset", 200.0 * row, times=10) for row in range(30)])

    async def write(number: int) -> None:
        world.put_some(number % 5 == 0)
        await asyncio.sleep(9)

    query = await world.read(meanwhile=write, batches=650, seconds=7200)
    assert query.oracle.faults == {"ClientOSError": 300}
    assert query.oracle.verdicts == []


# Shows 14, 15, 43, invariant 2.
async def test_a_subscription_that_expires_every_six_seconds() -> None:
    world, _ = world_with(settings={"subscription_seconds": 6.0, "max_event_records": 5}, shards=2)

    async def write(number: int) -> None:
        if number < 100:
            world.put_some(10)
            await asyncio.sleep(1)

    query = await world.read(meanwhile=write, batches=100)
    assert query.oracle.calls > 20
    assert query.oracle.faults == {}


# Shows 42.
async def test_events_of_one_large_and_10_000_small_records() -> None:
    world, _ = world_with(
        settings={"max_event_records": 10_000, "read_limit": False}, max_record_kib=10_240, buffer_bytes=1 << 20
    )
    world.put("large", (10 << 20) - 100)
    for _ in range(10_000):
        world.put("k", 4)
    world.put("large", (10 << 20) - 100)
    assert (await world.read()).most_used < 16 << 20, "one event at a time, whatever its size"


def steal(world: MemoryWorld) -> bool:
    """Subscribe to the first shard with the application's consumer, as a second reader would."""
    taken = world.kinesis.state.subscriptions
    if taken:
        position = {"Type": "LATEST"}
        request = {"ConsumerARN": taken[0].consumer.arn, "ShardId": taken[0].shard.id, "StartingPosition": position}
        open_subscription(world.kinesis.state, request)
    return bool(taken)


async def test_occasional_second_reader_is_tolerated() -> None:
    world, _ = world_with()

    async def disturb(number: int) -> None:
        if number < 12:
            world.put_some(5)
            await asyncio.sleep(90)
            assert steal(world)

    assert (await world.read(meanwhile=disturb, batches=12)).oracle.faults["ResourceInUseException"] >= 12


async def test_a_second_reader_that_stays_is_named() -> None:
    world, _ = world_with()

    async def disturb(_: int) -> None:
        world.put_some(1)
        await asyncio.sleep(20)
        steal(world)

    with raises(
        ConsumerTakenOverError,
        "stream 'orders', shard shardId-000000000000, consumer ... (from manifest.json): consumer ... is used by another "
        "program: ResourceInUseException: Another subscription has been made for consumer ... and shard shardId-000000000000. "
        "Give each application a separate consumer; look for another query, Flink job or KCL worker that uses this one",
    ):
        await world.read(meanwhile=disturb, rows=1000)
    world.check(whole=False)


# Shows 32.
async def test_consumer_created_again_fails_the_query() -> None:
    world, _ = world_with()
    world.put_some(10)
    await world.read()
    world.kinesis.call("DeregisterStreamConsumer", ConsumerARN=world.application.ref.consumer_arn)
    redeployed = world.deployed()
    world.put_some(10)
    with raises(
        ConsumerNotFoundError,
        f"stream 'orders', shard shardId-000000000000: consumer {world.application.ref.consumer_arn} does not exist (any more); "
        "its ARN came from manifest.json. A consumer that is registered again has another ARN: declare it again where it was "
        "declared, give the new ARN there, and restart the query",
    ):
        await world.read()
    world.application.ref = redeployed
    await world.read()


async def test_connections_that_always_break_end_the_query() -> None:
    world, _ = world_with(Fault("reset", 0, times=FOR_EVER), shards=2)
    world.put_some(50)
    with raises(
        RetriesExhaustedError,
        "stream 'orders', shard ... (from manifest.json) cannot be read: too many failures "
        "in a row without any progress, 11 in ... s. The last was ClientOSError: [Errno 104] Connection reset by peer. "
        "Restart the query once the cause is gone; kinesis-efo option 'retryTimeout' "
        "allows more",
    ):
        await world.read()
