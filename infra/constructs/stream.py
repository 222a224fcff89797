"""A stream, declared or adopted, with its key, its consumers, and the policies that share it with other accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from infra import iam, names
from infra.cdk import (
    Construct,
    KinesisResourcePolicy,
    KinesisStream,
    KinesisStreamConsumer,
    KinesisStreamStreamModeDetails,
)
from infra.constructs.base import keep, policy_document, put
from infra.constructs.key import CustomerKey
from infra.settings import AdoptedStream, Environment, OtherAccount, OwnStream


class FanOutStream(Construct):
    """A Kinesis stream and the consumers that this environment's applications have on it.

    Args:
        scope: The parent construct.
        environment: The environment.
        key: Key of the stream's entry in its file.
    """

    def __init__(self, scope: Construct, environment: Environment, key: str) -> None:
        super().__init__(scope, f"stream-{key}")
        self._environment = environment
        self._key = key
        self._settings = settings = environment.streams[key]
        self._place = names.place(key, settings)
        self._readers = {
            name: application for name, application in environment.applications.items() if key in application.streams
        }
        if isinstance(settings, AdoptedStream):
            self._arn, self._name = settings.existing_arn, names.stream_name(environment, key)
            self._key_arn = settings.key
        else:
            self._declare(settings)
        self._consumers = {name: self._consumer(name) for name in self._readers}
        self._share()

    @property
    def arn(self) -> str:
        """ARN of the stream."""
        return self._arn

    @property
    def name(self) -> str:
        """Name of the stream in Kinesis."""
        return self._name

    @property
    def key_arn(self) -> str | None:
        """ARN of the stream's customer key; None where it has none."""
        return self._key_arn

    @property
    def consumers(self) -> Mapping[str, str]:
        """ARN of each consumer, by the key of its application."""
        return MappingProxyType(self._consumers)

    def grant_read(self, policy: iam.Policy, application: str) -> None:
        """Let a runtime read the stream through an application's consumer, and decrypt it.

        Args:
            policy: Gathers what the runtime may do.
            application: Key of the application.
        """
        polling = self._environment.applications[application].polling
        policy.read_stream(self.arn, self._consumers[application], self.key_arn, polling=polling)

    def grant_batch(self, policy: iam.Policy) -> None:
        """Let a runtime read stretches of the stream, without a consumer, and decrypt it."""
        policy.read_batches(self.arn, self.key_arn)

    def grant_write(self, policy: iam.Policy) -> None:
        """Let a runtime put records into the stream, and encrypt them."""
        policy.write_stream(self.arn, self.key_arn)

    def _declare(self, settings: OwnStream) -> None:
        environment, name = self._environment, names.stream_name(self._environment, self._key)
        own = None
        if settings.key == "own":
            own = CustomerKey(
                self,
                environment,
                self._place,
                alias=f"{environment.environment}/{name}",
                description=f"Records of Kinesis stream {name}",
                foreign_readers=sorted({each for principals, _ in self._foreign().values() for each in principals}),
            ).arn
        self._key_arn = own or (settings.key if settings.key.startswith("arn:") else None)
        stream = KinesisStream(
            self,
            "stream",
            name=name,
            stream_mode_details=KinesisStreamStreamModeDetails(stream_mode=settings.mode.upper().replace("-", "_")),
            shard_count=settings.shards,
            retention_period=settings.retention_hours,
            encryption_type="KMS",
            kms_key_id=self._key_arn or "alias/aws/kinesis",
            shard_level_metrics=list(settings.shard_metrics) or None,
            max_record_size_in_kib=settings.max_record_kib,
            tags=dict(settings.tags) or None,
            lifecycle=keep(environment),
        )
        put(stream, self._place)
        self._arn, self._name = stream.arn, stream.name

    def _consumer(self, application: str) -> str:
        if isinstance(self._settings, AdoptedStream) and application in self._settings.consumers:
            return self._settings.consumers[application]
        consumer = KinesisStreamConsumer(
            self,
            f"consumer-{application}",
            name=names.consumer_name(self._environment, self._key, application),
            stream_arn=self._arn,
            lifecycle=keep(self._environment),
        )
        return put(consumer, self._consumer_place(application)).arn

    def _consumer_place(self, application: str) -> names.Place:
        return names.consumer_place(self._environment, self._key, application)

    def _foreign(self) -> dict[str, tuple[Sequence[str], bool]]:
        """Applications that run in other accounts: their principals, and whether they may poll."""
        return {
            name: (application.access.principals, application.polling)
            for name, application in self._readers.items()
            if isinstance(application.access, OtherAccount)
        }

    def _share(self) -> None:
        """Put resource policies on the consumers, and on the stream itself if it is declared here.

        PutResourcePolicy replaces the whole policy, so that of an adopted stream is left to its owner.
        """
        on_stream = []
        for name, (principals, polling) in self._foreign().items():
            place = self._consumer_place(name)
            self._resource_policy(place, self._consumers[name], [iam.share_consumer(self._consumers[name], principals)])
            on_stream.append(iam.share_stream(name, self._arn, principals, polling=polling))
        if on_stream and isinstance(self._settings, OwnStream):
            self._resource_policy(self._place, self._arn, on_stream)

    def _resource_policy(self, place: names.Place, arn: str, statements: Sequence[iam.Statement]) -> None:
        document = policy_document(self, f"{place.now}_shared", statements)
        put(KinesisResourcePolicy(self, f"policy-{place.now}", resource_arn=arn, policy=document.json), place)
