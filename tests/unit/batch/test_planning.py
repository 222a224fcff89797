"""Planning against what Kinesis says of a stream: what is refused, what is lost, which shards are asked for."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.batch.planning import BatchPlanner, tip_at, tip_for_kinesis
from kinesis_efo.batch.planning import plan as planned_read
from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import ConfigurationError, DataLossError, ManifestError
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.topology import StreamSummary
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import BatchOptions
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON
from kinesis_efo.records.distribution import Distribution
from kinesis_efo_local.sequence import Numbering
from tests.support.answers import Answers, FixedClock
from tests.support.messages import raises

NOW = 1_700_000_000.0
HOUR = 3600.0
ORDERS = StreamRef("orders", "dev-orders", "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders", None)
PARENT, LEFT, RIGHT = (f"shardId-{index:012}" for index in range(3))
SHARDS = [
    Shard(PARENT, (), (0, 9), first=1, last=5),
    Shard(LEFT, (PARENT,), (0, 4), first=6),
    Shard(RIGHT, (PARENT,), (5, 9), first=6),
]


class Kinesis:
    """A stream that was split an hour ago; implements `Topology`."""

    def __init__(self, retention: float = 24 * HOUR, created: float = NOW - 1000 * HOUR) -> None:
        self._retention = retention
        self._created = created
        self.asked: list[float] = []
        self.distributes: Distribution | Exception = Distribution.KEYED
        self.distributions_asked = 0

    async def shards(self, stream_arn: str) -> list[Shard]:
        return SHARDS

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        self.asked.append(epoch_ms / 1000 - NOW)
        if epoch_ms / 1000 < NOW - self._retention:
            return None
        return SHARDS[:1] if epoch_ms / 1000 < NOW - HOUR else SHARDS[1:]

    async def summary(self, stream_arn: str) -> StreamSummary:
        return StreamSummary(int(self._created), self._retention)

    async def distribution(self, stream_arn: str) -> Distribution:
        self.distributions_asked += 1
        if isinstance(self.distributes, Exception):
            raise self.distributes
        return self.distributes


def at(hours: float) -> str:
    return f"AT_TIMESTAMP:{round((NOW + hours * HOUR) * 1000)}"


def in_orders(shard: str, position: str) -> str:
    return json.dumps({"orders": {shard: position}})


def plan(kinesis: Kinesis | None = None, loaded: float = NOW, **options: str) -> dict[str, BatchRange]:
    parsed = BatchOptions.parse({"manifest": "m.json", **options})
    planner = BatchPlanner(ORDERS, "m.json", parsed, tip_at(loaded), kinesis or Kinesis(), NOW + 1)
    return {part.key.shard: part for part in asyncio.run(planner.plan(SHARDS))}


def refused(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        plan(**options)
    message = str(caught.value)
    assert message.startswith(f"stream 'orders': {ORDERS.stream_arn} (from m.json): ")
    return message


@pytest.mark.parametrize("end", [at(1), json.dumps({"orders": at(1)}), in_orders(LEFT, at(1))])
def test_an_end_in_the_future_is_refused(end: str) -> None:
    message = refused(endingPosition=end)
    assert "'endingPosition' must not be in the future" in message
    assert "is 2023-11-14T23:13:20.000Z, and Kinesis' time is 2023-11-14T22:13:21.000Z" in message
    assert "use spark.readStream without an end" in message
    assert "of shard" not in message


@pytest.mark.parametrize(
    ("given", "name"), [({}, "kinesis-efo option 'startingPosition'"), ({"session.times": "since"}, "since")]
)
def test_start_in_the_future_is_refused_by_name(given: dict[str, str], name: str) -> None:
    assert f": {name} must not be in the future: AT_TIMESTAMP:" in refused(startingPosition=at(1), **given)


@pytest.mark.parametrize("option", ["startingPosition", "endingPosition"])
def test_number_of_another_shard_is_refused(option: str) -> None:
    second = int(NOW - HOUR)
    own, other = (int(Numbering(index, second).record(second * 10**9)) for index in (0, 1))
    given = BatchOptions.parse({"manifest": "m.json", option: in_orders(PARENT, f"AFTER:{other}")})
    planner = BatchPlanner(ORDERS, "m.json", given, tip_at(NOW), Kinesis(), NOW + 1)
    with raises(
        ConfigurationError,
        "...: the position AFTER:... in kinesis-efo option '...' does not belong to shard ...; give each shard a sequence number of its "
        "own records",
    ):
        asyncio.run(planner.plan([Shard(PARENT, (), (0, 9), first=own, last=own + 1), *SHARDS[1:]]))


def test_the_end_of_an_open_shard_is_refused() -> None:
    assert f"names the end of shard {LEFT}, which is still open" in refused(endingPosition=in_orders(LEFT, "SHARD_END"))
    assert plan(endingPosition=in_orders(PARENT, "SHARD_END"))[PARENT].end == SHARD_END


@pytest.mark.parametrize("option", ["startingPosition", "endingPosition"])
def test_a_shard_that_never_was_is_refused(option: str) -> None:
    message = refused(**{option: in_orders("shardId-000000000009", "AFTER:7")})
    assert f"option {option!r} names shard 'shardId-000000000009'" in message
    assert message.endswith(f"listed are {PARENT}, {LEFT}, {RIGHT}")


def test_an_end_before_the_start_is_refused() -> None:
    assert "the end 2023-11-14T20:13:20.000Z is before the start 2023-11-14T21:13:20.000Z" in refused(
        startingPosition=at(-1), endingPosition=at(-2)
    )
    both = {"startingPosition": in_orders(LEFT, "AFTER:9"), "endingPosition": in_orders(LEFT, "AFTER:8")}
    assert f"shard {LEFT}, the end AFTER:8 is before the start AFTER:9" in refused(**both)
    assert plan(startingPosition=at(-1), endingPosition=at(-1)) == {}


def test_a_time_before_retention_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as caught:
        plan(startingPosition=at(-25))
    assert "the read begins at 2023-11-13T21:13:20.000Z, and the stream keeps its records for 24 h only" in str(
        caught.value
    )
    assert "failOnDataLoss" in str(caught.value)
    found = plan(startingPosition=at(-25), failOnDataLoss="false")
    assert {part.start for part in found.values()} == {TRIM_HORIZON}
    assert set(found) == {PARENT, LEFT, RIGHT}
    assert "continuing without it" in caplog.text


@pytest.mark.parametrize("option", ["startingPosition", "endingPosition"])
def test_positions_of_other_streams_are_refused(option: str) -> None:
    manifest: Any = SimpleNamespace(streams={"orders": ORDERS}, source="m.json")
    parsed = BatchOptions.parse({"manifest": "m.json", option: json.dumps({"orders": at(-1), "clicks": at(-1)})})
    with pytest.raises(
        ManifestError, match=rf"option '{option}' names 'clicks', but the query reads 'orders' \(from m.json\)"
    ):
        asyncio.run(planned_read(manifest, parsed, tip_at(NOW)))


@pytest.mark.parametrize(
    ("option", "distributes", "strict"),
    [
        ("strict", Distribution.KEYED, True),
        ("strict", Distribution.AUTO, False),
        ("strict", ConnectionResetError("not known"), False),
        ("true", Distribution.KEYED, False),
    ],
    ids=str,
)
def test_strict_needs_streams_distributed_by_key(
    option: str, distributes: Distribution | Exception, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = Kinesis()
    kinesis.distributes = distributes
    assert {part.strict for part in plan(kinesis, deaggregate=option).values()} == {strict}
    assert kinesis.distributions_asked == (option == "strict")
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == (option == "strict" and not strict)


# -- what time it is for Kinesis


def kinesis_clock(skew: float) -> KinesisClock:
    """What a machine whose clock is so far ahead has heard of Kinesis at NOW."""
    client = Answers()
    clock = KinesisClock(FixedClock(NOW + skew))
    clock.watch(client)
    client.answer({"date": "Tue, 14 Nov 2023 22:13:20 GMT", "x-amzn-requestid": "1"})
    return clock


@pytest.mark.parametrize("skew", [-200.0, -3.0, 0.0, 0.9, 40.0, 290.0])
def test_tip_follows_the_clock_of_kinesis(skew: float) -> None:
    clock = kinesis_clock(skew)
    tip = tip_for_kinesis(tip_at(NOW - 10 + skew), clock, here=True)
    assert tip_at(NOW - 10).value <= tip.value <= tip_at(NOW - 9).value
    later = kinesis_clock(skew + 0.3)
    assert tip_for_kinesis(tip_at(NOW - 10 + skew), later, here=True) == tip, "every action sees the same"


def test_tip_of_another_host_is_not_ahead() -> None:
    clock = kinesis_clock(40.0)
    assert tip_for_kinesis(tip_at(NOW - 10), clock, here=False) == tip_at(NOW - 10), "that this one is off says nothing"
    assert tip_for_kinesis(tip_at(NOW + 60), clock, here=False) == tip_at(NOW + 1)
