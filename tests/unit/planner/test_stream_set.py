"""Streams that come, go, are renamed or replaced between two runs of a query."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kinesis_efo.driver.reason import cause
from kinesis_efo.errors import ConfigurationError, StreamReplacedError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.planner.stream_set import StreamSet
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey

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


def test_what_was_written_is_read_again() -> None:
    both = reading(ORDERS, CLICKS)
    data = both.to_dict(offset(orders=AT, clicks=TRIM_HORIZON))
    assert data["sources"] == {"orders": ORDERS.consumer_arn, "clicks": CLICKS.consumer_arn}
    assert both.read(data) == offset(orders=AT, clicks=TRIM_HORIZON)


def test_an_offset_of_version_0_1_names_no_sources() -> None:
    assert reading(ORDERS).read(offset(orders=AT).to_dict()) == offset(orders=AT)


@pytest.mark.parametrize("sources", [True, False])
def test_a_stream_that_is_gone_is_an_error_that_names_the_option(sources: bool) -> None:
    before = offset(orders=AT, clicks=AT)
    data: dict[str, Any] = reading(ORDERS, CLICKS).to_dict(before) if sources else before.to_dict()
    with pytest.raises(
        ConfigurationError, match=r"names stream 'clicks', but the query reads 'orders' \(from m.json\)"
    ) as caught:
        reading(ORDERS).read(data)
    assert "'removedStreams' to drop" in str(caught.value)


def test_or_is_left_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    data = reading(ORDERS, CLICKS).to_dict(offset(orders=AT, clicks=AT))
    dropping = reading(ORDERS, drop=True)
    assert dropping.read(data) == dropping.read(data) == offset(orders=AT)
    (said,) = caplog.messages
    assert said.startswith("stream clicks is not read any more")
    assert f"left at {FIRST} AFTER:7, {SECOND} AFTER:7" in said
    assert "clicks" not in dropping.to_dict(dropping.read(data))["sources"]


@pytest.mark.parametrize("drop", [True, False])
def test_stream_of_unfinished_micro_batch_is_not_dropped(drop: bool, caplog: pytest.LogCaptureFixture) -> None:
    data = reading(ORDERS, CLICKS).to_dict(offset(orders=AT, clicks=AT))
    with pytest.raises(ConfigurationError, match=r"finish its last micro-batch first.* once with the former streams"):
        reading(ORDERS, drop=drop).read(data, finished=False)
    assert caplog.messages == [], "nothing was left anywhere yet"


def test_a_thousand_shards_make_a_short_line(caplog: pytest.LogCaptureFixture) -> None:
    left = Offset(
        {ShardKey("clicks", f"shardId-{number:012d}"): AT for number in range(1000)} | dict(offset(orders=AT))
    )
    reading(ORDERS, drop=True).read(left.to_dict())
    (said,) = caplog.messages
    assert said.endswith("shardId-000000000009 AFTER:7 and 990 more")


@pytest.mark.parametrize("drop", [True, False])
def test_a_stream_under_a_new_name_is_never_read_twice(drop: bool) -> None:
    data = reading(ORDERS, CLICKS).to_dict(offset(orders=AT, clicks=AT))
    with pytest.raises(
        ConfigurationError, match=r"is called .visits. in m\.json, but .clicks. in the query.s checkpoint"
    ):
        reading(ORDERS, ref("visits", "clicks"), drop=drop).read(data)


def test_a_name_that_stands_for_another_stream_is_refused() -> None:
    data = reading(ORDERS).to_dict(offset(orders=AT))
    moved = ref("orders", account=ACCOUNT.replace("1" * 12, "2" * 12))
    with pytest.raises(
        StreamReplacedError, match=r"stream 'orders' is arn:.*:222222222222:stream/orders in m.json"
    ) as caught:
        reading(moved, drop=True).read(data)
    assert f"checkpoint is of {ACCOUNT}/orders" in str(caught.value)


@pytest.mark.parametrize(
    ("now", "how"),
    [
        (ref("orders", consumer="lake:2"), f"{ACCOUNT}/orders/consumer/lake:2"),
        (ref("orders", consumer=None), f"{ACCOUNT}/orders"),
    ],
)
def test_another_way_to_read_the_same_stream_is_said_once(
    now: StreamRef, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = reading(ORDERS).to_dict(offset(orders=AT))
    streams = reading(now)
    assert streams.read(data) == streams.read(data) == offset(orders=AT)
    assert caplog.messages == [f"stream orders is read as {how} now; the runs before read it as {ORDERS.consumer_arn}"]


def test_a_new_stream_begins_where_the_next_offset_says_and_nothing_is_read_of_it_before() -> None:
    before = offset(orders=AT)
    begun = Offset({**before, **offset(clicks=Position.at_timestamp(1_700_000_000_000))})
    assert before.ranges_to(begun) == []
    later = offset(orders=AT, clicks=Position.after(9))
    assert [(wanted.key.stream, wanted.after.kind.name) for wanted in begun.ranges_to(later)] == [
        ("clicks", "AT_TIMESTAMP"),
        ("clicks", "AT_TIMESTAMP"),
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"orders": {"0": 12}}, "not a kinesis-efo offset: .* got \"{'orders': {'0': 12}}\""),  # Kafka's
        (12, "not a kinesis-efo offset: .* got '12'"),  # of the source `rate`
        ({"metadata": {"streamName": "s", "batchId": "1"}}, "not a kinesis-efo offset"),  # awslabs'
        ({"version": 2, "streams": {}}, "version 2.* written by a newer kinesis-efo, which can go on with it"),
        ({"version": 1, "streams": {"orders": {FIRST: "SOON"}}}, "'SOON' is not a position"),
    ],
)
def test_a_checkpoint_of_something_else_is_an_error_of_this_library_with_a_remedy(data: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        reading(ORDERS).read(data)
    assert "give this query a checkpointLocation of its own" in str(caught.value)
    assert "if it unites several sources, give them in the order that they had" in str(caught.value)
    told = cause(RuntimeError(f"Traceback ...\nkinesis_efo.errors.ConfigurationError: {caught.value}"))
    assert type(told) is ConfigurationError


@pytest.mark.parametrize("drop", [True, False])
def test_sources_of_a_union_that_changed_places_are_refused(drop: bool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"reads only 'clicks' .*several sources, give them in the order that they had\. To go on",
    ) as wholly:
        reading(CLICKS, drop=drop).read(reading(ORDERS).to_dict(offset(orders=AT)))
    assert "new checkpointLocation, or run it once with the former streams as well, then set" in str(wholly.value)
    assert caplog.messages == []


def test_one_stream_of_several_that_is_gone_is_no_swap() -> None:
    with pytest.raises(ConfigurationError) as partly:
        reading(ORDERS).read(reading(ORDERS, CLICKS).to_dict(offset(orders=AT, clicks=AT)))
    assert "several sources" not in str(partly.value)
    assert "once with" not in str(partly.value)


def test_all_streams_are_replaced_in_two_steps() -> None:
    data = reading(ORDERS).to_dict(offset(orders=AT))
    both = reading(ORDERS, CLICKS, drop=True)
    assert both.read(data) == offset(orders=AT)
    assert reading(CLICKS, drop=True).read(both.to_dict(offset(orders=AT, clicks=AT))) == offset(clicks=AT)


def test_the_begin_of_a_first_micro_batch_is_read_as_it_was_written() -> None:
    both = reading(ORDERS, CLICKS)
    end, begin = offset(orders=AT, clicks=AT), offset(orders=TRIM_HORIZON, clicks=AT)
    assert both.read_begin(both.to_dict(end, begin)) == begin
    assert both.read_begin(both.to_dict(end, end)) == end, "of an empty micro-batch, only the end is written"
    assert both.read_begin(both.to_dict(end)) is None


def test_a_stream_under_a_new_name_is_told_once() -> None:
    data = reading(ORDERS, CLICKS).to_dict(before := offset(orders=AT, clicks=AT))
    (fault,) = reading(ORDERS, ref("visits", "clicks")).faults(before, data["sources"], finished=True)
    assert "is called 'visits'" in str(fault)


def test_stream_that_was_dropped_and_added_again_has_its_new_creation_time() -> None:
    before = Offset({ShardKey("orders", FIRST): AT, ShardKey("clicks", FIRST): AT}, created={"orders": 1, "clicks": 2})
    left = reading(ORDERS, drop=True).read(reading(ORDERS, CLICKS).to_dict(before))
    assert left.created == {"orders": 1}
    for created in ({"clicks": 3}, {}):  # the time may be unknown
        added = Offset({ShardKey("clicks", FIRST): TRIM_HORIZON}, created=created)
        assert left.moved_to({**left, **added}, {}, added=added).created == {"orders": 1, **created}
