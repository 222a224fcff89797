"""One construct with everything that an application needs to read its streams."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from kinesis_efo_infra import checks
from kinesis_efo_infra.access import BatchAccess, ReaderAccess
from kinesis_efo_infra.alarms import BYTES, LAG, RATE_EXCEEDED, ConsumerAlarms
from kinesis_efo_infra.base import Part, account_of, environment_of
from kinesis_efo_infra.cdk import Construct, IamRole
from kinesis_efo_infra.consumer import StreamConsumer
from kinesis_efo_infra.dashboard import Dashboard, Widget, metric
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.grants import policy_for
from kinesis_efo_infra.iam import Polling
from kinesis_efo_infra.key import OWN, CustomerKey, EncryptionKey, check_key
from kinesis_efo_infra.locations import Location
from kinesis_efo_infra.manifest import Manifest
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.stream import Stream
from kinesis_efo_infra.table import LeaseTable
from kinesis_efo_infra.trust import Trust


class StreamingApplication(Part):
    """A streaming application: a consumer per stream, a lease table, a manifest, and a policy with only the actions that it needs.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Name of the application and its consumers; part of the names of the other resources.
        streams: Streams to read, by the names used in options and offsets; these names cannot be changed later. For a `Stream`, a
            consumer is declared, except with `Polling.ONLY`. A `StreamConsumer` is used as it is.
        environment: Name of the environment, such as `prod`, part of all names except the consumers' names; default: the stack's name.
        polling: Whether to allow GetRecords: for `readMode=polling`, for batch reads, and for queries that have fallen behind other
            queries of their program and catch up separately. With `Polling.NEVER`, a program's queries wait for the slowest one
            instead. With `Polling.ONLY`, subscribing is not allowed, and no consumers are declared.
        batch: Declare a second policy, for batch reads of the streams without consumers or leases.
        writes: Streams that the application may put records into.
        output: S3 location of its output, as `s3://bucket/prefix`; only objects below this prefix may be used.
        checkpoint: S3 location of Spark's checkpoints, if they are not below `output`.
        output_key: ARN of the customer key that encrypts objects in `output` and `checkpoint`; default: none.
        lease_table: A lease table that no other application uses; default: one is declared.
        manifest_bucket: Bucket that stores the manifest as an object; default: a Parameter Store parameter of at most 4 KB.
        encryption_key: Encrypts lease table and manifest: `own` (one customer key is declared for both), `aws-managed`, a `CustomerKey`,
            or the ARN of a key.
        trust: Who may assume the role: `EmrOnEc2`, `EmrServerless`, `Glue`, `ServiceAccount` or `PodIdentity`; default: no role.
        role_name: Name of the role; default: `kinesis-efo-<environment>-<name>`.
        role_policies: ARNs of additional managed policies for the role, such as for access to checkpoint and output buckets.
        permissions_boundary: ARN of the role's permissions boundary.
        protected: Whether Terraform refuses to destroy consumers, lease table and key.
        tags: Tags of the declared resources, in addition to the provider's default tags.
        place: Terraform name of the resources; for a consumer, followed by `_` and the stream's name in `streams`.

    Raises:
        ArgumentError: There are no streams, a consumer is given with `Polling.ONLY`, or another argument is invalid.

    >>> lake = StreamingApplication(stack, "lake-app", name="lake", streams={"orders": orders}, trust=EmrServerless())
    >>> lake.manifest.location
    'ssm:///kinesis-efo/streaming/lake'
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        streams: Mapping[str, Stream | StreamConsumer],
        environment: str | None = None,
        polling: Polling | Literal[True, False, "only"] = Polling.ALLOWED,
        batch: bool = False,
        writes: Sequence[Stream] = (),
        output: str | None = None,
        checkpoint: str | None = None,
        output_key: str | None = None,
        lease_table: LeaseTable | None = None,
        manifest_bucket: str | None = None,
        encryption_key: EncryptionKey = OWN,
        trust: Trust | None = None,
        role_name: str | None = None,
        role_policies: Sequence[str] = (),
        permissions_boundary: str | None = None,
        protected: bool = False,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"StreamingApplication {id!r}"
        checks.text(owner, "name", name, checks.PART_OF_NAMES, "choose another name")
        environment = environment_of(scope, owner, environment)
        check_key(owner, encryption_key)
        if not streams:
            raise ArgumentError(f"{owner}: streams must have at least one; got {streams!r}: it would read nothing")
        if not isinstance(polling, Polling):
            if polling not in (True, False, "only"):
                raise ArgumentError(f"{owner}: polling must be a Polling; got {polling!r}: give Polling.ALLOWED")
            polling = Polling(polling)
            warnings.warn(f"{owner}: polling={polling.value!r} is {polling} now", DeprecationWarning, stacklevel=4)
        given = [key for key, each in streams.items() if isinstance(each, StreamConsumer)]
        if polling is Polling.ONLY and given:
            raise ArgumentError(
                f"{owner}: {polling} reads without consumers; got one for {given[0]!r}: give its stream"
            )
        locations = _locations(owner, output=output, checkpoint=checkpoint)
        if output_key is not None:
            checks.text(owner, "output_key", output_key, checks.KEY_ARN, "give the ARN of a key")
        super().__init__(scope, id, tags)
        self._name, self._environment = name, environment
        if encryption_key == OWN:
            encryption_key = CustomerKey(
                self,
                "key",
                alias=f"kinesis-efo/application/{environment}/{name}",
                description=f"Lease table and manifest of {name} in {environment}",
                protected=protected,
                place=place,
            )
        self._streams = {
            key: each.stream if isinstance(each, StreamConsumer) else each for key, each in streams.items()
        }
        self._consumers = {
            key: each
            if isinstance(each, StreamConsumer)
            else StreamConsumer(
                self,
                f"consumer-{key}",
                stream=each,
                name=name,
                protected=protected,
                place=place.join(key) if place else None,
            )
            for key, each in streams.items()
            if polling is not Polling.ONLY
        }
        self._table = lease_table or LeaseTable(
            self,
            "leases",
            name=f"kinesis-efo-{environment}-{name}",
            encryption_key=encryption_key,
            protected=protected,
            place=place,
        )
        self._manifest = Manifest(
            self,
            "manifest",
            application=name,
            environment=environment,
            table=self._table,
            streams=self._consumers or self._streams,
            bucket=manifest_bucket,
            encryption_key=encryption_key,
            place=place,
        )
        policy = policy_for(self)
        for key, stream in self._streams.items():
            if polling is Polling.ONLY:
                stream.grant_poll(policy)
            else:
                stream.grant_read(policy, self._consumers[key], polling=polling is Polling.ALLOWED)
        for stream in writes:
            stream.grant_write(policy)
        for what, location in locations.items():
            bucket_arn = f"arn:{account_of(self).partition}:s3:::{location.bucket}"
            policy.use_location(what.capitalize(), location, bucket_arn, output_key)
        self._table.grant_read_write(policy)
        self._manifest.grant_read(policy)
        self._access = ReaderAccess(
            self,
            "access",
            application=name,
            environment=environment,
            policy=policy,
            trust=trust,
            role_name=role_name,
            role_policies=role_policies,
            permissions_boundary=permissions_boundary,
            place=place,
        )
        self._batch = self._batch_access(name, environment, place) if batch else None

    @property
    def consumers(self) -> Mapping[str, StreamConsumer]:
        """The application's consumers, by the names in `streams`; empty with `Polling.ONLY`."""
        return MappingProxyType(self._consumers)

    @property
    def lease_table(self) -> LeaseTable:
        """The application's lease table."""
        return self._table

    @property
    def manifest(self) -> Manifest:
        """The application's manifest; `manifest.location` is the value of a job's `manifest` option."""
        return self._manifest

    @property
    def access(self) -> ReaderAccess:
        """The application's policy and, if one is declared, its role."""
        return self._access

    @property
    def grant_principal(self) -> IamRole:
        """The role that receives permissions granted to the application. Raises `ArgumentError` if none is declared."""
        return self._access.grant_principal

    @property
    def batch_access(self) -> BatchAccess | None:
        """The policy for batch reads; None unless `batch` is set."""
        return self._batch

    def dashboard(
        self,
        id: str = "dashboard",
        *,
        name: str | None = None,
        alarms: Sequence[ConsumerAlarms] = (),
        lag_threshold_seconds: int | None = None,
        place: Place | None = None,
    ) -> Dashboard:
        """Declare a dashboard with alarm states and with graphs of the application's reads and of the writes to its streams.

        Args:
            id: Construct id of the dashboard, within the application.
            name: Name of the dashboard; default: `kinesis-efo-<environment>-<name>`.
            alarms: Alarms of the application's consumers; their states are shown on top.
            lag_threshold_seconds: Draw a line at this lag, such as the threshold of the lag alarm.
            place: Terraform name of the resources; default: derived by CDKTF.

        >>> archive = StreamingApplication(stack, "archive", name="archive", streams={"orders": orders})
        >>> alarms = [consumer.alarms() for consumer in archive.consumers.values()]
        >>> archive.dashboard(alarms=alarms, lag_threshold_seconds=300).name
        'kinesis-efo-streaming-archive'
        """
        limit = None if lag_threshold_seconds is None else lag_threshold_seconds * 1000
        return Dashboard(
            self,
            id,
            name=name or f"kinesis-efo-{self._environment}-{self._name}",
            region=account_of(self).region,
            rows=[self._reads(limit), self._writes()],
            alarms=[each.lag_arn for each in alarms],
            place=place,
        )

    def _reads(self, limit: float | None) -> list[Widget]:
        def graph(title: str, of_consumers: str, of_streams: str, statistic: str, line: float | None = None) -> Widget:
            # An application that only polls has no metrics of its own: show its streams' metrics, which include other pollers.
            metrics = [
                metric(of_consumers, self._streams[key].name, key, each.metric_name)
                for key, each in self._consumers.items()
            ] or [metric(of_streams, each.name, key) for key, each in self._streams.items()]
            return Widget(f"{self._name}: {title}", metrics, statistic, line)

        refused = "subscriptions refused" if self._consumers else "reads throttled"
        return [
            graph("milliseconds behind", LAG, "GetRecords.IteratorAgeMilliseconds", "Maximum", limit),
            graph("bytes received", BYTES, "GetRecords.Bytes", "Sum"),
            graph(refused, RATE_EXCEEDED, "ReadProvisionedThroughputExceeded", "Sum"),
        ]

    def _writes(self) -> list[Widget]:
        return [
            Widget(title, [metric(name, each.name, key) for key, each in self._streams.items()], "Sum")
            for title, name in (
                ("bytes written", "IncomingBytes"),
                ("writes throttled", "WriteProvisionedThroughputExceeded"),
            )
        ]

    def _batch_access(self, name: str, environment: str, place: Place | None) -> BatchAccess:
        policy = policy_for(self)
        for stream in self._streams.values():
            stream.grant_batch(policy)
        self._manifest.grant_read(policy)
        return BatchAccess(
            self,
            "batch-access",
            application=name,
            environment=environment,
            policy=policy,
            place=place.join("batch") if place else None,
        )


def _locations(owner: str, **uris: str | None) -> dict[str, Location]:
    try:
        return {what: Location.parse(uri, tokens=True) for what, uri in uris.items() if uri is not None}
    except ArgumentError as error:
        raise ArgumentError(f"{owner}: {error}") from None
