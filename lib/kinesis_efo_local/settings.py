"""The settings of the local AWS. The defaults match the real service, except for waits that would only slow tests down."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .errors import AwsError, partition_of
from .wrong_answers import parse_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the local Kinesis. All durations are in seconds, all sizes in bytes.

    Args:
        region: Default region of `LocalAws.client`. Other regions work, too; each region has its own streams.
        account_id: Account in every ARN.
        subscription_seconds: Time after which a subscription ends by itself (the real service: 5 minutes).
        idle_event_seconds: Interval between empty events in an idle subscription.
        resubscribe_seconds: How long after a successful SubscribeToShard call the next one for the same consumer and shard is rejected.
            After that time, the next call ends the open subscription.
        subscribe_interval_seconds: Minimum time between two SubscribeToShard calls per consumer and shard, rejected calls included.
        stream_creating_seconds: How long a stream is CREATING (and DELETING). With 0, botocore's waiters, which check only
            every 10 s, return at once.
        reshard_seconds: How long a stream is UPDATING before a change of its shards, encryption or warm throughput takes effect.
        consumer_creating_seconds: How long a consumer is CREATING.
        consumer_deleting_seconds: How long a consumer is DELETING.
        retention_seconds: Retention period of new streams; None for 24 hours. With a short period, records expire within a test.
        read_limit: Whether to enforce 2 MiB/s per consumer and shard, and GetRecords' 5 calls and 2 MiB per second and shard.
        write_limit: Whether to enforce 1 MiB/s and 1,000 records/s per shard.
        max_event_bytes: Maximum bytes (data and keys) in an event; a larger record is sent alone.
        max_event_records: Maximum number of records in an event.
        signature_seconds: Maximum difference between a signature's time and the server's clock; `math.inf` for tests that set the clock.
        iterator_seconds: Time after which shard iterators and paging tokens expire.
        max_shards: Maximum number of open shards per account and region.
        max_concurrent_streams: Maximum number of open requests per HTTP/2 connection, as in the real service; further ones are rejected.
        max_request_bytes: Maximum size of a request, such as an upload of an archive to S3; a larger request is rejected.
        trace_length: Number of calls that `kinesis.trace` keeps.
        wrong_answers: Comma-separated kinds of wrong responses from GetRecords, SubscribeToShard and ListShards: quiet, behind,
            last-number, empty, no-shards; or all. See `kinesis_efo_local.wrong_answers`.
        wrong_answers_rate: Probability, from 0 to 1, of a wrong answer where a wrong answer is possible.
        wrong_answers_in_a_row: Maximum number of consecutive answers that hide existing records or shards, for one reader
            of a shard or one stream.
    """

    region: str = "us-east-1"
    account_id: str = "123456789012"
    subscription_seconds: float = 300.0
    idle_event_seconds: float = 5.0
    resubscribe_seconds: float = 5.0
    subscribe_interval_seconds: float = 1.0
    stream_creating_seconds: float = 0.0
    reshard_seconds: float = 0.0
    consumer_creating_seconds: float = 0.5
    consumer_deleting_seconds: float = 0.5
    retention_seconds: float | None = None
    read_limit: bool = True
    write_limit: bool = False
    max_event_bytes: int = 1_000_000
    max_event_records: int = 500
    signature_seconds: float = 300.0
    iterator_seconds: float = 300.0
    max_shards: int = 10_000
    max_concurrent_streams: int = 5
    max_request_bytes: int = 1024 * 1024 * 1024
    trace_length: int = 100_000
    wrong_answers: str = ""
    wrong_answers_rate: float = 0.5
    wrong_answers_in_a_row: int = 2

    def __post_init__(self) -> None:
        zero_is_fine = {
            "resubscribe_seconds",
            "subscribe_interval_seconds",
            "stream_creating_seconds",
            "reshard_seconds",
            "consumer_creating_seconds",
            "consumer_deleting_seconds",
            "trace_length",
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if value < 0 or (value == 0 and field.name not in zero_is_fine):
                least = "0 or more" if field.name in zero_is_fine else "more than 0"
                raise ValueError(f"local AWS setting {field.name} must be {least}; got {value!r}")
        try:
            partition_of(self.region)
        except AwsError:
            raise ValueError(
                f"local AWS setting region must be one of AWS, such as us-east-1; got {self.region!r}"
            ) from None
        if self.wrong_answers_rate > 1:
            raise ValueError(f"local AWS setting wrong_answers_rate must be at most 1; got {self.wrong_answers_rate!r}")
        try:
            parse_kinds(self.wrong_answers)
        except ValueError as error:
            raise ValueError(f"local AWS setting wrong_answers: {error}") from None
