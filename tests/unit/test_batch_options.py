"""The options of batch reads: where they begin and end, and which of a streaming query's they refuse."""

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.options import SOURCE_OPTIONS, BatchOptions, Bounds, SourceOptions, are_for_batch
from kinesis_efo.options.source import STREAMING
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
NEW_YEAR = Position.at_timestamp(1704067200000)


def parse(**options: str) -> BatchOptions:
    return BatchOptions.parse({"manifest": "m.json", **options})


def faults(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        parse(**options)
    return caught.value.faults


def test_neither_a_consumer_nor_a_lease_table_is_needed() -> None:
    assert BatchOptions.parse({"streamArn": STREAM}).source.stream_arns == (STREAM,)
    with pytest.raises(OptionsError, match="'consumerArn' besides"):
        SourceOptions.parse({"streamArn": STREAM})


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("trim_horizon", Bounds(TRIM_HORIZON)),
        ("earliest", Bounds(TRIM_HORIZON)),
        ("2024-01-01T00:00:00Z", Bounds(NEW_YEAR)),
        ("AT_TIMESTAMP:2024-01-01T00:00:00Z", Bounds(NEW_YEAR)),
        ('{"orders": "AT_TIMESTAMP:1704067200000"}', Bounds(TRIM_HORIZON, {"orders": NEW_YEAR})),
        ('{"*": "AT_TIMESTAMP:1704067200000", "orders": "TRIM_HORIZON"}', Bounds(NEW_YEAR, {"orders": TRIM_HORIZON})),
        (
            ' {"orders": {"s1": "AFTER:7", "s2": "INSIDE:7:1", "s3": "TRIM_HORIZON", "*": "AT_TIMESTAMP:1704067200000"}}',
            Bounds(
                TRIM_HORIZON,
                {"orders": NEW_YEAR},
                {
                    ShardKey("orders", "s1"): Position.after(7),
                    ShardKey("orders", "s2"): Position.inside(7, 1),
                    ShardKey("orders", "s3"): TRIM_HORIZON,
                },
            ),
        ),
    ],
)
def test_starts(text: str, bounds: Bounds) -> None:
    assert parse(STARTINGPOSITION=text).starts == bounds


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("latest", Bounds()),
        ("AT_TIMESTAMP:1704067200000", Bounds(NEW_YEAR)),
        (
            '{"*": "AT_TIMESTAMP:1704067200000", "orders": {"s1": "AFTER:7", "s2": "SHARD_END", "s3": "LATEST"}, "clicks": "LATEST"}',
            Bounds(
                NEW_YEAR,
                {"clicks": None},
                {
                    ShardKey("orders", "s1"): Position.after(7),
                    ShardKey("orders", "s2"): SHARD_END,
                    ShardKey("orders", "s3"): None,
                },
            ),
        ),
    ],
)
def test_ends(text: str, bounds: Bounds) -> None:
    assert parse(endingPosition=text).source.ends == bounds


RULE = "kinesis-efo option 'startingPosition' must be EARLIEST (TRIM_HORIZON), a time in ISO 8601 or epoch ms, or JSON"
BOTH = ("startingPosition", "endingPosition")
TIP = "there are no records after the tip yet; spark.readStream reads new records"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        *(("startingPosition", text, RULE) for text in ("", "NOW", "AFTER:7", "{", '{"orders": 7}', '{"orders": "AFTER:7"}', '{"orders": {"s": "NOW"}}')),
        *(("startingPosition", text, f"; got {text!r}") for text in ("", "NOW", "{")),
        *((option, text, "must include its time zone, as 2026-11-20T00:00:00Z does for UTC") for option in BOTH for text in (" 2026-11-20 ", '{"orders": "2026-11-20"}')),
        *((option, text, "; did you mean 1795699946480, which is 2026-11-26T13:32:26Z?") for option in BOTH for text in (
            "AT_TIMESTAMP:1795699946.480", "1795699946.480", '{"orders": {"*": "AT_TIMESTAMP:1795699946.480"}}',
        )),
        *(("startingPosition", text, TIP) for text in ("LATEST", '{"orders": "latest"}', '{"orders": {"shardId-000000000000": "LATEST"}}')),
        ("startingPosition", "LEASES", "a batch read does not use leases"),
    ],
)  # fmt: skip
def test_wrong_bounds_are_refused_with_a_remedy(option: str, text: str, said: str) -> None:
    (fault,) = faults(**{option: text})
    assert said in fault


@pytest.mark.parametrize("name", sorted(STREAMING))
def test_options_of_streaming_queries_are_refused(name: str) -> None:
    option = next(each for each in SOURCE_OPTIONS if each.name == name)
    text = option.default.strip("`") if option.default.startswith("`") else "1"
    assert f"kinesis-efo option '{name}' is for a streaming query; a batch read ignores it: leave it out" in faults(
        **{name: text}
    )


def test_all_faults_are_reported_together() -> None:
    found = faults(
        startingPosition="LATEST", maxShardRate="some", endingPosition="TRIM_HORIZON", bufferBytes="lots", bogus="1"
    )
    assert [fault.split("'")[1] for fault in found] == [
        "bogus",
        "bufferBytes",
        "endingPosition",
        "maxShardRate",
        "startingPosition",
        "bufferBytes",
    ]


def test_batch_options_reveal_a_batch_read() -> None:
    assert are_for_batch(["manifest", "BATCH.maxrate"])
    assert are_for_batch(["session.batch"])
    assert not are_for_batch(["manifest", "startingPosition", "endingPosition"])
