"""What is decided about one error after the other, without a subscription around it."""

import asyncio

import pytest

from kinesis_efo.errors import ConsumerTakenOverError, InvalidRequestError
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.recovery import ReadContext, Recovery
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Position
from tests.support.transports import ScriptedTopology, ScriptedTransport, broken_off, refused
from tests.support.virtual_time import LoopClock

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
SHARD = "shardId-000000000000"
INVALID = refused("InvalidArgumentException", "The timestamp is in the future")
TOO_SOON = refused("ResourceInUseException", "Another active subscription exists for this consumer: lake")
TAKEN_OVER = broken_off("ResourceInUseException", "Another subscription took over")


def context(retry: RetrySettings) -> ReadContext:
    clock = LoopClock()
    stream = StreamRef("orders", "orders", ARN, f"{ARN}/consumer/lake:1")
    return ReadContext(
        stream, "manifest.json", ScriptedTransport(clock), ScriptedTopology([SHARD]), retry, clock=clock, random=lambda: 1.0
    )  # fmt: skip


@pytest.fixture
def recovery() -> Recovery:
    return Recovery(context(RetrySettings(max_retries=10)), SHARD)


async def test_future_start_is_refused_after_five_minutes(recovery: Recovery) -> None:
    position = Position.at_timestamp(int((LoopClock().time() + 3600) * 1000))
    for _ in range(3):
        await recovery.delay(classify(INVALID), position)
        await asyncio.sleep(99)
    await recovery.delay(classify(INVALID), position)
    await asyncio.sleep(3)
    with pytest.raises(InvalidRequestError, match="The timestamp is in the future"):
        await recovery.delay(classify(INVALID), position)


@pytest.mark.parametrize("position", [TRIM_HORIZON, Position.after(1_700_000_000_000_000), "long ago"])
async def test_any_other_position_that_is_invalid_stays_so(recovery: Recovery, position: Position | str) -> None:
    at = position if isinstance(position, Position) else Position.at_timestamp(int((LoopClock().time() - 400) * 1000))
    with pytest.raises(InvalidRequestError):
        await recovery.delay(classify(INVALID), at)


async def test_refusals_are_forgotten_after_two_quiet_minutes(recovery: Recovery) -> None:
    assert classify(TOO_SOON).verdict is Verdict.TOO_SOON
    for pause in (119.0, 119.0, 121.0, 119.0, 119.0):
        assert await recovery.delay(classify(TOO_SOON), TRIM_HORIZON) == 1.0
        await asyncio.sleep(pause)
    assert await recovery.delay(classify(TOO_SOON), TRIM_HORIZON) == 1.0
    await asyncio.sleep(100)
    with pytest.raises(ConsumerTakenOverError):
        await recovery.delay(classify(TOO_SOON), TRIM_HORIZON)


async def test_five_takeovers_within_five_minutes_are_fatal(recovery: Recovery) -> None:
    for _ in range(8):
        assert await recovery.delay(classify(TAKEN_OVER), TRIM_HORIZON) > 0
        await asyncio.sleep(76)
    await asyncio.sleep(300)
    for _ in range(4):
        await recovery.delay(classify(TAKEN_OVER), TRIM_HORIZON)
        await asyncio.sleep(74)
    with pytest.raises(ConsumerTakenOverError):
        await recovery.delay(classify(TAKEN_OVER), TRIM_HORIZON)


async def test_thousand_throttled_shards_log_one_line_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    throttled = classify(refused("LimitExceededException", "Rate exceeded"))
    shared = context(RetrySettings())
    shards = [Recovery(shared, f"shardId-{number:012}") for number in range(1000)]
    for _ in range(3):
        for shard in shards:
            await shard.delay(throttled, TRIM_HORIZON)
        await asyncio.sleep(5)
    await shards[0].delay(classify(refused("InternalFailure", "", status=500)), TRIM_HORIZON)
    first, second, other = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert first == "orders:shardId-000000000000: LimitExceededException: Rate exceeded; retry 1 in 1.0 s"
    assert second == (
        "orders:shardId-000000000000: LimitExceededException: Rate exceeded; retry 3 in 2.2 s; "
        "1999 more like it in 1000 shards in the last 10 s"
    )
    assert "InternalFailure" in other, "a failure of another kind is not hidden"
