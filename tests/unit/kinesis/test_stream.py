"""One stream for its readers: what it lists, what it calls lost, and how it asks for the end of a shard."""

import asyncio
import json
from typing import Any

import pytest

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import Facts
from kinesis_efo.errors import (
    DataLossError,
    RetriesExhaustedError,
    StreamReplacedError,
    SubscriptionError,
)
from kinesis_efo.kinesis.ends import End
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import StreamSummary
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.records.events import ChildShard
from kinesis_efo_local.sequence import Numbering
from tests.support.transports import OpenSink, ScriptedTransport, Wait, payload, refused
from tests.support.virtual_time import LoopClock, run

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
REF = StreamRef("orders", "dev-orders", ARN, f"{ARN}/consumer/lake:1")
POLLED = StreamRef("orders", "dev-orders", ARN, None)
HOUR = 3600.0
NOW = 1_700_001_000
"""Where virtual time begins, epoch seconds."""
AGES_AGO = NOW - 100 * 24 * 3600


def name(index: int) -> str:
    return f"shardId-{index:012d}"


def number(index: int, age: float = 0.0, created: int = AGES_AGO) -> int:
    """The number of a record that came so many seconds before the test."""
    return int(Numbering(index, created).record(int((NOW - age) * 1e9)))


def after(index: int, age: float = 0.0) -> Position:
    return Position.after(number(index, age))


def shard(index: int, *parents: int, created: int = AGES_AGO) -> Shard:
    return Shard(
        name(index), tuple(map(name, parents)), (index * 10, index * 10 + 9), number(index, NOW - created, created)
    )


class Lister:
    """Lists what it is told to; the first calls may fail."""

    def __init__(self, *shards: Shard) -> None:
        self.listed = list(shards)
        self.faults: list[Exception] = []
        self.asked: list[str] = []
        self.opened_at: list[int] = []
        self.who = Distribution.KEYED

    def _pass(self, what: str) -> None:
        self.asked.append(what)
        if self.faults:
            raise self.faults.pop(0)

    async def shards(self, stream_arn: str) -> list[Shard]:
        assert stream_arn == ARN
        self._pass("shards")
        return self.listed

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        self._pass("shards_open_at")
        self.opened_at.append(epoch_ms)
        return self.listed

    async def summary(self, stream_arn: str) -> StreamSummary:
        self._pass("summary")
        return StreamSummary(42, 24 * HOUR)

    async def distribution(self, stream_arn: str) -> Distribution:
        self._pass("distribution")
        return self.who


def stream(
    lister: Lister,
    transport: Any = None,
    retry: RetrySettings | None = None,
    *,
    fail: bool = True,
    ref: StreamRef = REF,
) -> Stream:
    settings = retry or RetrySettings()
    return Stream(ref, transport, lister, settings, "manifest.json", LoopClock(), fail_on_data_loss=fail)  # type: ignore[arg-type]


async def listed(*shards: Shard) -> tuple[Lister, Stream]:
    """A stream that knows the list of its shards."""
    lister = Lister(*shards)
    await (made := stream(lister)).refresh()
    return lister, made


# -- what it lists


async def test_hash_range_of_a_new_shard_is_waited_for() -> None:
    lister, made = await listed(shard(0), shard(2))
    clock = LoopClock()
    asking = asyncio.create_task(made.hash_ranges([name(0), name(1), name(3)]))
    await asyncio.sleep(60)
    assert not asking.done()
    lister.listed = [shard(0), shard(2), shard(3)]
    # The second was trimmed: nothing is left of it.
    assert await asking == {name(0): (0, 9), name(3): (30, 39)}
    assert clock.monotonic() < 1080


@pytest.mark.parametrize("later", [shard(0), shard(5, created=9)])
async def test_wait_for_a_shard_ends_if_the_stream_is_created_again(later: Shard) -> None:
    lister, made = await listed(shard(5))
    lister.listed = [later]
    with pytest.raises(StreamReplacedError, match="deleted and created again since"):
        await made.hash_ranges([name(7)])


async def test_start_waits_for_the_creation_time_and_the_horizon() -> None:
    lister = Lister(shard(0))
    made, faults = stream(lister), [refused("LimitExceededException", operation="DescribeStreamSummary")] * 3
    lister.faults = [*faults]
    await made.identify()
    assert made.identity.created == 42
    lister.faults = [*faults]
    assert await made.horizon() == pytest.approx(NOW - 24 * HOUR, abs=60)


async def test_only_a_start_waits_for_a_list() -> None:
    lister = Lister(shard(0))
    made, clock = stream(lister), LoopClock()
    lister.faults = [refused("LimitExceededException", operation="ListShards") for _ in range(3)]
    with pytest.raises(SubscriptionError, match="LimitExceeded"):
        await made.refresh()
    assert (lister.asked, clock.monotonic()) == (["shards"], 1000)
    await made.refresh(patient=True)
    assert len(lister.asked) == 4
    assert clock.monotonic() > 1000


CHILDREN = (ChildShard(name(1), (name(0),), 10, 14), ChildShard(name(2), (name(0),), 15, 19))


async def test_announced_children_stay_until_they_are_listed() -> None:
    _, made = await listed(shard(0))
    made.add_children(name(0), CHILDREN)
    for _ in range(2):
        assert await made.hash_ranges([name(1)]) == {name(1): (10, 14)}
        assert made.lineage.children(name(0)) == [name(1), name(2)]
        assert made.children(name(0)) == CHILDREN
        assert made.shard(name(1)) is None, "not listed"
        await made.refresh()


# -- what is lost


async def test_start_before_retention_keeps_its_time() -> None:
    lister = Lister(shard(0), shard(1, 0))
    made = stream(lister)
    kept = Position.at_timestamp((NOW - 3600) * 1000)
    assert await made.starting_positions(kept) == {name(0): kept, name(1): kept}
    assert (lister.asked, lister.opened_at) == (["shards_open_at"], [kept.value])
    lister.asked.clear()
    gone = Position.at_timestamp((NOW - 30 * 24 * 3600) * 1000)
    assert await made.starting_positions(gone) == {name(0): gone}
    assert lister.asked == ["summary", "shards"]
    lister.asked.clear()
    assert await made.starting_positions(TRIM_HORIZON) == {name(0): TRIM_HORIZON}
    assert lister.asked == ["shards"]


# Shows invariant 8.
async def test_announced_generations_outlast_an_old_list() -> None:
    """Otherwise, the merged shard would start again once the list shows its parents."""
    _, made = await listed(shard(0))
    made.add_children(name(0), CHILDREN)
    for parent in (1, 2):
        made.add_children(name(parent), (ChildShard(name(3), (name(1), name(2)), 10, 19),))
    await made.refresh()
    assert made.lineage.droppable({name(1): SHARD_END, name(2): SHARD_END, name(3): TRIM_HORIZON}) == [name(1), name(2)]


# Shows shards vanish or appear.
async def test_unlisted_shard_is_lost_after_a_second_list() -> None:
    lister, made = await listed(shard(5))
    with pytest.raises(DataLossError, match=f"{name(3)} does not exist any more"):
        await made.check_loss({name(3): after(3), name(5): TRIM_HORIZON}, nothing_known, set())
    assert lister.asked == ["shards", "shards"]


async def test_accepted_loss_of_a_shard_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    lister, made = await listed(shard(5))
    reported: set[str] = set()
    for _ in range(3):
        await made.check_loss({name(3): after(3)}, lambda _shard, position: Facts(accepted=position), reported)
        made.losses.write()
    assert lister.asked == ["shards", "shards"]
    assert made.losses.count == 1
    (message,) = caplog.messages
    assert "option acceptDataLoss accepts that" in message


async def test_unknown_distribution_is_no_error() -> None:
    lister = Lister()
    lister.who = Distribution.AUTO
    made = stream(lister)
    assert await made.distribution() is Distribution.AUTO
    lister.faults = [refused("AccessDeniedException", operation="DescribeStreamSummary")]
    assert await made.distribution() is Distribution.UNKNOWN


async def test_position_older_than_its_shard_is_refused() -> None:
    _, made = await listed(shard(0, created=NOW - 3600))
    old = Position.after(number(0, 2 * 3600, AGES_AGO))
    with pytest.raises(StreamReplacedError, match="deleted and created again since"):
        await made.check_loss({name(0): old}, nothing_known, set())
    with pytest.raises(StreamReplacedError, match="deleted and created again since"):
        made.subscribe(name(0), old, OpenSink())  # type: ignore[arg-type]
    made.subscribe(name(9), old, OpenSink())  # type: ignore[arg-type]  # of a shard that is not listed, nothing is known


def nothing_known(_shard: str, _position: Position) -> Facts:
    return Facts()


# -- the end of a shard


TIME = NOW * 1000


async def test_whether_a_record_is_past_retention() -> None:
    lister = Lister(shard(0))
    made = stream(lister)
    old = number(0, 30 * 24 * 3600)
    lister.faults = [refused("LimitExceededException", operation="DescribeStreamSummary")]
    assert await made.is_past(name(0), old) is False, "it is not known"
    assert await made.is_past(name(0), old) is True
    assert await made.is_past(name(0), number(0, 60)) is False


def event(*records: tuple[int, float], to: int | None, behind: int = 1000) -> bytes:
    """An event of records, each with its number and the seconds before the time at which it arrived."""
    body = json.loads(payload(to, children=() if to is not None else [name(1)], behind=behind))
    body["Records"] = [
        {
            "Data": "eA==",
            "PartitionKey": "k",
            "SequenceNumber": str(number),
            "ApproximateArrivalTimestamp": TIME / 1000 - before,
        }
        for number, before in records
    ]
    return json.dumps(body).encode()


SOON = f"AT_TIMESTAMP:{TIME - 30_000}"
LONG_AGO = f"AT_TIMESTAMP:{TIME - 600_000}"
QUIET = [Wait(5), event(to=7, behind=0), Wait(5), event(to=7, behind=0)]
LAST = [event((6, 20), to=7, behind=0), *QUIET]


async def test_each_search_records_an_idle_shard() -> None:
    position = after(0, 30 * HOUR)
    idle = [Wait(5), event(to=position.value, behind=0)] * 3
    made = stream(Lister(), ScriptedTransport(LoopClock(), idle), ref=POLLED)
    began = LoopClock().time()
    await made.check_position(name(0), position, Facts(began - HOUR))
    assert await made.tip(name(0), position) == End(position)
    assert made.idle(name(0), position) == (began, None)


async def test_search_without_a_tip_hides_no_loss() -> None:
    position = after(0, 30 * HOUR)
    idle = [Wait(5), event(to=position.value, behind=0)] * 3
    made = stream(Lister(), ScriptedTransport(LoopClock(), idle), ref=POLLED)
    assert await made.tip(name(0), position) == End(position)
    with pytest.raises(DataLossError, match="are gone"):
        await made.check_position(name(0), position, Facts())


@pytest.mark.parametrize("ref", [REF, POLLED], ids=["efo", "polling"])
async def test_tip_of_a_parent_after_a_split(ref: StreamRef) -> None:
    missing = refused("ResourceNotFoundException", "Shard does not exist")
    transport = ScriptedTransport(LoopClock(), missing, missing, LAST)
    assert await stream(Lister(shard(0)), transport, ref=ref).tip(name(0), TRIM_HORIZON) == End(Position.after(7), 6)


def end_before(*scripts: Any, position: Position = TRIM_HORIZON) -> tuple[End, list[str], list[float]]:
    """Where the shard stood at the time, and which positions were asked for, and how far apart."""

    async def main() -> tuple[End, list[str], list[float]]:
        transport = ScriptedTransport(LoopClock(), *scripts)
        found = await stream(Lister(), transport).end_before(name(0), TIME, position)
        assert all(each.closed for each in transport.streams)
        return found, transport.positions, transport.gaps

    return run(main())


def test_end_search_goes_further_back() -> None:
    nothing = [event((5, -1), to=6)]
    found, asked, gaps = end_before(nothing, [event((1, 200), to=2), event((5, -1), to=6)])
    assert (found, asked) == (End(Position.after(2), 1), [SOON, LONG_AGO])
    assert gaps == [5.0]
    assert end_before(nothing, nothing, [event((1, 9000), to=2), *nothing])[:2] == (
        End(Position.after(2), 1),
        [SOON, LONG_AGO, "TRIM_HORIZON"],
    )


def test_subscription_without_any_event_is_no_proof() -> None:
    at = Position.after(42)
    found, asked, _ = end_before([Wait(1)], [event((43, 9), to=44), event((45, -1), to=46)], position=at)
    assert (found, asked) == (End(Position.after(44), 43), [SOON, SOON])
    with pytest.raises(RetriesExhaustedError, match="before its first record"):
        end_before(*[[Wait(1)]] * 300, position=at)


async def test_time_in_the_future_is_waited_for() -> None:
    transport = ScriptedTransport(LoopClock(), [event((1, -2), to=2), event((3, -5), to=4)])
    began = LoopClock().time()
    assert await stream(Lister(), transport).end_before(name(0), TIME + 4_000, TRIM_HORIZON) == End(
        Position.after(2), 1
    )
    assert LoopClock().time() - began == pytest.approx(5.0 + TIME / 1000 - began, abs=1.0)


async def test_a_subscription_waits_for_its_turn_after_a_question() -> None:
    """The stream remembers when it last subscribed, whoever did."""
    transport = ScriptedTransport(LoopClock(), LAST)
    made = stream(Lister(), transport)
    await made.tip(name(0), TRIM_HORIZON)
    reading = asyncio.ensure_future(made.subscribe(name(0), Position.after(7), OpenSink()).run())  # type: ignore[arg-type]
    await asyncio.sleep(10)
    reading.cancel()
    assert [at for at, _ in transport.calls] == [1000, 1010]
    assert "streaming" in made.subscriptions.describe(name(0))
    assert made.subscriptions.stats[name(0)].opened == 1
