"""A consumer of a stream, for Enhanced Fan-Out: declared here, and never registered by what reads through it."""

from __future__ import annotations

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import keep, put
from kinesis_efo_infra.cdk import Construct, KinesisStreamConsumer
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.stream import Stream

_ARN = "arn:aws:kinesis:<region>:<account>:stream/<stream>/consumer/<name>:<creation time>"


class StreamConsumer(Construct):
    """A consumer, with 2 MB/s of its own from every shard of its stream. It is billed as long as it exists.

    Args:
        scope: The parent construct.
        id: Its id there.
        stream: Its stream.
        name: Its name: 1 to 128 letters, digits, `_`, `.` and `-`.
        protected: Terraform refuses to destroy it.
        import_existing: ARN of the consumer of this name that exists: Terraform takes it over. Its ARN, and not only its name,
            since that holds the time of its creation.
        place: Its Terraform name.

    Raises:
        ArgumentError: The name is none (Kinesis API reference, RegisterStreamConsumer), or the ARN is another consumer's.

    >>> lake = StreamConsumer(stack, "lake", stream=orders, name="lake")
    >>> orders.grant_read("lake-job", lake)
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
        super().__init__(scope, id)
        self._stream = stream
        consumer = KinesisStreamConsumer(self, "consumer", name=name, stream_arn=stream.arn, lifecycle=keep(protected))
        put(consumer, place)
        if import_existing is not None:
            consumer.import_from(import_existing)
        self._arn = consumer.arn

    @staticmethod
    def from_arn(scope: Construct, id: str, arn: str, *, stream: Stream) -> StreamConsumer:
        """A consumer that somebody else declares, as the owner of a stream in another account does.

        Args:
            scope: The parent construct.
            id: Its id there.
            arn: The consumer; a reference to it will do.
            stream: Its stream.

        Raises:
            ArgumentError: It is no ARN of a consumer, or of one on another stream.
        """
        _check(f"StreamConsumer.from_arn {id!r}", "arn", arn, stream)
        return _GivenConsumer(scope, id, arn, stream)

    @property
    def arn(self) -> str:
        """ARN of the consumer."""
        return self._arn

    @property
    def stream(self) -> Stream:
        """Its stream."""
        return self._stream


class _GivenConsumer(StreamConsumer):
    def __init__(self, scope: Construct, id: str, arn: str, stream: Stream) -> None:
        super(StreamConsumer, self).__init__(scope, id)
        self._arn, self._stream = arn, stream


def _check(owner: str, argument: str, arn: str, stream: Stream) -> None:
    checks.text(owner, argument, arn, checks.CONSUMER_ARN, f"give {_ARN}")
    known = not (checks.is_token(arn) or checks.is_token(stream.arn))
    if known and arn.partition("/consumer/")[0] != stream.arn:
        raise ArgumentError(
            f"{owner}: {argument} must be of a consumer of {stream.arn}; got {arn!r}: give its own stream"
        )
