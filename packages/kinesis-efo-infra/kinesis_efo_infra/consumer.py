"""An Enhanced Fan-Out consumer of a stream. Terraform registers it; readers never do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partialmethod
from weakref import WeakKeyDictionary

from kinesis_efo_infra import checks
from kinesis_efo_infra.alarms import LAG, ConsumerAlarms, Metric
from kinesis_efo_infra.base import account_of, environment_of, keep, validate
from kinesis_efo_infra.cdk import Construct, Fn, IConstruct, KinesisStreamConsumer, Op, Precondition
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.grants import Grant, Grantee, Shareable
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import Account, region_and_account
from kinesis_efo_infra.stream import Stream

_ARN = "arn:aws:kinesis:<region>:<account>:stream/<stream>/consumer/<name>:<creation time>"


class StreamConsumer(Shareable):
    """An Enhanced Fan-Out consumer, with its own 2 MB/s from every shard of its stream. It is billed as long as it exists.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        stream: The stream to read.
        name: Name of the consumer: 1 to 128 letters, digits, `_`, `.` and `-`.
        protected: Whether Terraform refuses to destroy the consumer.
        import_existing: ARN of an existing consumer with this name, which Terraform imports. It cannot be derived from the name,
            because it contains the creation time.
        tags: Tags of the consumer and its alarms, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: The name is invalid (Kinesis API reference, RegisterStreamConsumer); `import_existing` is not an ARN of this
            consumer; or the stream is in another account or region, so that its owner must register the consumer there.

    >>> lake = StreamConsumer(stack, "lake", stream=orders, name="lake")
    >>> grant = orders.grant_read("lake-job", lake)
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        stream: Stream,
        name: str,
        protected: bool = False,
        import_existing: str | None = None,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"StreamConsumer {id!r}"
        checks.text(owner, "name", name, checks.KINESIS_NAME, "choose another name")
        if import_existing is not None:
            _check(owner, "import_existing", import_existing, stream)
            if import_existing.rpartition("/")[2].partition(":")[0] != name:
                raise ArgumentError(
                    f"{owner}: import_existing must be the consumer {name!r}; got {import_existing!r}: give both one name"
                )
        remedy = "correct the ARN, or give StreamConsumer.from_arn, since its owner registers the consumer there"
        elsewhere = [] if checks.is_token(stream.arn) else _near(owner, stream, account_of(scope), remedy)
        super().__init__(scope, id, tags)
        self._begin(stream, name)
        consumer = KinesisStreamConsumer(
            self, "consumer", name=name, stream_arn=stream.arn, lifecycle=keep(protected, requiring=elsewhere)
        )
        self._declare(consumer, place)
        if import_existing is not None:
            consumer.import_from(import_existing)

    @staticmethod
    def from_arn(scope: Construct, id: str, arn: str, *, stream: Stream) -> StreamConsumer:
        """Return a consumer that is declared elsewhere, for example by the owner of a stream in another account.

        Args:
            scope: The parent construct.
            id: Construct id, unique within `scope`.
            arn: ARN of the consumer; may be a Terraform reference.
            stream: The consumer's stream.

        Raises:
            ArgumentError: `arn` is not the ARN of a consumer of `stream`.
        """
        _check(f"StreamConsumer.from_arn {id!r}", "arn", arn, stream)
        return _GivenConsumer(scope, id, arn, stream)

    @property
    def stream(self) -> Stream:
        """The consumer's stream."""
        return self._stream

    @property
    def name(self) -> str | None:
        """Name of the consumer; None if it is unknown until Terraform runs."""
        return self._name

    @property
    def metric_name(self) -> str:
        """Name of the consumer in CloudWatch metrics; a Terraform reference if it is unknown until Terraform runs."""
        return self._name or Fn.element(Fn.split(":", Fn.element(Fn.split("/", self._arn), 3)), 0)

    def grant_read(self, grantee: Grantee, *, polling: bool = True) -> Grant:
        """Allow a grantee to read the stream through this consumer; see `Stream.grant_read`."""
        return self._stream.grant_read(grantee, self, polling=polling)

    def metric(self, metric_name: str, *, statistic: str = "Average", period: int = 300) -> Metric:
        """Return a CloudWatch metric of the consumer. For its lag, call `metric_millis_behind_latest` with the same keywords."""
        dimensions = {"StreamName": self._stream.name, "ConsumerName": self.metric_name}
        return Metric(metric_name, dimensions, statistic, period)

    metric_millis_behind_latest = partialmethod(metric, LAG, statistic="Maximum")

    def alarms(
        self,
        id: str = "alarms",
        *,
        application: str | None = None,
        environment: str | None = None,
        notify: Sequence[str] = (),
        lag_threshold_seconds: int = 300,
        continuous: bool = True,
        retention_hours: int | None = None,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> ConsumerAlarms:
        """Declare alarms on the consumer: high lag, lag that nears the retention period, and refused subscriptions.

        Args:
            id: Construct id of the alarms, within the consumer.
            application: The application that reads, for names and descriptions; default: the consumer's name.
            environment: Name of the environment, for names; default: the name of the stack.
            notify: ARNs of SNS topics that the alarms notify; if empty, the alarms are only visible in CloudWatch.
            lag_threshold_seconds: The lag alarm goes off when the lag exceeds this for five minutes.
            continuous: Whether missing data also sets off the lag alarm. Set it to False if the application only reads now and then, or
                may poll.
            retention_hours: How long the stream retains records; default: as the stream declares, or 24 for a stream declared elsewhere.
            tags: Tags of the alarms, in addition to the provider's default tags.
            place: Terraform name, to which `_lag`, `_rate` and `_retention` are appended; default: CDKTF derives the names.

        Raises:
            ArgumentError: A number is out of range, or the stream (and therefore its metrics) is known to be in another account or region.

        >>> lake = StreamConsumer(stack, "lake", stream=orders, name="lake")
        >>> topic = "arn:aws:sns:eu-west-1:111122223333:oncall"
        >>> alarms = lake.alarms(notify=[topic], lag_threshold_seconds=120)
        """
        owner = f"alarms of {self.node.path}"
        if not checks.is_token(self._stream.arn):
            _near(owner, self._stream, account_of(self), "declare them there")
        where = environment_of(self, owner, environment)
        reader = application or self._name or self.node.id
        stream = self._stream.declared_name or self._stream.node.id
        return ConsumerAlarms(
            self,
            id,
            name=f"kinesis-efo/{where}/{reader}/{stream}",
            application=reader,
            stream=stream,
            stream_name=self._stream.name,
            consumer_name=self.metric_name,
            notify=notify,
            lag_threshold_seconds=lag_threshold_seconds,
            continuous=continuous,
            retention_hours=retention_hours or self._stream.retention_hours or 24,
            tags=tags,
            place=place,
        )

    def read_by(self, application: str) -> None:
        """Record that an application uses this consumer. Synthesis fails if two do, because they would end each other's subscriptions.

        Args:
            application: The application and its environment, as named in error messages.
        """
        self._readers[application] = None

    def _begin(self, stream: Stream, name: str | None) -> None:
        self._stream, self._name, self._readers = stream, name, dict[str, None]()
        _IN_APP.setdefault(self.node.root, []).append(self)
        validate(self, self._wrong)

    def _wrong(self) -> Iterator[str]:
        # Several constructs may refer to the same consumer by its ARN; only the first of them reports errors.
        alike = [each for each in _IN_APP[self.node.root] if each._is(self)]
        if alike[0] is not self:
            return
        declared = [each.node.path for each in alike if not isinstance(each, _GivenConsumer)]
        if len(declared) > 1:
            yield (
                f"consumer {self._name!r} is declared by {' and by '.join(declared)}: a stream has one of a name; give each a "
                "name of its own"
            )
        readers = list(dict.fromkeys(reader for each in alike for reader in each._readers))
        if len(readers) > 1:
            yield (
                f"consumer {self._name or self._arn} is read by {' and by '.join(readers)}, which would take its subscriptions "
                "from each other: give each application a consumer of its own"
            )

    def _is(self, other: StreamConsumer) -> bool:
        if self is other or self._arn == other._arn:
            return True
        named = self._name is not None and self._name == other._name
        return named and self._stream.arn == other._stream.arn


_IN_APP: WeakKeyDictionary[IConstruct, list[StreamConsumer]] = WeakKeyDictionary()
"""All consumers of each app, by the app's root construct. Used to detect a consumer that two applications share."""


class _GivenConsumer(StreamConsumer):
    def __init__(self, scope: Construct, id: str, arn: str, stream: Stream) -> None:
        super(StreamConsumer, self).__init__(scope, id)
        self._arn = arn
        self._begin(stream, None if checks.is_token(arn) else arn.rpartition("/")[2].partition(":")[0])


def _near(owner: str, stream: Stream, account: Account, remedy: str) -> list[Precondition]:
    """Raise if a stream is not in the account and region of `account`. If they are tokens, return preconditions for Terraform."""
    conditions = []
    region, account_id = region_and_account(stream.arn)
    for what, theirs, ours in (("region", region, account.region), ("account", account_id, account.account_id)):
        told = f"{owner}: stream must be of the {what} that it is deployed to"
        if checks.is_token(ours):
            message = f"{told}; {stream.arn} is not: {remedy}."
            conditions.append(Precondition(condition=Op.eq(ours, theirs), error_message=message))
        elif theirs != ours:
            raise ArgumentError(f"{told}, {ours}; got {stream.arn!r}: {remedy}")
    return conditions


def _check(owner: str, argument: str, arn: str, stream: Stream) -> None:
    checks.text(owner, argument, arn, checks.CONSUMER_ARN, f"give {_ARN}")
    known = not (checks.is_token(arn) or checks.is_token(stream.arn))
    if known and arn.partition("/consumer/")[0] != stream.arn:
        raise ArgumentError(
            f"{owner}: {argument} must be of a consumer of {stream.arn}; got {arn!r}: give its own stream"
        )
