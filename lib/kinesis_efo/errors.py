"""All exceptions that this library raises on purpose. docs/errors.md says what to do about each."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Self

logger = logging.getLogger(__name__)

NOTE: Final = "kinesis-efo: "
"""Begins the line of a traceback with an error's data, because Spark passes errors on as tracebacks."""


def visible(text: str, keep: str = "", most: int = 10_000) -> str:
    """Return a text that others wrote so that it can be shown on a terminal or logged.

    Control and formatting characters, which could forge lines, reorder text or command a terminal, are escaped, except
    those in `keep`. A text of more than `most` characters is cut.

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
    """Let an OSError in this context name the file or stream that it is about, which errors of reads and writes do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = what
        raise


class KinesisEfoError(Exception):
    """Base of all exceptions that this library raises on purpose.

    Attributes:
        exit_code: The exit code of a `kinesis_efo.job` that fails with this error. 1: starting it again may help; 2: it does not, until
            somebody has put something right; 3: another run reads; 6: records are gone; 7: AWS refuses the credentials.
        retriable: Whether starting again can succeed although nobody has changed anything.
        stream: The stream that the error is about, as the options name it; None if it is not about one stream.
        shard_id: The shard that the error is about; None if it is not about one shard.
        remedy: The end of the message, which says what to do; None if that is not a separate part.
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
        """The attributes that are not None, for `restore`."""
        return {name: value for name in ("stream", "shard_id", "remedy") if (value := getattr(self, name)) is not None}

    def about(self, stream: str, shard_id: str | None = None) -> Self:
        """Set stream and shard, unless they are set."""
        known = {"stream": stream} if shard_id is None else {"stream": stream, "shard_id": shard_id}
        return self if self.stream is not None else self.restore(known)

    def restore(self, data: Mapping[str, str]) -> Self:
        """Set attributes to what `data` of another error was."""
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
    """Options, command line or manifest are wrong; nothing was started."""

    exit_code = 2


class OptionsError(ConfigurationError):
    """One or more options are wrong. All faults are reported together.

    Args:
        faults: One sentence per wrong option.
    """

    _keep = "\n"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(map(visible, faults))
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return OptionsError, (self.faults,)


class UsageError(ConfigurationError):
    """The command line of `kinesis-efo` is wrong: an option, or a combination of options."""


class ManifestError(ConfigurationError):
    """The manifest cannot be loaded, is not valid, or lacks something that the options name."""


class StreamError(KinesisEfoError):
    """A stream cannot be read, or cannot be written; the message says which of the two."""


class AccessRefusedError(StreamError):
    """Credentials are refused, expired beyond refresh, or lack a permission."""

    exit_code = 7


class StreamNotFoundError(StreamError):
    """The stream does not exist."""

    exit_code = 2


class KeyUnusableError(StreamError):
    """The KMS key of the stream cannot be used."""

    exit_code = 2


class RetriesExhaustedError(StreamError):
    """Transient faults did not pass: too many came one after the other (reading), or they lasted for all of `retry_timeout` (writing).

    The message names the first fault.
    """

    retriable = True


class SubscriptionError(StreamError):
    """A shard cannot be read any more, for a reason specific to reading."""


class InvalidRequestError(SubscriptionError):
    """Kinesis refuses the request as invalid, for example a sequence number of another stream."""

    exit_code = 2


class ConsumerNotFoundError(SubscriptionError):
    """The stream consumer does not exist."""

    exit_code = 2


class StreamReplacedError(SubscriptionError):
    """The stream was deleted and created again under the same name. Positions in the earlier stream mean nothing in the new one."""

    exit_code = 2


class ConsumerTakenOverError(SubscriptionError):
    """Another program keeps subscribing with the same consumer."""

    exit_code = 3


class SequenceNumberError(SubscriptionError):
    """The server's sequence numbers have leading zeros, unlike those of Kinesis. These zeros would be lost in later requests."""


class WriteError(StreamError):
    """A record was not written, for a reason specific to writing."""


class RecordRefusedError(WriteError):
    """A record cannot be written. The message names its partition key, size and position, never its data."""

    exit_code = 2


class ProducerClosedError(WriteError):
    """The producer is closed, not opened yet, or used in another process than the one that opened it."""


class DataLossError(KinesisEfoError):
    """Records that should be read are gone: they, or their whole shard, are older than the stream's retention.

    Attributes:
        causes: What is gone, a text for each shard.
        lost: The positions after which records are gone, as texts, by stream and shard. Both are empty if another process raised the error.
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
    """Base of errors about leases."""


class LeaseTableError(LeaseError):
    """The lease table is missing, refuses access, or does not have the key schema of a lease table."""

    exit_code = 2


class TableUnavailableError(LeaseError):
    """The lease table cannot be reached, or throttles; a later try may succeed."""

    retriable = True


class LeaseLostError(LeaseError):
    """Another run, or a KCL application, took a lease that this run held."""

    exit_code = 3


class AlreadyRunningError(LeaseError):
    """Another live run of the application holds the leases."""

    exit_code = 3


class FetcherError(KinesisEfoError):
    """A call to the fetcher failed."""

    retriable = True


class FetcherUnreachableError(FetcherError):
    """No fetcher responds at any of its addresses."""


class NotFetchedHereError(FetcherUnreachableError):
    """The fetcher does not have the rest of a range any more, or another fetcher has it: the run knows where to read it."""


class FetcherRefusedError(FetcherError):
    """The fetcher refused a call, because the run's secret is missing or wrong."""

    retriable = False


class EmrError(KinesisEfoError):
    """Base of errors about jobs on EMR."""


class PackagingError(EmrError):
    """The archive with the Python environment of a job cannot be built, or cannot be read."""

    _keep = "\n"


class SubmissionRefusedError(EmrError):
    """A job was not submitted, because it could not have worked. The message gives all reasons."""

    _keep = "\n"


class PlatformError(EmrError):
    """EMR refuses a request, or cannot be reached."""


class RunFailedError(EmrError):
    """A job that was submitted ended by itself, with an error; the message says where its logs are."""


class StillRunningError(EmrError):
    """A job did not stop in time, or did not release its leases."""


class FrameError(KinesisEfoError):
    """Bytes from the network are not a valid event-stream frame, or the payload of a frame is not a valid event."""

    retriable = True


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Choose the error to raise for a failed task group: an error of this library, if there is one. Logs the other errors."""
    first = next((error for error in errors.exceptions if isinstance(error, KinesisEfoError)), errors.exceptions[0])
    for error in errors.exceptions:
        if error is not first and str(error) != str(first):
            logger.error("failed as well: %s: %s", type(error).__name__, error, exc_info=error)
    return first
