"""A stream, declared or adopted, its consumers, and the resource policies that share it with other accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from infra.settings.access import OtherAccount
from infra.settings.model import AdoptedStream, Environment, OwnStream
from infra.settings.names import Names, entry_place
from infra.stacks.cdk import Construct, KinesisResourcePolicy
from kinesis_efo_infra import iam
from kinesis_efo_infra.base import policy_document, put
from kinesis_efo_infra.consumer import StreamConsumer
from kinesis_efo_infra.key import OWN, CustomerKey
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.stream import Stream


class FanOutStream(Construct):
    """A Kinesis stream and the consumers that this environment's applications have on it.

    Args:
        scope: The parent construct.
        environment: The environment.
        key: Key of the stream's entry in the environment file.
    """

    def __init__(self, scope: Construct, environment: Environment, key: str) -> None:
        super().__init__(scope, f"stream-{key}")
        self._environment = environment
        self._key = key
        self._settings = settings = environment.streams[key]
        self._place = entry_place(key, settings)
        self._readers = {
            name: application for name, application in environment.applications.items() if key in application.streams
        }
        if isinstance(settings, AdoptedStream):
            self._stream = Stream.from_arn(
                self,
                "stream",
                settings.existing_arn,
                encryption_key=settings.key,
                former_keys=list(settings.former_keys),
            )
        else:
            self._stream = self._declare(settings)
        self._consumers = {name: self._consumer(name) for name, each in self._readers.items() if each.subscribes}
        self._share()

    @property
    def arn(self) -> str:
        """ARN of the stream."""
        return self._stream.arn

    @property
    def name(self) -> str:
        """Name of the stream in Kinesis."""
        return self._stream.name

    @property
    def consumers(self) -> Mapping[str, StreamConsumer]:
        """The consumers, by key of the application; applications that only poll have none."""
        return MappingProxyType(self._consumers)

    def read_by(self, application: str) -> StreamConsumer | Stream:
        """Return what an application reads from: its consumer, or the stream itself if it only polls."""
        return self._consumers.get(application, self._stream)

    def grant_read(self, policy: iam.Policy, application: str) -> None:
        """Allow reading the stream as an application does, with its consumer or by polling, and decrypting it.

        Args:
            policy: The policy to add the permissions to.
            application: Key of the application.
        """
        if (consumer := self._consumers.get(application)) is None:
            self._stream.grant_poll(policy)
        else:
            polling = self._environment.applications[application].gets_records
            self._stream.grant_read(policy, consumer, polling=polling)

    def grant_batch(self, policy: iam.Policy) -> None:
        """Allow reading ranges of the stream in batch queries, without a consumer, and decrypting it."""
        self._stream.grant_batch(policy)

    def grant_write(self, policy: iam.Policy) -> None:
        """Allow putting records into the stream, and encrypting them."""
        self._stream.grant_write(policy)

    def _declare(self, settings: OwnStream) -> Stream:
        environment, name = self._environment, Names(self._environment).stream_name(self._key)
        keys: list[CustomerKey | str] = list(settings.all_keys)
        if OWN in keys:
            keys[keys.index(OWN)] = CustomerKey(
                self,
                "key",
                alias=f"{Names(environment).path}/{name}",
                description=f"Records of Kinesis stream {name}",
                foreign_readers=sorted({each for principals, _ in self._foreign().values() for each in principals}),
                protected=environment.protected,
                place=self._place,
            )
        return Stream(
            self,
            "stream",
            name=name,
            shards=settings.shards,
            retention_hours=settings.retention_hours,
            encryption_key=keys[0],
            former_keys=keys[1:],
            shard_metrics=settings.shard_metrics,
            max_record_kib=settings.max_record_kib,
            warm_throughput_mib=settings.warm_throughput_mib,
            tags=settings.tags,
            protected=environment.protected,
            import_existing=settings.import_existing,
            ignore_shard_changes=settings.scaled_elsewhere,
            place=self._place,
        )

    def _consumer(self, application: str) -> StreamConsumer:
        if isinstance(self._settings, AdoptedStream) and application in self._settings.consumers:
            arn = self._settings.consumers[application]
            return StreamConsumer.from_arn(self, f"consumer-{application}", arn, stream=self._stream)
        return StreamConsumer(
            self,
            f"consumer-{application}",
            stream=self._stream,
            name=Names(self._environment).consumer_name(self._key, application),
            protected=self._environment.protected,
            import_existing=self._settings.import_consumers.get(application),
            place=self._consumer_place(application),
        )

    def _consumer_place(self, application: str) -> Place:
        return Names(self._environment).consumer_place(self._key, application)

    def _foreign(self) -> dict[str, tuple[Sequence[str], bool]]:
        """Return principals, and whether GetRecords is allowed, for each application that runs in another account, by key."""
        return {
            name: (application.access.principals, application.gets_records)
            for name, application in self._readers.items()
            if isinstance(application.access, OtherAccount)
        }

    def _share(self) -> None:
        """Add resource policies to the consumers, and to the stream itself if it is declared here.

        An adopted stream is left to its owner, because PutResourcePolicy would replace its whole policy.
        """
        on_stream = []
        for name, (principals, polling) in self._foreign().items():
            if (consumer := self._consumers.get(name)) is not None:
                statement = iam.share_consumer(consumer.arn, principals)
                self._resource_policy(self._consumer_place(name), consumer.arn, [statement])
            on_stream.append(iam.share_stream(name, self.arn, principals, polling=polling))
        if on_stream and isinstance(self._settings, OwnStream):
            self._resource_policy(self._place, self.arn, on_stream)

    def _resource_policy(self, place: Place, arn: str, statements: Sequence[iam.Statement]) -> None:
        document = policy_document(self, f"document-{place.now}", statements, name=f"{place.now}_shared")
        put(KinesisResourcePolicy(self, f"policy-{place.now}", resource_arn=arn, policy=document.json), place)
