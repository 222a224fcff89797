"""The options of source and sink: each one right, each one wrong, and what users read then."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import SOURCE_OPTIONS, AwsSettings, Deaggregation, RetrySettings, SourceOptions, Start
from kinesis_efo.options.table import Option
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.spark.sink import SINK_OPTIONS, SinkOptions

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER = STREAM + "/consumer/lake:1700000000"
DIRECT = {"streamArn": STREAM, "consumerArn": CONSUMER, "leaseTable": "leases"}
ROLE = "arn:aws:iam::123456789012:role/reader"

WRONG = {
    "manifest": ["", "  "],
    "streamArn": ["orders", "arn:aws:sqs:eu-west-1:123456789012:stream/x", STREAM + "/x", STREAM.replace("123456789012", "1")],
    "consumerArn": [STREAM, CONSUMER.removesuffix(":1700000000"), "lake", CONSUMER.replace("lake", "l" * 129)],
    "leaseTable": [""],
    "streams": ["", "orders,", "orders,,clicks", "orders,orders", ","],
    "readMode": ["poll", "push", ""],
    "polling.interval": ["199ms", "11s", "often"],
    "startingPosition": ["", "NOW", "LATEST:", "TRIM_HORIZON:1", "AT_TIMESTAMP", "AT_TIMESTAMP:soon", "AFTER:1", "EARLIEST",
                         '{"orders": 1}', '{"orders": "AFTER:1"}', '{"*": {"s": "LATEST"}}', "{}x"],
    "endingPosition": ["", "NOW", "TRIM_HORIZON", "AT_TIMESTAMP", "AT_TIMESTAMP:soon", "AFTER:1", "SHARD_END", "{}x", '{"*": {"s": "LATEST"}}',
                       '{"a": {"s": "INSIDE:1:2"}}', '{"a": 1}', '{"a": "AFTER:1"}', '["LATEST"]'],
    "batch.shardsPerTask": ["0", "101", "all"],
    "batch.maxRate": ["63k", "0", "1m/s", "-1"],
    "registration": ["lazy", "EAGER", "always", ""],
    "maxBytesPerTrigger": ["0", "-1", "many", "1.5m"],
    "maxRecordsPerTrigger": ["0", "-1", "1k", "1.0", "٣"],
    "minBytesPerTrigger": ["0", "-1", "some", "1.5m"],
    "maxTriggerDelay": ["61s", "-1s", "1", "never"],
    "maxShardSkew": ["0", "9s", "25h", "30", "off", "-30s"],
    "bufferBytes": ["lots", "1023k", "0", "1mib/s"],
    "slowQueries": ["wait", "Apart!", ""],
    "apartRate": ["63k", "3m", "1m/s", "0"],
    "failOnDataLoss": ["yes", "1", "", "nein"],
    "acceptDataLoss": ["", "true", '{"orders": "AFTER:1"}', '{"orders": {"shardId-000000000000": "LATEST"}}'],
    "deaggregate": ["on", "TRUE!", "every"],
    "fetchers": ["1001", "executors", "0", "-1", "2.5"],
    "fetcherHost": [" ", "0.0.0.0", "::", "10.0.0.7:40000", "grpc://driver", "10.0.0.256", "10.0.0", "fe80::1%eth0", "a b", "x" * 64],
    "fetcherBindHost": ["", "*", "0.0.0.0:40000", "[::", "driver/"],
    "fetcherPort": ["0", "65536", "-1", "any", "40001-40000", "40000-", "-40000", "1-2-3", "40000,40001", "+1", "0-5"],
    "fetcherTls": ["no", "1", ""],
    "newStreamPosition": ["EARLIEST", "AT_TIMESTAMP", "LATEST:1"],
    "removedStreams": ["ignore", ""],
    "transport": ["h2", "HTTP/2", ""],
    "catchUp": ["maybe"],
    "latencyHooks": ["off"],
    "leaseTimeout": ["999ms", "2h", "10 seconds", "-1s"],
    "checkpointRate": ["0", "2000", "fast", "nan"],
    "pollTimeout": ["0", "61s", "fast"],
    "idleCheckpointInterval": ["500", "hourly"],
    "region": [""],
    "endpointUrl": ["localhost:4566", "ftp://x", "http://", "http:// x"],
    "roleArn": ["reader", "arn:aws:iam::1:role/x", "arn:aws:iam::123456789012:user/x"],
    "externalId": [""],
    "roleSessionName": [" "],
    "subscribe.retryTimeout": ["999ms", "8d", "0", "10 minutes", "soon"],
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


@pytest.mark.parametrize("name", ["startingPosition", "newStreamPosition", "endingPosition"])
def test_a_time_alone_is_answered_with_the_position_that_it_means(name: str) -> None:
    (fault,) = faults(manifest="m.json", **{name: "2026-11-20T08:00:00Z"})
    assert fault.endswith("; got '2026-11-20T08:00:00Z'; did you mean AT_TIMESTAMP:2026-11-20T08:00:00Z?")
    (fault,) = faults(manifest="m.json", **{name: "1795699946"})
    assert fault.endswith("; got '1795699946'; did you mean AT_TIMESTAMP:1795699946000?")
    (fault,) = faults(manifest="m.json", **{name: "42"})
    assert fault.endswith("; got '42'")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("newStreamPosition", "AT_TIMESTAMP:1795699946"),
        *(
            (name, text)
            for name in ("startingPosition", "endingPosition")
            for text in (
                "at_timestamp: 1795699946",
                '{"orders": "AT_TIMESTAMP:1795699946"}',
                '{"*": "AT_TIMESTAMP:1795699946"}',
                '{"orders": {"shardId-000000000000": "AT_TIMESTAMP:1795699946"}}',
            )
        ),
    ],
)
def test_epoch_seconds_are_answered_with_the_milliseconds_that_they_mean(name: str, text: str) -> None:
    number = "1795699946"
    (fault,) = faults(manifest="m.json", **{name: text})
    assert fault.endswith(
        f"; got {text!r}: {number} is no time of this century in milliseconds; did you mean 1795699946000, which is 2026-11-26T13:32:26Z?"
    )


@pytest.mark.parametrize("name", ["pollTimeout", "leaseTimeout", "subscribe.retryTimeout", "idleCheckpointInterval"])
def test_a_small_number_without_a_unit_is_refused_since_seconds_were_probably_meant(name: str) -> None:
    (fault,) = faults(manifest="m.json", **{name: "2"})
    assert fault.endswith(", and say its unit; got '2'")
    assert SourceOptions.parse({"manifest": "m.json", "pollTimeout": "200"}).poll_timeout == 0.2


def test_the_defaults() -> None:
    assert SourceOptions.parse({"manifest": "m.json"}) == SourceOptions(manifest="m.json")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("false", Deaggregation.OFF),
        ("True", Deaggregation.ALL),
        ("ALL", Deaggregation.ALL),
        ("Strict", Deaggregation.STRICT),
    ],
)
def test_what_becomes_of_aggregates(text: str, meaning: Deaggregation) -> None:
    assert SourceOptions.parse({"manifest": "m.json", "deaggregate": text}).deaggregate is meaning


def test_everything_at_once() -> None:
    options = SourceOptions.parse(
        {
            "MANIFEST": "ssm:///kinesis-efo/dev/lake", "streams": " orders , clicks", "readmode": "EFO",
            "startingPosition": "trim_horizon", "registration": "None", "maxBytesPerTrigger": "64m",
            "maxRecordsPerTrigger": "5", "minBytesPerTrigger": "8m", "maxTriggerDelay": "0s", "bufferBytes": "1g", "failOnDataLoss": "FALSE", "deaggregate": "false",
            "fetchers": "driver", "fetcherHost": "10.0.0.1", "fetcherBindHost": "[::]", "fetcherPort": "40000 - 40100",
            "fetcherTls": "False", "catchUp": "true", "latencyHooks": "false", "slowQueries": "Hold", "apartRate": "512k",
            "leaseTimeout": "20s", "pollTimeout": "1s", "polling.interval": "500ms", "idleCheckpointInterval": "5m", "region": "eu-west-1",
            "endpointUrl": "http://127.0.0.1:4566", "roleArn": ROLE, "externalId": "x", "roleSessionName": "n",
            "subscribe.retryTimeout": "2m", "subscribe.maxRetries": "3", "subscribe.backoff.baseMs": "10", "subscribe.backoff.maxMs": "20",
            "subscribe.backoff.factor": "2",
        }
    )  # fmt: skip
    assert options == SourceOptions(
        manifest="ssm:///kinesis-efo/dev/lake", streams=("orders", "clicks"), start=Start(TRIM_HORIZON),
        max_bytes_per_trigger=64 << 20, max_records_per_trigger=5, min_bytes_per_trigger=8 << 20, max_trigger_delay=0.0, buffer_bytes=1 << 30, fail_on_data_loss=False,
        deaggregate=Deaggregation.OFF, fetcher_host="10.0.0.1", fetcher_bind_host="::", fetcher_ports=range(40_000, 40_101),
        fetcher_tls=False, catch_up=True, latency_hooks=False, lease_timeout=20.0, slow_queries="hold", apart_rate=512 << 10,
        poll_timeout=1.0, polling_interval=0.5, idle_checkpoint_interval=300.0, retry=RetrySettings(3, 10, 20, 2.0, 120.0),
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
    assert SourceOptions.parse({"manifest": "m", "startingPosition": text}).start == start


def test_queries_that_share_a_buffer_are_kept_together_if_asked() -> None:
    assert not SourceOptions.parse({"manifest": "m"}).hold_together
    assert SourceOptions.parse({"manifest": "m", "slowQueries": "hold"}).hold_together
    assert not SourceOptions.parse({"manifest": "m", "slowQueries": "APART"}).hold_together


def test_fetchers_on_executors_need_read_stream() -> None:
    (message,) = faults(manifest="m", fetchers="4")
    assert message.startswith(
        "kinesis-efo option 'fetchers' is 4, but `spark.readStream.format(...)` cannot start Spark tasks"
    )
    assert "kinesis_efo.read_stream(spark, ..., fetchers=4)" in message
    options = SourceOptions.parse({"manifest": "m", "fetchers": " 4 ", "session.supervisor": "/tmp/x"})
    assert (options.fetchers, options.supervisor) == (4, "/tmp/x")
    assert SourceOptions.parse({"manifest": "m", "fetchers": "Driver"}).fetchers is None


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
        "kinesis-efo option 'manifest' takes the place of 'leaseTable'; give one or the other",
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
        "kinesis-efo option 'streams' selects streams of a manifest; remove it, or give 'manifest'",
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


def test_a_backoff_that_begins_above_its_end() -> None:
    assert faults(manifest="m", **{"subscribe.backoff.baseMs": "20000"}) == (
        "kinesis-efo option 'subscribe.backoff.baseMs' must not exceed 'subscribe.backoff.maxMs'",
    )


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


def test_a_port_or_a_range_of_ports() -> None:
    assert SourceOptions.parse({"manifest": "m", "fetcherPort": "40000"}).fetcher_ports == range(40_000, 40_001)
    assert SourceOptions.parse({"manifest": "m", "fetcherPort": "1-65535"}).fetcher_ports == range(1, 65_536)


def test_an_address_for_tasks_that_is_not_bound_to() -> None:
    assert faults(manifest="m", fetcherHost="localhost", fetcherBindHost="10.0.0.7") == (
        (
            "kinesis-efo option 'fetcherHost' is 'localhost', which 'fetcherBindHost' '10.0.0.7' does not serve; "
            "give an address by which tasks reach the one that is bound to"
        ),
    )
    for bind in ("0.0.0.0", "127.0.0.1"):
        SourceOptions.parse({"manifest": "m", "fetcherHost": "localhost", "fetcherBindHost": bind})
    SourceOptions.parse({"manifest": "m", "fetcherHost": "gateway", "fetcherBindHost": "10.0.0.7"})


WRITTEN_DEFAULTS = [
    (settings, option)
    for settings, options in ((SourceOptions(), SOURCE_OPTIONS), (SinkOptions(), SINK_OPTIONS))
    for option in options
    if re.fullmatch("`[^`]+`", option.default)
]


@pytest.mark.parametrize(("settings", "option"), WRITTEN_DEFAULTS, ids=lambda value: getattr(value, "name", ""))
def test_the_default_of_the_table_is_that_of_the_settings(settings: Any, option: Option) -> None:
    value = option.read(option.default.strip("`"))
    if option.field:
        for name in option.field.split("."):
            settings = getattr(settings, name)
        assert value == settings


SINK_WRONG = {
    "manifest": [" "],
    "stream": [""],
    "maxOutstandingRecords": ["0", "many", "1_000", "+5", "\u0663"],
    "maxOutstandingBytes": ["1023", "lots"],
    "linger": ["61s", "soon", "-1"],
    "maxInFlight": ["0", "257", "1.5"],
    "ordered": ["yes"],
    "aggregate": ["1"],
    "aggregateBytes": ["1", "2m"],
    "failOnError": ["no"],
    "retryTimeout": ["99ms", "2d"],
    "stallWarning": ["99ms", "2d"],
    "backoff.baseMs": ["0", "60001", "1s", "1_0"],
    "backoff.maxMs": ["0", "600001", "1s"],
    **{name: WRONG[name] for name in ("region", "endpointUrl", "roleArn", "externalId", "roleSessionName")},
    **{name: WRONG[name] for name in ("metrics.export", "metrics.emf.to", "metrics.emf.interval")},
}


def sink_faults(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        SinkOptions.parse(options)
    return caught.value.faults


def test_no_option_of_the_sink_is_left_out_here() -> None:
    assert SINK_WRONG.keys() == {option.name for option in SINK_OPTIONS}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SINK_WRONG.items() for value in values])
def test_a_wrong_value_for_the_sink_is_named_with_its_option_and_what_it_must_be(name: str, value: str) -> None:
    (fault, *_) = sink_faults(**{"roleArn": ROLE, "metrics.export": "emf", name: value})
    (rule,) = (option.rule for option in SINK_OPTIONS if option.name == name)
    assert fault == f"kinesis-efo sink option '{name}' must be {rule}; got {value!r}"


@pytest.mark.parametrize("name", ["retryTimeout", "stallWarning"])
def test_a_number_without_a_unit_is_refused_since_seconds_were_probably_meant_of_the_sink(name: str) -> None:
    (fault,) = sink_faults(**{name: "300"})
    assert fault.endswith(", and say its unit; got '300'")


def test_what_the_source_checks_of_shared_options_the_sink_does_too() -> None:
    wrong = {"externalId": "x", "roleSessionName": "n", "metrics.emf.to": "stderr", "metrics.emf.interval": "10s"}
    assert sink_faults(**wrong) == tuple(
        fault.replace("kinesis-efo option", "kinesis-efo sink option") for fault in faults(manifest="m", **wrong)
    )


def test_backoffs_of_the_sink_are_judged_together() -> None:
    assert sink_faults(**{"backoff.baseMs": "3000"}) == (
        "kinesis-efo sink option 'backoff.baseMs' must not exceed 'backoff.maxMs'",
    )
    assert sink_faults(**{"backoff.maxMs": "50"}) == (
        "kinesis-efo sink option 'backoff.baseMs' must not exceed 'backoff.maxMs'",
    )
    slow = SinkOptions.parse({"backoff.baseMs": "3000", "backoff.maxMs": "20000"})
    assert slow.producer == ProducerSettings(backoff_base=3.0, backoff_max=20.0)


def test_the_sink_names_all_faults_together_and_leaves_sparks_own_options_alone() -> None:
    assert sink_faults(linger="x", checkpointLocation="/c", queryName="q", bufferBytes="1m", maxInFligth="1") == (
        "kinesis-efo sink option 'linger' must be a duration such as 100ms, up to 60s; got 'x'",
        "kinesis-efo sink has no option 'bufferBytes'",
        "kinesis-efo sink has no option 'maxInFligth'; did you mean 'maxInFlight'?",
    )


def test_everything_at_once_for_the_sink() -> None:
    options = SinkOptions.parse(
        {
            "STREAM": "orders", "manifest": "m.json", "checkpointLocation": "/c", "maxoutstandingrecords": "10",
            "maxoutstandingbytes": "2m", "linger": "5ms", "maxInFlight": "2", "ordered": "TRUE", "aggregate": "true",
            "aggregateBytes": "20k", "failOnError": "false", "retryTimeout": "1m", "stallWarning": "10s",
            "backoff.baseMs": "10", "backoff.maxMs": "20", "region": "eu-west-1", "endpointUrl": "http://127.0.0.1:4566",
            "roleArn": ROLE, "externalId": "x", "roleSessionName": "n", "metrics.export": "emf",
            "metrics.emf.to": "stderr", "metrics.emf.interval": "10s",
        }
    )  # fmt: skip
    assert options == SinkOptions(
        "m.json",
        "orders",
        ProducerSettings(
            max_outstanding_records=10, max_outstanding_bytes=2 << 20, linger=0.005, max_in_flight=2, ordered=True,
            aggregate=True, aggregate_bytes=20 << 10, fail_on_error=False, retry_timeout=60.0, stall_warning=10.0,
            backoff_base=0.01, backoff_max=0.02,
        ),
        AwsSettings("eu-west-1", "http://127.0.0.1:4566", ROLE, "x", "n"),
        MetricsSettings("emf", "stderr", 10.0),
    )  # fmt: skip


def test_leases_are_for_all_streams_or_for_none() -> None:
    (fault,) = faults(manifest="m", startingPosition='{"orders": "LEASES"}')
    assert "'startingPosition' must be LEASES for all streams, or for none: write it without JSON" in fault
