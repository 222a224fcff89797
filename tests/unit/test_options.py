"""The options of source and sink: each one right, each one wrong, and what users read then."""

import re
from typing import Any

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import SOURCE_OPTIONS, AwsSettings, Bounds, Deaggregation, RetrySettings, SourceOptions, Start
from kinesis_efo.options.source import OBSOLETE, REMOVED, SUPERVISOR
from kinesis_efo.options.table import Option, OptionTable
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.spark.sink import SINK_OPTIONS, SinkOptions

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER = STREAM + "/consumer/lake:1700000000"
DIRECT = {"streamArn": STREAM, "consumerArn": CONSUMER, "leaseTable": "leases"}
ROLE = "arn:aws:iam::123456789012:role/reader"

WRONG = {
    "manifest": ["", "  "],
    "streamArn": ["orders", "arn:aws:sqs:eu-west-1:123456789012:stream/x", STREAM + "/x", STREAM.replace("123456789012", "1"),
                  f"{STREAM},{STREAM}", f"{STREAM},"],
    "consumerArn": [STREAM, CONSUMER.removesuffix(":1700000000"), "lake", CONSUMER.replace("lake", "l" * 129)],
    "leaseTable": [""],
    "streams": ["", "orders,", "orders,,clicks", "orders,orders", ","],
    "readMode": ["poll", "push", ""],
    "pollingInterval": ["199ms", "11s", "often"],
    "startingPosition": ["", "NOW", "LATEST:", "TRIM_HORIZON:1", "AT_TIMESTAMP", "AT_TIMESTAMP:soon", "AFTER:1", "EARLY",
                         '{"orders": 1}', '{"orders": "AFTER:1"}', '{"*": {"s": "LATEST"}}', "{}x"],
    "endingPosition": ["", "NOW", "TRIM_HORIZON", "AT_TIMESTAMP", "AT_TIMESTAMP:soon", "AFTER:1", "SHARD_END", "{}x", '{"*": {"s": "LATEST"}}',
                       '{"a": {"s": "INSIDE:1:2"}}', '{"a": 1}', '{"a": "AFTER:1"}', '["LATEST"]'],
    "maxShardRate": ["63k", "0", "1m/s", "-1"],
    "maxBytesPerTrigger": ["0", "-1", "many", "1.5m"],
    "maxRecordsPerTrigger": ["0", "-1", "1k", "1.0", "٣"],
    "minBytesPerTrigger": ["0", "-1", "some", "1.5m"],
    "maxTriggerDelay": ["61s", "-1s", "1", "never"],
    "maxShardSkew": ["0", "9s", "25h", "off", "-30s"],
    "bufferBytes": ["lots", "1023k", "0", "1mib/s"],
    "slowQueries": ["wait", "Apart!", ""],
    "failOnDataLoss": ["yes", "1", "", "nein"],
    "acceptDataLoss": ["", "true", '{"orders": "AFTER:1"}', '{"orders": {"shardId-000000000000": "LATEST"}}'],
    "deaggregate": ["on", "TRUE!", "every"],
    "fetchers": ["1001", "executors", "0", "-1", "2.5"],
    "fetcherHost": [" ", "0.0.0.0", "::", "10.0.0.7:40000", "grpc://driver", "10.0.0.256", "10.0.0", "fe80::1%eth0", "a b", "x" * 64],
    "fetcherPort": ["0", "65536", "-1", "any", "40001-40000", "40000-", "-40000", "1-2-3", "40000,40001", "+1", "0-5"],
    "newStreamPosition": ["EARLY", "AT_TIMESTAMP", "LATEST:1"],
    "removedStreams": ["ignore", ""],
    "transport": ["h2", "HTTP/2", ""],
    "catchUp": ["maybe"],
    "leaseTimeout": ["999ms", "2h", "10 fortnights", "-1s"],
    "checkpointWritesPerSecond": ["0", "2000", "fast", "nan"],
    "pollTimeout": ["0", "61s", "fast"],
    "idleCheckpointInterval": ["500", "hourly"],
    "region": [""],
    "endpointUrl": ["localhost:4566", "ftp://x", "http://", "http:// x"],
    "roleArn": ["reader", "arn:aws:iam::1:role/x", "arn:aws:iam::123456789012:user/x"],
    "externalId": [""],
    "awsProfile": [" "],
    "credentialProvider": ["", "keys()", "acme.aws:", ":keys", "acme/aws.py", "__main__:keys", str(print), "a:b:c"],
    "retryTimeout": ["999ms", "8d", "0", "10 fortnights", "soon"],
    "metricsExport": ["prometheus", "yes", "", "emf:", "otel:stderr", "emf:stderr:999ms", "emf:stderr:2h"],
    "metricsShards": ["-1", "10001", "all"],
}  # fmt: skip


def faults(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        SourceOptions.parse(options)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return caught.value.faults


# Shows 82.
def test_every_option_has_wrong_values_here() -> None:
    assert WRONG.keys() == {option.name for option in SOURCE_OPTIONS}


# Shows 82.
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named_with_its_rule(name: str, value: str) -> None:
    rest = {**DIRECT, "roleArn": ROLE} if name != "manifest" else {}
    (fault, *_) = faults(**{**rest, name: value})
    rule = next(option.rule for option in SOURCE_OPTIONS if option.name == name)
    assert fault.startswith(f"kinesis-efo option '{name}' must be ")
    assert fault.endswith(f"; got {value!r}")
    assert rule.split(",")[0] in fault


NUMBER = "1795699946"
MEANT = f"; did you mean {NUMBER}000, which is 2026-11-26T13:32:26Z?"
POSITIONS = ("startingPosition", "newStreamPosition", "endingPosition")
IN_JSON = ('{"orders": "AT_TIMESTAMP:N"}', '{"*": "AT_TIMESTAMP:N"}', '{"orders": {"shardId-0": "AT_TIMESTAMP:N"}}')


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        *((name, text.replace("N", NUMBER), MEANT) for name in POSITIONS for text in ("N", "AT_TIMESTAMP:N", "at_timestamp: N")),
        *((name, text.replace("N", NUMBER), MEANT) for name in ("startingPosition", "endingPosition") for text in IN_JSON),
        *((name, "2", ", and include its unit; got '2'") for name in ("pollTimeout", "maxTriggerDelay")),
    ],
)  # fmt: skip
def test_a_near_miss_is_answered_with_its_meaning(name: str, text: str, end: str) -> None:
    (fault,) = faults(manifest="m.json", **{name: text})
    assert fault.endswith(end)


def parsed(**options: str) -> SourceOptions:
    return SourceOptions.parse({"manifest": "m", **options})


# Shows 83.
@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"pollTimeout": "200"}, "poll_timeout", 0.2),
        ({"leaseTimeout": "10"}, "lease_timeout", 10.0),
        ({"leaseTimeout": "10 seconds"}, "lease_timeout", 10.0),
        ({"retryTimeout": "2000"}, "retry", RetrySettings(timeout=2.0)),
        ({"startingTimestamp": "1704067200000"}, "start", Start(Position.at_timestamp(1704067200000))),
        ({"endingTimestamp": "2024-01-01T00:00Z"}, "ends", Bounds(Position.at_timestamp(1704067200000))),
        ({"roleArn": ROLE, "roleExternalId": "x"}, "aws", AwsSettings(role_arn=ROLE, external_id="x")),
        *(({"deaggregate": text}, "deaggregate", meaning) for text, meaning in (
            ("false", Deaggregation.OFF), ("True", Deaggregation.ALL), ("ALL", Deaggregation.ALL), ("Strict", Deaggregation.STRICT),
        )),
        *(({"startingPosition": text}, "start", start) for text, start in (
            ("LATEST", Start()),
            ("leases", Start(from_leases=True)),
            ("Earliest", Start(TRIM_HORIZON)),
            ("2024-01-01T00:00:00Z", Start(Position.at_timestamp(1704067200000))),
            ("AT_TIMESTAMP:2024-01-01T00:00:00Z", Start(Position.at_timestamp(1704067200000))),
            ("at_timestamp:1704067200000", Start(Position.at_timestamp(1704067200000))),
        )),
        ({"slowQueries": "Hold"}, "slow_queries", "hold"),
        ({"fetchers": " 4 ", "session.supervisor": "/tmp/x"}, "fetchers", 4),
        ({"fetchers": " 4 ", "session.supervisor": "/tmp/x"}, "supervisor", "/tmp/x"),
        ({"fetchers": "Driver"}, "fetchers", None),
        ({"fetcherPort": "40000"}, "fetcher_ports", range(40_000, 40_001)),
        ({"fetcherPort": "1-65535"}, "fetcher_ports", range(1, 65_536)),
        ({"fetcherHost": "gateway", "fetcherBindHost": "10.0.0.7"}, "fetcher_bind_host", "10.0.0.7"),
        ({"metricsExport": "EMF", "metricsShards": "0"}, "metrics", MetricsSettings("emf", "stdout", 60.0, 0)),
        ({"metricsExport": "emf:/var/Log/a:b.log"}, "metrics", MetricsSettings("emf", "/var/Log/a:b.log", 60.0)),
        ({"metricsExport": "Emf:stderr:10s"}, "metrics", MetricsSettings("emf", "stderr", 10.0)),
        *(({"credentialProvider": name}, "aws", AwsSettings(credential_provider=name)) for name in ("acme.aws:Keys.get", "acme-vault")),
    ],
)  # fmt: skip
def test_a_value_becomes_a_setting(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parsed(**given), field) == value


def test_all_options_at_once() -> None:
    assert SourceOptions.parse({"manifest": "m.json"}) == SourceOptions(manifest="m.json")
    options = SourceOptions.parse(
        {
            "MANIFEST": "ssm:///kinesis-efo/dev/lake", "streams": " orders , clicks", "readmode": "EFO",
            "startingPosition": "trim_horizon", "registration": "None", "maxBytesPerTrigger": "64m",
            "maxRecordsPerTrigger": "5", "minBytesPerTrigger": "8m", "maxTriggerDelay": "0s", "bufferBytes": "1g", "failOnDataLoss": "FALSE", "deaggregate": "false",
            "fetchers": "driver", "fetcherHost": "10.0.0.1", "fetcherPort": "40000 - 40100",
            "catchUp": "true", "slowQueries": "Hold", "maxShardRate": "512k",
            "leaseTimeout": "20s", "pollTimeout": "1s", "pollingInterval": "500ms", "idleCheckpointInterval": "5m", "region": "eu-west-1",
            "endpointUrl": "http://127.0.0.1:4566", "roleArn": ROLE, "externalId": "x", "awsProfile": "dev",
            "retryTimeout": "2m",
        }
    )  # fmt: skip
    assert options == SourceOptions(
        manifest="ssm:///kinesis-efo/dev/lake", streams=("orders", "clicks"), start=Start(TRIM_HORIZON),
        max_bytes_per_trigger=64 << 20, max_records_per_trigger=5, min_bytes_per_trigger=8 << 20, max_trigger_delay=0.0, buffer_bytes=1 << 30, fail_on_data_loss=False,
        deaggregate=Deaggregation.OFF, fetcher_host="10.0.0.1", fetcher_ports=range(40_000, 40_101),
        catch_up=True, lease_timeout=20.0, slow_queries="hold", shard_rate=512 << 10,
        poll_timeout=1.0, polling_interval=0.5, idle_checkpoint_interval=300.0, retry=RetrySettings(timeout=120.0),
        aws=AwsSettings("eu-west-1", "http://127.0.0.1:4566", ROLE, "x", profile="dev"),
    )  # fmt: skip
    assert "externalId" not in repr(options) and "external_id" not in repr(options)


@pytest.mark.parametrize(
    ("given", "field", "value", "warning"),
    [
        ({"batch.maxRate": "2m"}, "shard_rate", 2 << 20, "'batch.maxRate' is now 'maxShardRate'; the next minor version refuses the old name"),
        ({"POLLING.INTERVAL": "2s"}, "polling_interval", 2.0, "'polling.interval' is now 'pollingInterval'"),
        ({"subscribe.backoff.basems": "9"}, "retry", RetrySettings(), "'subscribe.backoff.baseMs' has no effect any more; remove it"),
        ({"fetcherTls": "false"}, "aws", AwsSettings(), "'fetcherTls' has no effect any more; remove it"),
        ({"metrics.emf.to": "stderr", "metricsExport": "emf:stdout:10s"}, "metrics", MetricsSettings("emf", "stderr", 10.0),
         "'metrics.emf.to' is obsolete: give it with 'metricsExport', such as emf:stderr:60s; the next minor version refuses it"),
        ({"metricsEmfInterval": "10s", "metricsExport": "emf"}, "metrics", MetricsSettings("emf", "stdout", 10.0), "'metricsEmfInterval' is obsolete"),
        ({"roleArn": ROLE, "roleSessionName": "n"}, "aws", AwsSettings(role_arn=ROLE, role_session_name="n"),
         "'roleSessionName' is obsolete: give 'awsProfile' a profile with role_arn and role_session_name"),
        ({"fetcherBindHost": "[::]"}, "fetcher_bind_host", "::", "'fetcherBindHost' is obsolete: an address of the host in 'fetcherHost'"),
    ],
)  # fmt: skip
def test_old_names_work_with_one_warning(
    given: dict[str, str], field: str, value: object, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = OptionTable("kinesis-efo", SourceOptions, (*SOURCE_OPTIONS, *OBSOLETE), removed=REMOVED)
    assert [getattr(table.parse(given), field) for _ in range(2)] == [value, value]
    (record,) = caplog.records
    assert warning in record.getMessage()


POLLING = {"streamArn": STREAM, "readMode": "polling"}
CLICKS = STREAM.replace("dev-orders", "clicks")
OTHERS_CONSUMER = CONSUMER.replace("dev-orders", "clicks")
OPTION = "kinesis-efo option"


# Shows 80, 81, 84, 86.
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"manifest": "m", "bufferBytes": "lots", "bufferByte": "1m", "readMode": "push", "externalId": "x"}, (
            "kinesis-efo has no option 'bufferByte'; did you mean 'bufferBytes'?",
            f"{OPTION} 'bufferBytes' must be a size such as 256m; got 'lots'",
            f"{OPTION} 'readMode' must be efo or polling; got 'push'",
            f"{OPTION} 'externalId' needs option 'roleArn'",
        )),
        ({"manifest": "m", "streamarns": "1"}, ("kinesis-efo has no option 'streamarns'; did you mean 'streamArn'?",)),
        ({"manifest": "m", "retry.timeout": "1"}, ("kinesis-efo has no option 'retry.timeout'; did you mean 'retryTimeout'?",)),
        ({"manifest": "m", "kafka": "1"}, ("kinesis-efo has no option 'kafka'",)),
        ({"manifest": "m", "registration": "lazy"}, (
            (f"{OPTION} 'registration' must be none: this library never registers consumers at run time. "
            "Declare the consumer in infra/environments/<environment>.yaml and run `cdktf deploy`; got 'lazy'"),
        )),
        ({}, ("kinesis-efo needs option 'manifest' (a path, ssm:///name or s3://bucket/key), or 'streamArn' and 'consumerArn'",)),
        ({"streamArn": STREAM}, ("kinesis-efo needs option 'manifest', or 'consumerArn' besides 'streamArn', or readMode=polling",)),
        ({"readMode": "polling", "leaseTable": "leases"}, ("kinesis-efo needs option 'manifest', or 'streamArn' besides 'leaseTable'",)),
        ({"streamArn": STREAM, "leaseTable": "leases"}, ("kinesis-efo needs option 'manifest', or 'consumerArn' besides 'streamArn' and 'leaseTable', or readMode=polling",)),
        ({"manifest": "m", "leaseTable": "t"}, (f"{OPTION} 'manifest' takes the place of 'leaseTable'; give one or the other",)),
        ({**DIRECT, "consumerArn": OTHERS_CONSUMER}, (
            f"{OPTION} 'consumerArn' must be a consumer of 'streamArn' {STREAM!r}; got a consumer of {OTHERS_CONSUMER.split('/consumer')[0]!r}",
        )),
        ({"streamArn": f"{STREAM},{CLICKS}", "consumerArn": f"{CONSUMER},{CONSUMER}2"}, (
            f"{OPTION} 'consumerArn' must have a consumer of each stream; got none of {CLICKS!r}",
            f"{OPTION} 'consumerArn' must have one consumer of each stream; got several of {STREAM!r}",
        )),
        ({"streamArn": f"{STREAM},{STREAM.replace('eu-west-1', 'us-east-1')}", "readMode": "polling"}, (
            f"{OPTION} 'streamArn' must have streams of one region; got eu-west-1, us-east-1",
            f"{OPTION} 'streamArn' has 2 streams named 'dev-orders', which a checkpoint could not distinguish; give them different names in a manifest",
        )),
        ({"streamArn": STREAM, "consumerArn": CONSUMER, "startingPosition": "LEASES", "newStreamPosition": "leases", "deaggregate": "strict",
          "fetchers": "4", SUPERVISOR: "here"}, (
            f"{OPTION} 'startingPosition' is LEASES, which needs 'leaseTable' or a manifest: its rows have the positions",
            f"{OPTION} 'newStreamPosition' is LEASES, which needs 'leaseTable' or a manifest: its rows have the positions",
            (f"{OPTION} 'fetchers' is 4, which needs 'leaseTable' or a manifest: fetchers run on several hosts, and without a table, only those "
            "of one host exclude each other"),
            (f"{OPTION} 'deaggregate' is strict, which needs 'leaseTable' or a manifest: only the table records that Kinesis once distributed a "
            "stream's records itself, and no aggregate may be left out since"),
        )),
        ({**DIRECT, "streams": "orders"}, (f"{OPTION} 'streams' selects streams of a manifest; remove it, or give 'manifest'",)),
        ({**DIRECT, "fetcherBindHos": "::"}, ("kinesis-efo has no option 'fetcherBindHos'; did you mean 'fetcherHost'?",)),
        ({"manifest": "m", "apartRate": "1m", "batch.maxRate": "1m"}, (f"{OPTION} 'maxShardRate' is given twice, as 'batch.maxRate', too; remove one",)),
    ],
)  # fmt: skip
def test_options_that_contradict_are_refused(given: dict[str, str], found: tuple[str, ...]) -> None:
    assert faults(**given) == found


def test_some_contradictions_name_the_way_out() -> None:
    (message,) = faults(manifest="m", fetchers="4")
    assert "cannot start Spark tasks: use kinesis_efo.read_stream(spark, ..., fetchers=4)" in message
    (fault,) = faults(manifest="m", startingPosition='{"orders": "LEASES"}')
    assert "'startingPosition' must be LEASES for all streams, or for none: write it without JSON" in fault
    assert [SourceOptions.parse(each).consumer_arns for each in (POLLING, {**POLLING, "consumerArn": CONSUMER})] == [
        (),
        (CONSUMER,),
    ]


WRITTEN_DEFAULTS = [
    (settings, option)
    for settings, options in ((SourceOptions(), SOURCE_OPTIONS), (SinkOptions(), SINK_OPTIONS))
    for option in options
    if re.fullmatch("`[^`]+`", option.default)
]


@pytest.mark.parametrize(("settings", "option"), WRITTEN_DEFAULTS, ids=lambda value: getattr(value, "name", ""))
def test_documented_defaults_are_the_settings(settings: Any, option: Option) -> None:
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
    **{
        name: WRONG[name]
        for name in ("region", "endpointUrl", "roleArn", "externalId", "awsProfile", "credentialProvider")
    },
    "metricsExport": WRONG["metricsExport"],
}


def sink_faults(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        SinkOptions.parse(options)
    return caught.value.faults


def test_every_sink_option_has_wrong_values_here() -> None:
    assert SINK_WRONG.keys() == {option.name for option in SINK_OPTIONS}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SINK_WRONG.items() for value in values])
def test_a_wrong_sink_value_is_named_with_its_rule(name: str, value: str) -> None:
    (fault, *_) = sink_faults(**{"roleArn": ROLE, name: value})
    (rule,) = (option.rule for option in SINK_OPTIONS if option.name == name)
    assert fault == f"kinesis-efo sink option '{name}' must be {rule}; got {value!r}"


SINK = "kinesis-efo sink option"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"linger": "x", "checkpointLocation": "/c", "queryName": "q", "bufferBytes": "1m", "maxInFligth": "1"}, (
            "kinesis-efo sink has no option 'bufferBytes'",
            f"{SINK} 'linger' must be a duration such as 100ms, up to 60s; got 'x'",
            "kinesis-efo sink has no option 'maxInFligth'; did you mean 'maxInFlight'?",
        )),
        ({"externalId": "x"}, (f"{SINK} 'externalId' needs option 'roleArn'",)),
        ({"roleSessionName": "n"}, (f"{SINK} 'roleSessionName' needs option 'roleArn'",)),
    ],
)  # fmt: skip
def test_sink_options_that_contradict_are_refused(given: dict[str, str], found: tuple[str, ...]) -> None:
    assert sink_faults(**given) == found


def test_all_sink_options_at_once() -> None:
    options = SinkOptions.parse(
        {
            "STREAM": "orders", "manifest": "m.json", "checkpointLocation": "/c", "maxoutstandingrecords": "10",
            "maxoutstandingbytes": "2m", "linger": "5ms", "maxInFlight": "2", "ordered": "TRUE", "aggregate": "true",
            "aggregateBytes": "20k", "failOnError": "false", "retryTimeout": "1m", "backoff.baseMs": "10", "region": "eu-west-1", "endpointUrl": "http://127.0.0.1:4566",
            "roleArn": ROLE, "externalId": "x", "credentialProvider": "n", "metricsExport": "emf:stderr:10s",
        }
    )  # fmt: skip
    assert options == SinkOptions(
        "m.json",
        "orders",
        ProducerSettings(
            max_outstanding_records=10, max_outstanding_bytes=2 << 20, linger=0.005, max_in_flight=2, ordered=True,
            aggregate=True, aggregate_bytes=20 << 10, fail_on_error=False, retry_timeout=60.0,
        ),
        AwsSettings("eu-west-1", "http://127.0.0.1:4566", ROLE, "x", credential_provider="n"),
        MetricsSettings("emf", "stderr", 10.0),
    )  # fmt: skip
