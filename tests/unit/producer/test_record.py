"""Which records may be put, the shards that they go to, and the messages for those that may not."""

import pickle

import aiohttp
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import ConfigurationError, KinesisEfoError, OptionsError, RecordRefusedError, WriteError
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.producer.faults import Retry, judge
from kinesis_efo.producer.metrics import Latency
from kinesis_efo.producer.record import SizeLimit, make_record
from kinesis_efo.producer.routing import HashRange, ShardMap
from kinesis_efo.producer.service import region_of
from tests.support.messages import raises
from tests.support.transports import refused
from tests.support.write_model import even_shards

MIB = 1 << 20


@pytest.mark.parametrize(
    ("data", "key", "hash_key", "message"),
    [
        (1, "k", None, "record 7: data must be bytes or text; got int (partition key 'k')"),
        (
            "secret\ud800",
            "k",
            None,
            "record 7 (partition key 'k'): data is a text that is not valid Unicode; give bytes",
        ),
        (b"secret", "", None, "... must be a text of 1 to 256 characters; it has 0 characters: ''"),
        (b"secret", "k" * 257, None, "... it has 257 characters: 'kkkkk..."),
        (b"secret", None, None, "... it is None"),
        (b"secret", "\ud800", None, r"record 7 (6 bytes of data): the partition key '\ud800' is not valid Unicode"),
        (
            b"secret",
            "k",
            -1,
            "record 7 (partition key 'k', 7 bytes): the explicit hash key must be a whole number from 0 to 2**128-1; got -1",
        ),
        (b"secret", "k", str(1 << 128), f"... got '{1 << 128}'"),
        (b"secret", "k", "٣", "... got '٣'"),
        (b"secret", "k", "9" * 5_000, "... got '999..."),
        (
            b"secret" * 200_000,
            "k",
            None,
            "record 7 (partition key 'k', 1200001 bytes) is larger than the 1048576 bytes ...",
        ),
    ],
)
def test_impossible_record_is_refused_with_the_reason(
    data: bytes, key: str, hash_key: str | int | None, message: str
) -> None:
    with raises(RecordRefusedError, message) as caught:
        make_record(data, key, hash_key, SizeLimit(MIB), 7)
    assert "record 7" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, WriteError)
    assert isinstance(caught.value, KinesisEfoError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_key_size_counts_bytes_and_its_length_characters() -> None:
    assert make_record(b"12", "é" * 256, None, SizeLimit(MIB), 0).size == 514
    assert make_record(b"x" * (MIB - 1), "k", None, SizeLimit(MIB), 0).size == MIB
    assert make_record("é", "k", None, SizeLimit(MIB), 0).data == "é".encode()
    assert make_record(memoryview(b"ab"), "k", None, SizeLimit(MIB), 0).data == b"ab"
    assert make_record(b"", "k", 0, SizeLimit(MIB), 0).hash == 0


@pytest.mark.parametrize(
    ("given_key", "sent"), [("007", "7"), ("0" * 60 + "5", "5"), ("000", "0"), (12, "12"), ("0", "0")]
)
def test_hash_keys_are_sent_without_leading_zeros(given_key: str | int, sent: str) -> None:
    made = make_record(b"x", "k", given_key, SizeLimit(MIB), 0)
    assert (made.hash_key, made.hash) == (sent, int(sent))


@given(st.integers(1, 50), st.integers(0, (1 << 128) - 1))
def test_predicted_shard_is_open_and_covers_the_place(count: int, place: int) -> None:
    closed = HashRange("closed", 0, (1 << 128) - 1, open=False)
    shards = ShardMap([closed, *even_shards(count)])
    predicted = shards.shard_of(place)
    assert predicted != "closed"
    assert shards.covers(predicted, place)
    assert sum(shards.covers(shard, place) for shard in shards.open_shards) == 1
    assert shards.knows("closed")
    assert not shards.covers("unknown", place)


def test_stream_without_an_open_shard_is_an_error() -> None:
    with raises(WriteError, "the stream has no open shard; ListShards names ['a']"):
        ShardMap([HashRange("a", 0, 1, open=False)])


def test_all_wrong_settings_are_named_together() -> None:
    with pytest.raises(OptionsError) as caught:
        ProducerSettings(linger=61, max_outstanding_records=0, max_in_flight=True, retry_timeout="soon")  # type: ignore[arg-type]
    assert len(caught.value.faults) == 4
    assert "'linger' must be from 0 to 60 (seconds); got 61" in str(caught.value)
    with pytest.raises(OptionsError, match=r"'backoff_base' \(3\) must not exceed 'backoff_max' \(2\)"):
        ProducerSettings(backoff_base=3)


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (refused("ProvisionedThroughputExceededException"), Retry.YES),
        (refused("LimitExceededException"), Retry.YES),
        (refused("KMSThrottlingException"), Retry.YES),
        (refused("InternalFailure", status=500), Retry.YES),
        (refused("WhatEver", status=502), Retry.YES),
        (refused("WhatEver", status=429), Retry.YES),
        (refused("WhatEver", status=400), Retry.NO),
        (refused("ExpiredTokenException"), Retry.BRIEFLY),
        (refused("UnrecognizedClientException"), Retry.NO),
        (refused("ResourceNotFoundException"), Retry.NO),
        (aiohttp.ClientPayloadError("cut"), Retry.YES),
        (EndpointConnectionError(endpoint_url="http://x"), Retry.YES),
        (ConnectionResetError("rst"), Retry.YES),
        (TimeoutError(), Retry.YES),
        (NoCredentialsError(), Retry.NO),
        (ZeroDivisionError("a bug"), Retry.NO),
    ],
)
def test_faults_are_classified_by_whether_a_retry_helps(error: Exception, retry: Retry) -> None:
    assert judge(error).retry is retry


# Shows 85.
def test_wrong_stream_or_region_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    assert region_of(arn, AwsSettings()) == "eu-west-1"
    with raises(
        ConfigurationError,
        "stream arn:aws:kinesis:eu-west-1:123456789012:stream/orders is in region 'eu-west-1', but the region given is "
        "'us-east-1'",
    ):
        region_of(arn, AwsSettings(region="us-east-1"))
    for wrong in ("", "a b", "arn:aws:dynamodb:eu-west-1:123456789012:table/orders", arn + "/consumer/lake:1"):
        said = f"the stream must be a name or an ARN such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders; got {wrong!r}"
        with raises(ConfigurationError, said):
            region_of(wrong, AwsSettings())
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert region_of("orders", AwsSettings()) == "ap-south-1"
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with raises(
        ConfigurationError,
        "no AWS region for stream 'orders': give its ARN, set kinesis-efo option 'region' or the environment's AWS_REGION",
    ):
        region_of("orders", AwsSettings())


def test_latency_quantiles_are_close_upper_bounds() -> None:
    latency = Latency()
    assert latency.quantile(0.5) == 0.0
    latency.add([])
    for milliseconds in range(1, 1_001, 2):
        latency.add([milliseconds / 1_000, (milliseconds + 1) / 1_000])
    for share, truth in ((0.5, 0.5), (0.99, 0.99)):
        assert truth <= latency.quantile(share) <= truth * 1.5
    assert latency.quantile(1.0) == 1.0
