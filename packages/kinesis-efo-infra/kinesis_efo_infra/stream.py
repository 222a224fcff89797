"""A Kinesis stream, declared here or elsewhere, and its grants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import TYPE_CHECKING, Any, Final

from kinesis_efo_infra import checks
from kinesis_efo_infra.alarms import Metric
from kinesis_efo_infra.base import keep
from kinesis_efo_infra.cdk import ENGINE, Construct, Fn, KinesisStream, KinesisStreamStreamModeDetails
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.grants import Grant, Grantee, Shareable, grant
from kinesis_efo_infra.key import OWN, CustomerKey, EncryptionKey, check_key, key_arn
from kinesis_efo_infra.places import Place

if TYPE_CHECKING:
    from kinesis_efo_infra.consumer import StreamConsumer

SHARD_METRICS: Final = (
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
)
"""Metrics that Kinesis can publish per shard. Source: Kinesis API reference, EnableEnhancedMonitoring."""
_WARM: Final = "warm_throughput_mib_ps"


class Stream(Shareable):
    """A Kinesis stream, encrypted with its own customer key unless another key is chosen.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Name in Kinesis: 1 to 128 letters, digits, `_`, `.` and `-`.
        shards: Number of shards; default: on-demand mode, in which Kinesis scales the stream.
        retention_hours: How long records stay readable, 24 hours to 365 days.
        encryption_key: `own` (a customer key is declared), `aws-managed` (free, but unusable from other accounts), a
            `CustomerKey`, or the ARN of one.
        former_keys: Customer keys that encrypted the stream before. Keep them here until the records that they encrypted have expired,
            so that readers may decrypt these. `own` is the key that this construct declared earlier.
        shard_metrics: Metrics that Kinesis publishes per shard; billed per shard and metric.
        max_record_kib: Maximum size of a record in KiB, 1024 to 10240.
        warm_throughput_mib: MiB per second that an on-demand stream accepts without prior scaling, 1 to 10240, in an account with
            On-demand Advantage. Needs an AWS provider that supports it, such as the one for CDK Terrain.
        record_distribution_strategy: Rejected, because no AWS provider supports it yet. Set it with the AWS CLI.
        tags: Tags of the stream (but not of its key), in addition to the provider's default tags.
        protected: Whether Terraform refuses to destroy the stream and its key.
        import_existing: Whether Terraform imports an existing stream of this name, and applies these settings to it.
        ignore_shard_changes: Whether Terraform leaves the number of shards alone, because something else, such as a scaler, changes it.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: An argument is not accepted by Kinesis (API reference, CreateStream,
            IncreaseStreamRetentionPeriod and UpdateStreamWarmThroughput) or by the AWS provider.

    >>> orders = Stream(stack, "orders", name="orders", shards=4, retention_hours=48)
    >>> grant = orders.grant_write("orders-producer")
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        shards: int | None = None,
        retention_hours: int = 24,
        encryption_key: EncryptionKey = OWN,
        former_keys: Sequence[EncryptionKey] = (),
        shard_metrics: Sequence[str] = (),
        max_record_kib: int = 1024,
        warm_throughput_mib: int | None = None,
        record_distribution_strategy: str | None = None,
        tags: Mapping[str, str] | None = None,
        protected: bool = False,
        import_existing: bool = False,
        ignore_shard_changes: bool = False,
        place: Place | None = None,
    ) -> None:
        owner = f"Stream {id!r}"
        checks.text(owner, "name", name, checks.KINESIS_NAME, "choose another name")
        if shards is not None:
            checks.number(owner, "shards", shards, 1, 10_000, "leave it out for on-demand")
        elif ignore_shard_changes:
            raise ArgumentError(f"{owner}: ignore_shard_changes goes with `shards`; got on-demand: give `shards`")
        checks.number(owner, "retention_hours", retention_hours, 24, 8760, "a day is 24, a year is 8760")
        checks.number(owner, "max_record_kib", max_record_kib, 1024, 10_240, "the default is 1024")
        for metric in shard_metrics:
            checks.one_of(owner, "shard_metrics", metric, SHARD_METRICS, "name each metric that you need")
        for each in (encryption_key, *former_keys):
            check_key(owner, each)
        warm = _warm(owner, name, shards, warm_throughput_mib)
        if record_distribution_strategy is not None:
            raise ArgumentError(
                f"{owner}: record_distribution_strategy of {name!r} is known to no AWS provider for CDKTF or CDK Terrain; got "
                f"{record_distribution_strategy!r}: leave it out, and say `aws kinesis update-stream-record-distribution-strategy "
                "--stream-arn <its ARN> --record-distribution-strategy AUTO` once an on-demand stream is deployed; later "
                "deployments leave it as it is"
            )
        super().__init__(scope, id)
        keys = [
            key_arn(
                self,
                each,
                alias=f"kinesis-efo/stream/{name}",
                description=f"Records of Kinesis stream {name}",
                protected=protected,
                place=place,
            )
            for each in dict.fromkeys((encryption_key, *former_keys))
        ]
        self._key_arn, self._former_keys = keys[0], [each for each in keys[1:] if each]
        stream = KinesisStream(
            self,
            "stream",
            name=name,
            stream_mode_details=KinesisStreamStreamModeDetails(stream_mode="PROVISIONED" if shards else "ON_DEMAND"),
            shard_count=shards,
            retention_period=retention_hours,
            encryption_type="KMS",
            kms_key_id=self._key_arn or "alias/aws/kinesis",
            shard_level_metrics=list(shard_metrics) or None,
            max_record_size_in_kib=max_record_kib,
            tags=dict(tags or {}) or None,
            # Delete consumers with the stream: otherwise, consumers declared elsewhere would make the deletion fail midway.
            enforce_consumer_deletion=True,
            lifecycle=keep(protected, ignoring=("shard_count",) if ignore_shard_changes else ()),
            **warm,
        )
        self._declare(stream, place)
        if import_existing:
            stream.import_from(name)
        self._name, self._declared_name = stream.name, name
        self._retention_hours: int | None = retention_hours

    @staticmethod
    def from_arn(
        scope: Construct,
        id: str,
        arn: str,
        *,
        encryption_key: CustomerKey | str | None = None,
        former_keys: Sequence[CustomerKey | str] = (),
    ) -> Stream:
        """Return a stream that is declared elsewhere.

        Args:
            scope: The parent construct.
            id: Construct id, unique within `scope`.
            arn: ARN of the stream; may be a Terraform reference.
            encryption_key: The customer key that encrypts the stream, or its ARN; grants then include its use. Default: none, which is
                correct for the AWS managed key.
            former_keys: Customer keys that encrypted the stream before; see `Stream`.

        Raises:
            ArgumentError: `arn` is not the ARN of a stream, or a key is invalid.

        >>> orders = Stream.from_arn(stack, "orders", "arn:aws:kinesis:eu-west-1:111122223333:stream/orders")
        """
        owner = f"Stream.from_arn {id!r}"
        remedy = (
            "give arn:aws:kinesis:<region>:<account>:stream/<name>; for a consumer's, there is StreamConsumer.from_arn"
        )
        checks.text(owner, "arn", arn, checks.STREAM_ARN, remedy)
        for what, key in [("encryption_key", encryption_key), *(("former_keys", each) for each in former_keys)]:
            if key is None or isinstance(key, CustomerKey):
                continue
            checks.text(owner, what, key, checks.KEY_ARN, "give the ARN of its key, or nothing")
            if not (checks.is_token(arn) or checks.is_token(key)):
                region, of_key = arn.split(":")[3], key.split(":")[3]
                checks.one_of(owner, f"the region of {what}", of_key, [region], "a stream's key is in its region")
        return _GivenStream(scope, id, arn, encryption_key, former_keys)

    @property
    def name(self) -> str:
        """Name of the stream in Kinesis."""
        return self._name

    @property
    def declared_name(self) -> str | None:
        """Name of the stream, if it is known before Terraform calls AWS; otherwise None."""
        return None if checks.is_token(self._declared_name) else self._declared_name

    @property
    def retention_hours(self) -> int | None:
        """How long records stay readable; None for a stream declared elsewhere."""
        return self._retention_hours

    @property
    def key_arn(self) -> str | None:
        """ARN of the stream's customer key; None if it has none."""
        return self._key_arn

    def grant_read(self, grantee: Grantee, consumer: StreamConsumer, *, polling: bool = True) -> Grant:
        """Allow a grantee to read and decrypt the stream through a consumer, but not to register consumers.

        Args:
            grantee: A `Policy`, to which permissions are added; a role, its name or its ARN; or a `ReaderAccess` with a role. Principals
                and roles of other accounts are added to resource policies, but not to the policy of a key that is given by its ARN.
            consumer: The consumer to read through.
            polling: Also allow GetRecords: for `readMode=polling`, for batch reads, and for queries that have fallen behind other
                queries of their program and catch up separately. Without it, a program's queries wait for the slowest one.

        Raises:
            ArgumentError: The grantee is invalid, or needs a resource policy although the stream or consumer is declared elsewhere.
        """
        former = self._former_keys
        return grant(
            self,
            f"read-{consumer.node.id}",
            grantee,
            lambda to: to.read_stream(self.arn, consumer.arn, self.key_arn, former_keys=former, polling=polling),
        )

    def grant_poll(self, grantee: Grantee) -> Grant:
        """Allow a grantee to read the stream without a consumer (`readMode=polling`), and decrypt it."""
        return self._grant_poll("poll", grantee)

    def grant_batch(self, grantee: Grantee) -> Grant:
        """Allow a grantee to read ranges of the stream in batch queries, without a consumer, and decrypt it."""
        return self._grant_poll("batch", grantee)

    def grant_write(self, grantee: Grantee) -> Grant:
        """Allow a grantee to put records into the stream, and encrypt them."""
        return grant(self, "write", grantee, lambda to: to.write_stream(self.arn, self.key_arn))

    def metric(self, metric_name: str, *, statistic: str = "Average", period: int = 300) -> Metric:
        """Return a CloudWatch metric of the stream. The `metric_...` methods accept the same keywords."""
        return Metric(metric_name, {"StreamName": self.name}, statistic, period)

    metric_get_records_iterator_age_milliseconds = partialmethod(
        metric, "GetRecords.IteratorAgeMilliseconds", statistic="Maximum"
    )
    metric_incoming_bytes = partialmethod(metric, "IncomingBytes")
    metric_incoming_records = partialmethod(metric, "IncomingRecords")
    metric_read_provisioned_throughput_exceeded = partialmethod(metric, "ReadProvisionedThroughputExceeded")
    metric_write_provisioned_throughput_exceeded = partialmethod(metric, "WriteProvisionedThroughputExceeded")

    def _grant_poll(self, what: str, grantee: Grantee) -> Grant:
        return grant(
            self, what, grantee, lambda to: to.poll_stream(self.arn, self.key_arn, former_keys=self._former_keys)
        )


def _warm(owner: str, name: str, shards: int | None, mib: int | None) -> dict[str, Any]:
    """Return the provider's keyword argument for warm throughput; empty if it is not set."""
    if mib is None:
        return {}
    checks.number(owner, "warm_throughput_mib", mib, 1, 10_240, "10 GiB/s is what AWS gives at most")
    if shards is not None:
        raise ArgumentError(
            f"{owner}: warm_throughput_mib goes with on-demand; got {shards} shards: leave one of them out"
        )
    if not hasattr(KinesisStream, _WARM):
        raise ArgumentError(
            f"{owner}: warm_throughput_mib of {name!r} is not known to the AWS provider of the bindings for {ENGINE}; got {mib}: "
            "use CDK Terrain, whose provider 6.69 knows it (KINESIS_EFO_CDK=cdktn), or leave it out, and say "
            f"`aws kinesis update-stream-warm-throughput --stream-name {name} --warm-throughput-mibps {mib}`"
        )
    return {_WARM: mib}


class _GivenStream(Stream):
    def __init__(
        self, scope: Construct, id: str, arn: str, key: CustomerKey | str | None, former: Sequence[CustomerKey | str]
    ) -> None:
        super(Stream, self).__init__(scope, id)
        self._arn = arn
        self._name = Fn.element(Fn.split("/", arn), 1) if checks.is_token(arn) else arn.rpartition("/")[2]
        self._declared_name, self._retention_hours = self._name, None
        self._key_arn = key.arn if isinstance(key, CustomerKey) else key
        self._former_keys = [each.arn if isinstance(each, CustomerKey) else each for each in former]
