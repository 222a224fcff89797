"""The source's options: each one right, each one wrong, and what users read then."""

from __future__ import annotations

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import SOURCE_OPTIONS, AwsSettings, RetrySettings, SourceOptions, Start, option_table
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.spark.sink_options import SinkOptions

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER = STREAM + "/consumer/lake:1700000000"
DIRECT = {"streamArn": STREAM, "consumerArn": CONSUMER, "leaseTable": "leases"}
ROLE = "arn:aws:iam::123456789012:role/reader"

WRONG = {
    "manifest": ["", "  "],
    "streamArn": ["orders", "arn:aws:sqs:eu-west-1:123456789012:stream/x", STREAM + "/x", STREAM.replace("123456789012", "1")],
    "consumerArn": [STREAM, CONSUMER.removesuffix(":1700000000"), "lake"],
    "leaseTable": [""],
    "streams": ["", "orders,", "orders,,clicks", "orders,orders", ","],
    "readMode": ["poll", "push", ""],
    "polling.interval": ["199ms", "11s", "often"],
    "startingPosition": ["", "NOW", "LATEST:", "TRIM_HORIZON:1", "AT_TIMESTAMP", "AT_TIMESTAMP:soon", "AFTER:1", "EARLIEST"],
    "registration": ["lazy", "EAGER", "always", ""],
    "maxBytesPerTrigger": ["0", "-1", "many", "1.5m"],
    "maxRecordsPerTrigger": ["0", "-1", "1k", "1.0", "٣"],
    "bufferBytes": ["lots", "1023k", "0", "1mib/s"],
    "failOnDataLoss": ["yes", "1", "", "nein"],
    "deaggregate": ["on", "TRUE!"],
    "fetchers": ["4", "executors", "0"],
    "fetcherHost": [" "],
    "catchUp": ["maybe"],
    "latencyHooks": ["off"],
    "leaseTimeout": ["999ms", "2h", "10 seconds", "-1s"],
    "pollTimeout": ["0", "61s", "fast"],
    "idleCheckpointInterval": ["500", "hourly"],
    "region": [""],
    "endpointUrl": ["localhost:4566", "ftp://x", "http://", "http:// x"],
    "roleArn": ["reader", "arn:aws:iam::1:role/x", "arn:aws:iam::123456789012:user/x"],
    "externalId": [""],
    "roleSessionName": [" "],
    "subscribe.maxRetries": ["-1", "1001", "ten"],
    "subscribe.backoff.baseMs": ["0", "600001", "1s"],
    "subscribe.backoff.maxMs": ["0", "600001", "1s"],
    "subscribe.backoff.factor": ["0.9", "11", "much", "nan"],
    "metrics.export": ["prometheus", "yes", ""],
    "metrics.emf.to": [" "],
    "metrics.emf.interval": ["999ms", "2h", "often"],
    "metrics.shards": ["-1", "10001", "all"],
}  # fmt: skip


def faults(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        SourceOptions.parse(options)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return caught.value.faults


def test_no_option_is_left_out_here() -> None:
    assert WRONG.keys() == {option.name for option in SOURCE_OPTIONS}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named_with_its_option_and_what_it_must_be(name: str, value: str) -> None:
    rest = {**DIRECT, "roleArn": ROLE, "metrics.export": "emf"} if name != "manifest" else {}
    (fault, *_) = faults(**{**rest, name: value})
    rule = next(option.rule for option in SOURCE_OPTIONS if option.name == name)
    assert fault.startswith(f"kinesis-efo option '{name}' must be ")
    assert fault.endswith(f"; got {value!r}")
    assert rule.split(",")[0] in fault


def test_the_defaults() -> None:
    assert SourceOptions.parse({"manifest": "m.json"}) == SourceOptions(manifest="m.json")


def test_everything_at_once() -> None:
    options = SourceOptions.parse(
        {
            "MANIFEST": "ssm:///kinesis-efo/dev/lake", "streams": " orders , clicks", "readmode": "EFO",
            "startingPosition": "trim_horizon", "registration": "None", "maxBytesPerTrigger": "64m",
            "maxRecordsPerTrigger": "5", "bufferBytes": "1g", "failOnDataLoss": "FALSE", "deaggregate": "false",
            "fetchers": "driver", "fetcherHost": "10.0.0.1", "catchUp": "true", "latencyHooks": "false",
            "leaseTimeout": "20s", "pollTimeout": "1s", "polling.interval": "500ms", "idleCheckpointInterval": "5m", "region": "eu-west-1",
            "endpointUrl": "http://127.0.0.1:4566", "roleArn": ROLE, "externalId": "x", "roleSessionName": "n",
            "subscribe.maxRetries": "3", "subscribe.backoff.baseMs": "10", "subscribe.backoff.maxMs": "20",
            "subscribe.backoff.factor": "2",
        }
    )  # fmt: skip
    assert options == SourceOptions(
        manifest="ssm:///kinesis-efo/dev/lake", streams=("orders", "clicks"), start=Start(TRIM_HORIZON),
        max_bytes_per_trigger=64 << 20, max_records_per_trigger=5, buffer_bytes=1 << 30, fail_on_data_loss=False,
        deaggregate=False, fetcher_host="10.0.0.1", catch_up=True, latency_hooks=False, lease_timeout=20.0,
        poll_timeout=1.0, polling_interval=0.5, idle_checkpoint_interval=300.0, retry=RetrySettings(3, 10, 20, 2.0),
        aws=AwsSettings("eu-west-1", "http://127.0.0.1:4566", ROLE, "x", "n"),
    )  # fmt: skip
    assert "externalId" not in repr(options) and "external_id" not in repr(options)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("LATEST", Start()),
        ("leases", Start(from_leases=True)),
        ("AT_TIMESTAMP:2024-01-01T00:00:00Z", Start(Position.at_timestamp(1704067200000))),
        ("at_timestamp:1704067200000", Start(Position.at_timestamp(1704067200000))),
    ],
)
def test_starting_positions(text: str, start: Start) -> None:
    options = SourceOptions.parse({"manifest": "m", "startingPosition": text})
    assert options.start == start
    assert options.start.latest == (text == "LATEST")


def test_all_faults_are_reported_together() -> None:
    found = faults(manifest="m", bufferBytes="lots", bufferByte="1m", readMode="push", externalId="x")
    assert found == (
        "kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'",
        "kinesis-efo has no option 'bufferByte'; did you mean 'bufferBytes'?",
        "kinesis-efo option 'readMode' must be efo or polling; got 'push'",
        "kinesis-efo option 'externalId' needs option 'roleArn'",
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [("streamarns", "streamArn"), ("startingPositon", "startingPosition"), ("max.retries", "subscribe.maxRetries")],
)
def test_an_unknown_option_is_answered_with_a_near_one(name: str, near: str) -> None:
    assert faults(manifest="m", **{name: "1"}) == (f"kinesis-efo has no option {name!r}; did you mean '{near}'?",)


def test_an_unknown_option_that_is_like_none() -> None:
    assert faults(manifest="m", kafka="1") == ("kinesis-efo has no option 'kafka'",)


def test_registration_at_run_time_is_refused_with_the_way_to_do_it() -> None:
    assert faults(manifest="m", registration="lazy") == (
        (
            "kinesis-efo option 'registration' must be none: this library never registers consumers at run time. "
            "Declare the consumer in infra/environments/<environment>.yaml and run `cdktf deploy`; got 'lazy'"
        ),
    )


def test_nothing_to_read_from() -> None:
    assert faults() == (
        (
            "kinesis-efo needs option 'manifest' (a path, ssm:///name or s3://bucket/key), or 'streamArn', 'consumerArn' and "
            "'leaseTable'"
        ),
    )
    assert faults(streamArn=STREAM) == (
        "kinesis-efo needs option 'manifest', or 'consumerArn' and 'leaseTable' besides 'streamArn'",
    )


def test_two_things_to_read_from() -> None:
    assert faults(manifest="m", leaseTable="t") == (
        "kinesis-efo option 'manifest' already says what 'leaseTable' would say; give one or the other",
    )


def test_a_consumer_of_another_stream() -> None:
    other = CONSUMER.replace("dev-orders", "clicks")
    (fault,) = faults(**{**DIRECT, "consumerArn": other})
    assert fault == (
        f"kinesis-efo option 'consumerArn' must be a consumer of 'streamArn' {STREAM!r}; "
        f"got a consumer of {other.split('/consumer')[0]!r}"
    )


def test_streams_without_a_manifest() -> None:
    assert faults(**DIRECT, streams="orders") == (
        "kinesis-efo option 'streams' selects streams of a manifest; it means nothing with 'streamArn'",
    )


def test_emf_lines_that_are_not_written() -> None:
    assert faults(**DIRECT, **{"metrics.emf.to": "stderr", "metrics.emf.interval": "10s"}) == (
        "kinesis-efo option 'metrics.emf.to' needs option 'metrics.export' to be emf",
        "kinesis-efo option 'metrics.emf.interval' needs option 'metrics.export' to be emf",
    )
    emf = SourceOptions.parse(
        {**DIRECT, "metrics.export": "EMF", "metrics.emf.to": "/var/log/e.log", "metrics.shards": "0"}
    )
    assert emf.metrics == MetricsSettings("emf", "/var/log/e.log", 60.0, 0)


def test_the_sink_takes_the_options_of_metrics_too() -> None:
    sink = SinkOptions.parse({"stream": "orders", "metrics.export": "emf", "metrics.emf.interval": "10s"})
    assert sink.metrics == MetricsSettings("emf", "stdout", 10.0)


def test_a_backoff_that_begins_above_its_end() -> None:
    assert faults(manifest="m", **{"subscribe.backoff.baseMs": "20000"}) == (
        "kinesis-efo option 'subscribe.backoff.baseMs' must not exceed 'subscribe.backoff.maxMs'",
    )


def test_the_table_shows_every_option() -> None:
    table = option_table()
    assert all(f"| `{option.name}` |" in table for option in SOURCE_OPTIONS)
    assert len(table.splitlines()) == len(SOURCE_OPTIONS) + 2


def test_polling_needs_no_consumer_but_the_rest() -> None:
    polling = {"streamArn": STREAM, "leaseTable": "leases", "readMode": "polling"}
    assert SourceOptions.parse(polling).consumer_arn is None
    assert SourceOptions.parse({**polling, "consumerArn": CONSUMER}).consumer_arn == CONSUMER
    assert faults(streamArn=STREAM, readMode="polling") == (
        "kinesis-efo needs option 'manifest', or 'leaseTable' besides 'streamArn'",
    )
    assert faults(streamArn=STREAM, leaseTable="leases") == (
        "kinesis-efo needs option 'manifest', or 'consumerArn' besides 'streamArn' and 'leaseTable'",
    )
