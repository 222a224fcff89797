"""What counts as trimmed before it was read, and what a number or a time must look like to say so."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import Facts, written_at
from kinesis_efo.errors import DataLossError
from kinesis_efo.kinesis.delivery import ShardDelivery
from kinesis_efo.kinesis.retention import LossLog, Retention
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.topology import StreamSummary
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo_local.sequence import Numbering
from tests.emulator.loss_oracle import single
from tests.support.virtual_time import LoopClock

HOUR = 3600.0
NOW = 1_700_001_000
"""Where virtual time begins, epoch seconds."""
SHARD = "shardId-000000000003"
STREAM = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")


def number(age: float, index: int = 3, created: int = NOW - 10**6) -> int:
    """A record's sequence number, `age` seconds old when a test begins."""
    return int(Numbering(index, created).record(int((NOW - age) * 1e9)))


def after(age: float) -> Position:
    return Position.after(number(age))


class Lister:
    """Knows the retention only."""

    def __init__(self, hours: float = 24) -> None:
        self.hours = hours
        self.asked = 0

    async def summary(self, stream_arn: str) -> StreamSummary:
        self.asked += 1
        return StreamSummary(0, self.hours * HOUR)


async def not_listed(_: str) -> None:
    """Nothing is known about any shard."""


def retention(lister: Lister | None = None, listed: Any = not_listed, *, fail: bool = True) -> Retention:
    return Retention(STREAM, lister or Lister(), LoopClock(), listed, fail=fail, shortest=24 * HOUR)  # type: ignore[arg-type]


def delivery(at: Position, losses: Retention) -> ShardDelivery:
    """What a reader of a shard checks before it delivers."""
    context: Any = SimpleNamespace(clock=LoopClock())
    sink: Any = SimpleNamespace(committed=None)
    return ShardDelivery(context, SHARD, at, sink, SubscriptionStats(), losses, Facts())


@pytest.mark.parametrize("position", [after(0), after(24 * HOUR), Position.at_timestamp((NOW - 60) * 1000)])
async def test_recent_position_needs_no_call(position: Position) -> None:
    lister = Lister()
    assert not await retention(lister).check(SHARD, position)
    assert lister.asked == 0


async def test_allowed_losses_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    losses, other = retention(fail=False), Position.after(number(30 * HOUR, index=4))
    for _ in range(2):
        assert await losses.check(SHARD, after(30 * HOUR))
        assert await losses.check(SHARD, after(29 * HOUR))
        assert await losses.check("shardId-000000000004", other)
        losses.log.write()
        await asyncio.sleep(61)
    assert [re.findall(r"shard (\S+) was", message) for message in caplog.messages] == [
        [SHARD, "shardId-000000000004"]
    ] * 2


def test_consecutive_shards_are_named_as_ranges(caplog: pytest.LogCaptureFixture) -> None:
    log = LossLog("orders", LoopClock())
    for index in (5, 4, 3, 2, 1, 20, 8, 9, 10, 12):
        log.add(
            f"shardId-{index:012}", f"stream 'orders', shard shardId-{index:012} is gone", "; continuing without it"
        )
    log.write()
    log.write()
    (message,) = caplog.messages
    assert message.endswith("; and 5 more, in shards 8 to 10, 12, 20; continuing without it")
    assert [text[-50:] for text in single(message)][:2] == [
        f"shard shardId-{index:012} is gone; continuing without it"[-50:] for index in (5, 4)
    ]
    assert len(single(message)) == log.count == 10


async def test_loss_of_a_cancelled_reader_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = LossLog("orders", LoopClock())
    log.add(SHARD, "records are gone", "; going on")
    task = asyncio.ensure_future(log.write_soon())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.messages == ["records are gone; going on"]


async def test_retention_is_requested_once_a_minute() -> None:
    lister = Lister()
    losses = retention(lister, fail=False)
    for _ in range(3):
        for _ in range(50):
            await losses.check(SHARD, after(30 * HOUR))
        await asyncio.sleep(61)
    assert lister.asked == 3


async def test_raised_retention_is_noticed_before_a_loss_is_reported() -> None:
    lister = Lister()
    losses = retention(lister)
    assert not await losses.reaches_back_to(0)
    lister.hours = 168
    await asyncio.sleep(1)
    assert not await losses.check(SHARD, after(30 * HOUR))


async def test_new_shard_that_is_not_listed_has_lost_nothing() -> None:
    assert not await retention().check(SHARD, TRIM_HORIZON, Facts(horizon=NOW - 30 * HOUR), begins=True)


@pytest.mark.parametrize("sub", [None, 3])
async def test_rest_of_a_closed_shards_last_aggregate_is_lost(sub: int | None) -> None:
    last = number(30 * HOUR)

    async def listed(shard_id: str) -> Shard:
        return Shard(shard_id, (), (0, 9), first=number(10**6), last=last)

    at = Position.after(last) if sub is None else Position.inside(last, sub)
    assert bool(await retention(listed=listed, fail=False).check(SHARD, at)) is (sub is not None)


@pytest.mark.parametrize(
    ("sequence_number", "shard", "arrived"),
    [
        # As AWS' guides and public traces show them, with the arrival time beside them.
        (49590338271490256608559692538361571095921575989136588898, 6, 1545084650.987),
        (49578004267304126490250764745524898857376013314355626018, 2, 1508209853.067),
        (49584880958946076604572174628188246884286735603799687170, 0, 1527550020.837),
        (49588630796424512596616347529113745994736297474709782530, 0, 1538160219.636),
    ],
)
def test_sequence_numbers_of_aws_hold_their_second(sequence_number: int, shard: int, arrived: float) -> None:
    written = written_at(sequence_number, f"shardId-{shard:012d}", 2e9)
    assert written is not None
    assert 0 <= arrived - written < 2


@given(st.integers(0, 2**200))
def test_any_number_is_accepted(number: int) -> None:
    found = written_at(number, SHARD, float(NOW))
    assert found is None or 0 <= found <= NOW


async def test_loss_that_resumes_later_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    losses = retention(fail=False)
    assert await losses.check(SHARD, after(30 * HOUR)), "when its range is planned again"
    losses.log.write()
    await asyncio.sleep(59)
    reader = delivery(after(30 * HOUR), losses)
    assert await reader.is_passed()
    assert len(caplog.messages) == 1, "the first warning is for a minute"
    await asyncio.sleep(50)
    await reader.is_passed()
    assert len(caplog.messages) == 2


async def test_reader_repeats_only_its_own_checks() -> None:
    losses = retention(lister := Lister(168))
    slow, tip = after(3 * 24 * HOUR), after(0)
    for _ in range(60):
        await losses.check(SHARD, slow, reader="slow")
        await losses.check(SHARD, tip)
        await asyncio.sleep(1)
    assert lister.asked <= 3
    lister.hours = 48
    await losses.check(SHARD, tip)
    await asyncio.sleep(60)
    with pytest.raises(DataLossError):
        await losses.check(SHARD, slow, reader="slow")
