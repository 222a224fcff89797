"""Decides how a reader handles SubscribeToShard and GetRecords errors, counts failures, and creates the exceptions for fatal errors."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec
from botocore.exceptions import ClientError, EventStreamError

from kinesis_efo.aws_errors import (
    Cause,
    action_of,
    cause_of,
    code_of,
    credentials_remedy,
    describe,
    key_remedy,
    message_of,
)
from kinesis_efo.errors import (
    AccessRefusedError,
    ConsumerTakenOverError,
    DataLossError,
    InvalidRequestError,
    KeyUnusableError,
    RetriesExhaustedError,
    SequenceNumberError,
    StreamError,
    StreamReplacedError,
    SubscriptionError,
)
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter
from kinesis_efo.positions import Position

logger = logging.getLogger(__name__)

_MOST_CAUSES: Final = 3
_MOST_POSITIONS: Final = 50
"""Maximum number of positions in a message about losses. A longer list is replaced by a command that prints it."""

_LONGEST_TRY: Final = 240.0
"""An attempt that fails more than this many seconds after it was due has waited for a lease or buffer space. This waiting time does not
count: the retry timeout starts again."""


class Verdict(Enum):
    """How to handle an error."""

    RETRY = auto()
    """A transient error: retry after a delay, and count the failure."""
    KEY = auto()
    """The KMS key cannot be used: handled like `RETRY`, but the fatal error names the key."""
    EXPIRED = auto()
    """The credentials have expired: retry once with a new signature, then fail."""
    TOO_SOON = auto()
    """The consumer subscribed to the shard less than 5 s ago: wait and retry, for up to 5 minutes."""
    NOT_ACTIVE = auto()
    """The consumer is not ACTIVE, for example still CREATING: retry with growing delays, for up to 5 minutes."""
    TAKEN_OVER = auto()
    """Another program subscribed to the shard with the same consumer: retry after a delay, but fail if it happens often."""
    MISSING = auto()
    """The stream, the shard or the consumer does not exist: find out which of them is missing."""
    REFUSED = auto()
    """AWS rejects the credentials, or a policy forbids the call: fail."""
    INVALID = auto()
    """Kinesis or the SDK rejects the request as invalid: fail."""
    FOREIGN = auto()
    """The server is not Kinesis, and its sequence numbers would be misread: fail."""
    UNEXPECTED = auto()
    """An unexpected error: fail, so that it gets noticed."""


class Fault(NamedTuple):
    """An error, how to handle it, and its code for metrics (the service's error code or the exception's class name)."""

    verdict: Verdict
    code: str
    error: Exception

    def __str__(self) -> str:
        return describe(self.error)


_VERDICTS: Final = {
    Cause.PASSING: Verdict.RETRY,
    Cause.CREDENTIALS_UNREACHABLE: Verdict.RETRY,
    # Retry if the KMS key is unusable: unlike a producer, a reader can safely wait until the key or its policy is repaired.
    Cause.KEY: Verdict.KEY,
    Cause.EXPIRED: Verdict.EXPIRED,
    Cause.MISSING: Verdict.MISSING,
    Cause.DENIED: Verdict.REFUSED,
    Cause.UNRECOGNIZED: Verdict.REFUSED,
    Cause.NO_CREDENTIALS: Verdict.REFUSED,
    Cause.INVALID: Verdict.INVALID,
    Cause.UNSENT: Verdict.INVALID,
}


def classify(error: Exception) -> Fault:
    """Decide how to handle a transport error.

    >>> classify(TimeoutError("no event for 35 s")).verdict.name
    'RETRY'
    """
    return Fault(_verdict(error), code_of(error) or type(error).__name__, error)


def _verdict(error: Exception) -> Verdict:
    if isinstance(error, SequenceNumberError):
        return Verdict.FOREIGN
    cause = cause_of(error)
    if cause is Cause.IN_USE:
        if isinstance(error, EventStreamError):
            return Verdict.TAKEN_OVER
        # Kinesis uses one error code for two cases: the consumer is in use, or it is not ACTIVE yet. Only the message differs.
        return Verdict.TOO_SOON if "another active subscription" in message_of(error).lower() else Verdict.NOT_ACTIVE
    if cause is Cause.UNKNOWN:
        # An unknown service error may be transient, so retry it. Any other unknown error is a bug, so let it fail the query.
        return Verdict.RETRY if isinstance(error, ClientError) else Verdict.UNEXPECTED
    return _VERDICTS[cause]


class Backoff:
    """Counts successive failures, and the seconds from the first to the last failure. Progress resets both. `first` is the error of the
    first failure, which often caused the later ones."""

    def __init__(self, settings: RetrySettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self.failures = 0
        self.first: Exception | None = None
        self.seconds = 0.0
        self._since = 0.0
        self._due = 0.0

    def failed(self, error: Exception, now: float) -> float | None:
        """Count a failure at `now` (monotonic seconds). Return the seconds to wait before the next attempt. Returns None to give up: after
        more than `max_retries` successive failures, or after `timeout`."""
        if self.first is None or now - self._due > _LONGEST_TRY:
            self._since = now
        self.first = self.first or error
        self.failures += 1
        self.seconds = now - self._since
        most = self._settings.max_retries
        if (most is not None and self.failures > most) or self.seconds >= self._settings.timeout:
            return None
        delay = jitter(self._settings, self.failures, self._random)
        self._due = now + delay
        return delay

    def reset(self) -> None:
        self.failures = 0
        self.first = None


def fatal(fault: Fault, stream: StreamRef, shard_id: str, source: str, retries: Backoff | None = None) -> StreamError:
    """Create the exception for a shard that can no longer be read.

    `source` is where the ARNs came from. `retries` contains the number of failures; None if they were not retried.
    """
    error = fault.error
    where = f"stream {stream.name!r}, shard {shard_id}, {stream.reader} (from {source})"
    match fault.verdict:
        case Verdict.REFUSED | Verdict.EXPIRED:
            return AccessRefusedError(
                f"{where} cannot be read: {describe(error)}", remedy=_access_remedy(fault, stream)
            )
        case Verdict.INVALID:
            return InvalidRequestError(
                f"{where}: {_operation(error, stream)} was refused as invalid: {describe(error)}. A position of another stream, or of one "
                "that was deleted and created again, is the usual cause: check that checkpoint and ARN belong together"
            )
        case Verdict.KEY:
            return KeyUnusableError(
                f"{where} cannot be read: the stream is encrypted with {_key(error)}, which cannot be used: {describe(error)}",
                remedy=f"To continue, {key_remedy(fault.code, 'Decrypt')}",
            )
        case Verdict.TAKEN_OVER | Verdict.TOO_SOON:
            return ConsumerTakenOverError(
                f"{where}: consumer {stream.consumer_arn} is used by another program: {describe(error)}",
                remedy="Give each application a separate consumer; look for another query, Flink job or KCL worker that uses this one",
            )
        case Verdict.NOT_ACTIVE:
            return RetriesExhaustedError(
                f"{where} cannot be read: the consumer has not become ACTIVE within 5 minutes: {describe(error)}",
                remedy="Check it with `aws kinesis describe-stream-consumer`",
            )
        case Verdict.FOREIGN:
            return SequenceNumberError(f"{where} cannot be read: {error}")
        case Verdict.UNEXPECTED:
            return SubscriptionError(
                f"{where}: unexpected {describe(error)}",
                remedy="This is a bug: report it with the stack trace",
            )
    first = retries.first if retries is not None else None
    since = f"; the first was {describe(first)}" if first and describe(first) != describe(error) else ""
    often = f", {retries.failures} in {retries.seconds:.0f} s" if retries is not None else ""
    return RetriesExhaustedError(
        f"{where} cannot be read: too many failures in a row without any progress{often}. The last was {describe(error)}{since}",
        remedy="Restart the query once the cause is gone; kinesis-efo option 'retryTimeout' allows more",
    )


def _operation(error: Exception, stream: StreamRef) -> str:
    return getattr(error, "operation_name", "GetRecords" if stream.polled else "SubscribeToShard")


def replaced(stream: StreamRef, what: str, source: str) -> StreamReplacedError:
    """Create the exception for a checkpoint of an earlier stream. `what` is a part of its message, such as that of `former_position`."""
    return StreamReplacedError(
        f"stream {stream.name!r}{what}: {stream.stream_arn} (from {source}) was deleted and created again since. Unread records of the "
        "earlier stream are gone",
        remedy="stop all queries of this Spark program, then start this one with a new checkpoint, and startingPosition TRIM_HORIZON to read all of the new one",
    ).about(stream.name)


def former_position(shard_id: str, position: Position) -> str:
    """Return the part of a StreamReplacedError's message that describes a checkpoint position of an earlier stream."""
    return f", shard {shard_id}: the checkpoint is at {position}, a position of an earlier stream"


def report_loss(
    message: str, *, fail: bool, remedy: str = "Set kinesis-efo option 'failOnDataLoss' to false to continue without it"
) -> None:
    """Report lost records: if `fail`, raise DataLossError with `remedy`; otherwise, log a warning."""
    if fail:
        raise DataLossError(message, remedy=remedy)
    logger.warning("%s; continuing without it, as options allow", message)


def lost_after(cause: str, stream: str, shard_id: str, position: Position) -> DataLossError:
    """Create the error for lost records of a shard after a position."""
    return _data_loss((cause,), {stream: {shard_id: str(position)}})


def _data_loss(causes: Sequence[str], lost: Mapping[str, Mapping[str, str]]) -> DataLossError:
    said = "; ".join(causes[:_MOST_CAUSES]) + (
        f"; and {len(causes) - _MOST_CAUSES} more losses" * (len(causes) > _MOST_CAUSES)
    )
    few = sum(map(len, lost.values())) <= _MOST_POSITIONS
    value = msgspec.json.encode(lost).decode() if few else "the value that `kinesis-efo doctor --checkpoint` prints"
    return DataLossError(
        said,
        remedy="To continue without them once, set kinesis-efo option 'acceptDataLoss' to "
        f"{value}{' (`kinesis-efo doctor --checkpoint` prints it for all shards)' * few}; option 'failOnDataLoss=false' accepts every "
        "loss. A longer retention period of the stream leaves more time to read it",
        causes=causes,
        lost=lost,
    )


class LossErrors:
    """Collects the data losses of many shards into one error, so that a user can accept all of them with a single restart."""

    def __init__(self) -> None:
        self._errors: list[DataLossError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect any DataLossError that the body of the `with` statement raises."""
        try:
            yield
        except DataLossError as error:
            self._errors.append(error)

    def __bool__(self) -> bool:
        return bool(self._errors)

    def raise_if_any(self) -> None:
        """Raise one DataLossError that contains all collected losses."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lost: defaultdict[str, dict[str, str]] = defaultdict(dict)
            for error in self._errors:
                for stream, shards in error.lost.items():
                    lost[stream] |= shards
            raise _data_loss([cause for error in self._errors for cause in error.causes or (str(error),)], lost)


def _access_remedy(fault: Fault, stream: StreamRef) -> str:
    error = fault.error
    if fault.verdict is Verdict.EXPIRED:
        return (
            "The credentials have expired and do not refresh themselves: use a role, a profile or a web identity "
            "instead of temporary keys in the environment"
        )
    if not isinstance(error, ClientError):
        return credentials_remedy(error).capitalize()
    action = action_of(error, _operation(error, stream))
    if cause_of(error) is not Cause.DENIED:
        return f"AWS did not accept the credentials that {action} was signed with: check keys, region and the machine's clock"
    who = re.search(r"arn:[\w-]+:(?:sts|iam)::\d+:[\w+=,.@/-]+", message_of(error))
    declared = ""
    if action in _POLLED:
        action = " and ".join(_POLLED)
        declared = (
            "; infra/ does so unless the application has `polling: false`, and for batch reads with `batch: true`. In a CDK app, use "
            "Stream.grant_batch or Stream.grant_poll of kinesis_efo_infra"
        )
    return f"Allow {action} on it to {who[0] if who else 'the role this process runs as'}{declared}"


_POLLED: Final = ("kinesis:GetRecords", "kinesis:GetShardIterator")


def _key(error: Exception) -> str:
    key = re.search(r"arn:[\w-]+:kms:[\w:/-]+", message_of(error))
    return f"key {key[0]}" if key else "a KMS key"
