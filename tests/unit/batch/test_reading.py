"""Reading one range, in virtual time: to its end and not further, through faults, and what becomes of records that are gone."""

from typing import Any

import pytest

from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.batch.reading import RangeEvent, RangeProgress, check_planned, read_range
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import DataLossError, StreamReplacedError
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo_local.sequence import Numbering
from tests.support import virtual_time
from tests.support.messages import raises
from tests.support.transports import ScriptedTopology, ScriptedTransport, Wait, payload, refused
from tests.support.virtual_time import LoopClock

ORDERS = StreamRef("orders", "dev-orders", "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders", None)
KEY = ShardKey("orders", "shardId-000000000001")
LISTED = [KEY.shard]
START = 1_700_001_000.0
"""The epoch time at which virtual time begins."""

UNTIL_START = Position.at_timestamp(round(START * 1000))


def read(
    *scripts: Any,
    start: Position = TRIM_HORIZON,
    end: Position = UNTIL_START,
    topology: ScriptedTopology | None = None,
    fail: bool = True,
    server_ahead: float = 0.0,
    last: int | None = None,
) -> tuple[list[int | None], ScriptedTransport, float]:
    """The continuations of the events with records that were taken, the transport, and the seconds it took."""

    async def main() -> tuple[list[int | None], ScriptedTransport, float]:
        clock = LoopClock()
        transport = ScriptedTransport(clock, *scripts)
        stream = Stream(
            ORDERS,
            transport,
            topology or ScriptedTopology(LISTED),
            RetrySettings(max_retries=3),
            "m.json",
            clock,
            fail_on_data_loss=fail,
        )
        taken: list[RangeEvent] = []

        async def take(portion: RangeEvent) -> None:
            taken.append(portion)

        progress = RangeProgress(BatchRange(KEY, (0, 9), start, end, last=last))
        began = clock.monotonic()
        server_time = lambda: clock.time() + server_ahead  # noqa: E731
        await read_range(stream, progress, server_time, take, clock, patience=60.0, fail_on_data_loss=fail)
        assert progress.records == sum(portion.event.head.records for portion in taken)
        return [portion.event.head.continuation for portion in taken], transport, clock.monotonic() - began

    return virtual_time.run(main())


def test_read_waits_at_the_tip_for_its_end() -> None:
    script = [
        payload(10, 2, behind=5),
        payload(20, 1),
        Wait(0.6),
        payload(21),
        Wait(0.6),
        payload(22),
        Wait(2.0),
        payload(23),
        Wait(0.4),
        payload(30, 1),
        payload(31),
        Wait(2.0),
        payload(32),
    ]
    assert read(script)[0] == [10, 20]
    assert read(script)[2] == pytest.approx(3.2)
    assert read(script, server_ahead=1.0)[2] == pytest.approx(3.2)
    assert read(script, server_ahead=-0.3)[0] == [10, 20, 30]


@pytest.mark.parametrize(
    ("moved", "again", "created", "said"),
    [
        (-1.0, False, 0.0, None),
        (590.0, False, 0.0, "WARNING"),
        (610.0, False, 0.0, "error"),
        (610.0, False, 611.0, None),
        (610.0, False, 100.0, "error"),
        (0.5, True, 0.0, "error"),
        (-1.0, True, 100.0, None),
    ],
)
@pytest.mark.parametrize("fail", [True, False])
def test_horizon_that_moves_before_the_first_response(
    moved: float, again: bool, created: float, said: str | None, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = KinesisClock(LoopClock())
        horizon = clock.time() - 24 * 3600
        part = BatchRange(
            KEY, (0, 9), TRIM_HORIZON, UNTIL_START, horizon=horizon - moved, created=horizon - moved + created
        )
        await check_planned(ScriptedTopology(LISTED), ORDERS, "m.json", clock, part, again=again, fail=fail)

    if said == "error" and fail:
        with pytest.raises(
            DataLossError, match=r"the read was planned when the trim horizon was at .*, and begins when it is at"
        ):
            virtual_time.run(main())
    else:
        virtual_time.run(main())
        assert [record.levelname for record in caplog.records] == ([] if said is None else ["WARNING"])


def test_a_shard_that_is_gone_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    gone = refused("ResourceNotFoundException", operation="GetRecords")
    others = ScriptedTopology(["shardId-000000000002"])
    text = (
        "stream 'orders', shard ...: the shard does not exist any more and was read up to AFTER:10 only: its later records are gone "
        "(retention). Read from a later start (`since`), or set kinesis-efo option 'failOnDataLoss' to false to continue without them"
    )
    with raises(DataLossError, text):
        read([payload(10, 1, behind=5), gone], gone, topology=others)
    assert read([payload(10, 1, behind=5), gone], gone, topology=others, fail=False)[0] == [10]
    assert "continuing without it, as set by option failOnDataLoss=false" in caplog.text


def test_unannounced_end_is_the_last_number() -> None:
    assert read([payload(20, 1, behind=5), Wait(300)], last=20)[0] == [20]


def test_shard_newer_than_the_end_is_not_read_unless_the_stream_is_new() -> None:
    second = int(START) + 11
    newer = Shard("shardId-000000000002", (KEY.shard,), (0, 9), int(Numbering(2, second).record(second * 10**9)))
    child = BatchRange(
        ShardKey("orders", newer.shard_id), (0, 9), TRIM_HORIZON, UNTIL_START, horizon=1.0, newest=KEY.shard
    )
    asked: list[BatchRange] = []

    async def check(part: BatchRange) -> None:
        asked.append(part)
        if len(asked) > 1:
            raise StreamReplacedError("created again")

    async def never(_: RangeEvent) -> None:
        raise AssertionError

    async def main() -> list[BatchRange]:
        clock = LoopClock()
        stream = Stream(ORDERS, ScriptedTransport(clock), ScriptedTopology([newer]), RetrySettings(), "m.json", clock)
        return await read_range(
            stream, RangeProgress(child), clock.time, never, clock, patience=1.0, fail_on_data_loss=True, begins=check
        )

    assert virtual_time.run(main()) == []
    with pytest.raises(StreamReplacedError):
        virtual_time.run(main())
    assert [part.horizon for part in asked] == [None, None], "nothing can be lost"
