"""Streams that come, go, are renamed or replaced between two runs of a query."""

from typing import Any

import pytest

from kinesis_efo.driver.reason import cause
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.planner.stream_set import StreamSet
from kinesis_efo.positions import Offset, Position, ShardKey

ACCOUNT = "arn:aws:kinesis:eu-west-1:111111111111:stream"
FIRST, SECOND = (f"shardId-00000000000{number}" for number in range(2))


def ref(name: str, stream: str | None = None, consumer: str | None = "lake:1", account: str = ACCOUNT) -> StreamRef:
    arn = f"{account}/{stream or name}"
    return StreamRef(name, stream or name, arn, f"{arn}/consumer/{consumer}" if consumer else None)


def reading(*refs: StreamRef, drop: bool = False) -> StreamSet:
    streams = {each.name: each for each in refs}
    names = {each.name: each.stream_name for each in refs}
    return StreamSet(Manifest("lake", "dev", "eu-west-1", "leases", streams, "m.json", names), drop=drop)


def offset(**streams: Position) -> Offset:
    return Offset({ShardKey(name, shard): at for name, at in streams.items() for shard in (FIRST, SECOND)})


AT = Position.after(7)
ORDERS, CLICKS = ref("orders"), ref("clicks")


@pytest.mark.parametrize(
    ("now", "how"),
    [
        (ref("orders", consumer="lake:2"), f"{ACCOUNT}/orders/consumer/lake:2"),
        (ref("orders", consumer=None), f"{ACCOUNT}/orders"),
    ],
)
def test_changed_reader_of_a_stream_is_logged_once(now: StreamRef, how: str, caplog: pytest.LogCaptureFixture) -> None:
    streams = reading(now)
    for at in AT, Position.after(8):
        assert streams.read(reading(ORDERS).to_dict(offset(orders=at))) == offset(orders=at)
    assert caplog.messages == [f"stream orders is now read as {how}; earlier runs read it as {ORDERS.consumer_arn}"]


def test_the_last_offsets_are_not_parsed_again() -> None:
    streams = reading(ORDERS)
    texts = [offset(orders=Position.after(number)).to_dict() for number in range(5)]
    first = streams.read(texts[0])
    assert streams.read(dict(texts[0])) is first
    assert streams.to_dict(first) == texts[0], "as Spark has it, without what would be added"
    for text in texts[1:]:
        streams.read(text)
    assert streams.read(texts[4]) is streams.read(texts[4])
    assert streams.read(texts[0]) is not first, "only a few are kept"
    new = offset(orders=Position.after(9))
    data = streams.to_dict(new, new)
    assert data["begin"] == {}
    assert streams.to_dict(new) is data
    assert streams.read(data) is new


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"orders": {"0": 12}}, "not a kinesis-efo offset: .* got \"{'orders': {'0': 12}}\""),  # Kafka's
        (12, "not a kinesis-efo offset: .* got '12'"),  # of the source `rate`
        ({"metadata": {"streamName": "s", "batchId": "1"}}, "not a kinesis-efo offset"),  # awslabs'
        ({"version": 2, "streams": {}}, "version 2.* written by a newer kinesis-efo, which can continue from it"),
        ({"version": 1, "streams": {"orders": {FIRST: "SOON"}}}, "'SOON' is not a position"),
    ],
)
def test_checkpoint_of_another_source_names_the_remedy(data: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        reading(ORDERS).read(data)
    assert "give this query a separate checkpointLocation" in str(caught.value)
    assert "if it unites several sources, give them in the order that they had" in str(caught.value)
    told = cause(RuntimeError(f"Traceback ...\nkinesis_efo.errors.ConfigurationError: {caught.value}"))
    assert type(told) is ConfigurationError


def test_removal_of_one_stream_is_no_replacement() -> None:
    with pytest.raises(ConfigurationError) as partly:
        reading(ORDERS).read(reading(ORDERS, CLICKS).to_dict(offset(orders=AT, clicks=AT)))
    assert "several sources" not in str(partly.value)
    assert "once with" not in str(partly.value)
