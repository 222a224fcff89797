"""What a process says of the KPL aggregates that its tasks leave out."""

import pytest

from kinesis_efo.metrics import MetricsSettings, Sample
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.positions import ShardKey
from kinesis_efo.tasks.left_out import LeftOut

SETTINGS = MetricsSettings(export="none")


def test_each_stream_warns_once_a_minute_with_the_number(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    left_out = LeftOut(lambda: now[0])
    for seconds, stream, number in (
        (0, "orders", 2),
        (1, "orders", 3),
        (2, "clicks", 1),
        (58, "orders", 4),
        (0, "orders", 5),
    ):
        now[0] += seconds
        left_out.add(ShardKey(stream, f"shardId-{number}"), number, SETTINGS)
    assert [message.partition(" KPL")[0] for message in caplog.messages] == [
        "stream orders: 2",
        "stream clicks: 1",
        "stream orders: 7",
    ]
    assert "'deaggregate=true' delivers them" in caplog.messages[0]
    assert "the last in shard shardId-4" in caplog.messages[2]


def test_metric_counts_each_stream_from_the_first() -> None:
    reported = []
    left_out = LeftOut(lambda: 0.0, lambda source, settings: reported.append((source, settings)) or (lambda: None))
    assert list(left_out()) == reported == []
    for stream, number in (("orders", 2), ("clicks", 1), ("orders", 5)):
        left_out.add(ShardKey(stream, "s"), number, SETTINGS)
    assert reported == [(left_out, SETTINGS)]
    assert list(left_out()) == [
        Sample(metrics.LEFT_OUT, 7, (("stream", "orders"),)),
        Sample(metrics.LEFT_OUT, 1, (("stream", "clicks"),)),
    ]
