"""All exceptions that this library raises on purpose. docs/errors.md describes what to do about each."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Self

logger = logging.getLogger(__name__)

NOTE: Final = "kinesis-efo: "
"""Prefix of the traceback line that contains an error's `data`. Spark passes on only the text of a Python error's traceback."""


def visible(text: str, keep: str = "", most: int = 10_000) -> str:
    """Return text from outside the library in a form that is safe to log or show on a terminal.

    Control and formatting characters, which could forge lines, reorder text or control a terminal, are escaped, except those in `keep`.
    Text of more than `most` characters is truncated.

    >>> visible("a\\x1b[2J\\nb\\u202ec"), visible("abc", most=2)
    ('a\\\\x1b[2J\\\\nb\\\\u202ec', 'ab... (3 characters)')
    """
    if len(text) > most:
        text = f"{text[:most]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


@contextmanager
def naming(what: str) -> Iterator[None]:
    """In this context, add the file name `what` to OSErrors without one, such as those raised by reading or writing an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = what
        raise


class KinesisEfoError(Exception):
    """Base class of all exceptions that this library raises on purpose.

    Attributes:
        exit_code: The exit code of a `kinesis_efo.job` that fails with this error. 1: a restart may help; 2: something must be corrected
            before a restart; 3: another run reads the streams; 6: records are lost; 7: AWS rejects the credentials or denies access.
        retriable: Whether a restart can succeed without any other change.
        stream: The logical name of the affected stream; None if the error does not concern a single stream.
        shard_id: The affected shard; None if the error does not concern a single shard.
        remedy: The last part of the message, which describes what to do; None if the message has no such part.
    """

    exit_code = 1
    retriable: ClassVar[bool] = False
    _keep = ""

    def __init__(self, *args: object, remedy: str | None = None) -> None:
        super().__init__(*(visible(each, self._keep) if isinstance(each, str) else each for each in args))
        self.stream: str | None = None
        self.shard_id: str | None = None
        self.remedy: str | None = None
        if remedy:
            remedy = visible(remedy)
            self.args = (f"{self}{'. ' if remedy[0].isupper() else '; '}{remedy}",)
            self.restore({"remedy": remedy})

    @property
    def data(self) -> dict[str, str]:
        """The values of `stream`, `shard_id` and `remedy` that are not None, for `restore`."""
        return {name: value for name in ("stream", "shard_id", "remedy") if (value := getattr(self, name)) is not None}

    def about(self, stream: str, shard_id: str | None = None) -> Self:
        """Set `stream` and `shard_id`, unless `stream` is already set. Returns this error."""
        known = {"stream": stream} if shard_id is None else {"stream": stream, "shard_id": shard_id}
        return self if self.stream is not None else self.restore(known)

    def restore(self, data: Mapping[str, str]) -> Self:
        """Set attributes from the `data` of another error. Returns this error."""
        self.__dict__ |= {name: value for name, value in data.items() if name in ("stream", "shard_id", "remedy")}
        others = [note for note in getattr(self, "__notes__", ()) if not note.startswith(NOTE)]
        self.__notes__ = [*others, f"{NOTE}{json.dumps(self.data)}"] if self.data else others
        return self

    @classmethod
    def of_lines(cls, *lines: str) -> Self:
        """Return an error whose message has several lines."""
        error = cls("")
        error.args = ("\n".join(map(visible, lines)),)
        return error


class ConfigurationError(KinesisEfoError):
    """Options, command line or manifest are invalid. The query or command was not started."""

    exit_code = 2


class OptionsError(ConfigurationError):
    """One or more options are invalid. All errors are reported together.

    Args:
        faults: One sentence per invalid option.
    """

    _keep = "\n"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(map(visible, faults))
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return OptionsError, (self.faults,)


class UsageError(ConfigurationError):
    """The command line of `kinesis-efo` has an invalid option or an invalid combination of options."""


class ManifestError(ConfigurationError):
    """The manifest cannot be loaded, is invalid, or lacks something that the options refer to."""


class StreamError(KinesisEfoError):
    """A stream cannot be read or written. The message describes the reason."""


class AccessRefusedError(StreamError):
    """Credentials are missing or rejected, have expired and cannot be renewed, or lack a permission."""

    exit_code = 7


class StreamNotFoundError(StreamError):
    """The stream does not exist."""

    exit_code = 2


class KeyUnusableError(StreamError):
    """The KMS key of the stream cannot be used."""

    exit_code = 2


class RetriesExhaustedError(StreamError):
    """Transient errors persisted: too many in a row while a shard was read, or for longer than the retry timeout.

    The message contains the first error.
    """

    retriable = True


class SubscriptionError(StreamError):
    """A shard can no longer be read. Common causes have subclasses."""


class InvalidRequestError(SubscriptionError):
    """Kinesis rejects the request as invalid, for example for a sequence number of another stream."""

    exit_code = 2


class ConsumerNotFoundError(SubscriptionError):
    """The stream consumer does not exist."""

    exit_code = 2


class StreamReplacedError(SubscriptionError):
    """The stream was deleted and created again under the same name. Positions in the earlier stream are invalid in the new one."""

    exit_code = 2


class ConsumerTakenOverError(SubscriptionError):
    """Another program repeatedly subscribes with the same consumer."""

    exit_code = 3


class SequenceNumberError(SubscriptionError):
    """The server's sequence numbers have leading zeros, unlike those of Kinesis. Later requests would lose these zeros."""


class WriteError(StreamError):
    """A record was not written. Common causes have subclasses."""


class RecordRefusedError(WriteError):
    """A record can never be written. The message contains its partition key, size and position, but never its data."""

    exit_code = 2


class ProducerClosedError(WriteError):
    """The producer is closed, not opened yet, or used in a process or event loop other than the one that opened it."""


class DataLossError(KinesisEfoError):
    """Records that should be read are lost: they, or their whole shard, are older than the stream's retention.

    Attributes:
        causes: A description of the loss for each shard; empty if another process raised the error.
        lost: The positions after which records are gone, as strings, by stream and shard; empty if another process raised the error.
    """

    exit_code = 6

    def __init__(
        self,
        *args: object,
        causes: Sequence[str] = (),
        lost: Mapping[str, Mapping[str, str]] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(*args, remedy=remedy)
        self.causes = causes
        self.lost = lost or {}
        if len(self.lost) == 1:
            [(stream, shards)] = self.lost.items()
            self.about(stream, next(iter(shards)) if len(shards) == 1 else None)


class LeaseError(KinesisEfoError):
    """Base class of lease errors."""


class LeaseTableError(LeaseError):
    """The lease table is missing, denies access, or does not have the key schema of a lease table."""

    exit_code = 2


class TableUnavailableError(LeaseError):
    """The lease table cannot be reached or throttles requests. A later attempt may succeed."""

    retriable = True


class LeaseLostError(LeaseError):
    """Another run or a KCL application has acquired a lease of this run."""

    exit_code = 3


class AlreadyRunningError(LeaseError):
    """Another live run of the application owns the leases."""

    exit_code = 3


class FetcherError(KinesisEfoError):
    """A call to the fetcher failed."""

    retriable = True


class FetcherUnreachableError(FetcherError):
    """A fetcher does not respond at any of its addresses."""


class NotFetchedHereError(FetcherUnreachableError):
    """This fetcher no longer buffers the rest of a range, for example because another fetcher now reads the shard. The caller must
    request the shard's current fetcher from the planner."""


class FetcherRefusedError(FetcherError):
    """The fetcher rejected a call: the run's secret is missing or wrong."""

    retriable = False


class EmrError(KinesisEfoError):
    """Base class of errors about jobs on EMR."""


class PackagingError(EmrError):
    """The archive with a job's Python environment cannot be built or read."""

    _keep = "\n"


class SubmissionRefusedError(EmrError):
    """A job was not submitted, since it would fail. The message lists all reasons."""

    _keep = "\n"


class PlatformError(EmrError):
    """EMR rejects a request, or cannot be reached."""


class RunFailedError(EmrError):
    """A submitted job failed. The message contains the location of its logs."""


class StillRunningError(EmrError):
    """A job did not stop in time, or did not release its leases."""


class FrameError(KinesisEfoError):
    """Bytes from the network are not a valid event-stream frame, or the payload of a frame is not a valid event."""

    retriable = True


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise for a failed task group, preferably one of this library's errors. Logs all other errors."""
    first = next((error for error in errors.exceptions if isinstance(error, KinesisEfoError)), errors.exceptions[0])
    for error in errors.exceptions:
        if error is not first and str(error) != str(first):
            logger.error("failed as well: %s: %s", type(error).__name__, error, exc_info=error)
    return first
