"""All exceptions that this library raises on purpose, in one tree.

```
KinesisEfoError
├── ConfigurationError          options, command line or manifest are wrong; nothing was started
│   ├── OptionsError            one or more options; all faults are in one message
│   ├── UsageError              the command line of `kinesis-efo`
│   └── ManifestError           the manifest cannot be loaded or lacks something
├── StreamError                 a stream cannot be read or written (any more); the message says which
│   ├── AccessRefusedError      credentials or policy
│   ├── StreamNotFoundError     the stream does not exist (any more)
│   ├── KeyUnusableError        the stream's KMS key cannot be used
│   ├── RetriesExhaustedError   transient faults, too many in a row or for too long; names the first one
│   ├── SubscriptionError       only reading: a shard cannot be read any more; names stream, shard and ARN
│   │   ├── InvalidRequestError     Kinesis calls the request invalid
│   │   ├── ConsumerNotFoundError   the consumer does not exist (any more)
│   │   ├── StreamReplacedError     the stream was created again: the checkpoint belongs to a former one
│   │   ├── ConsumerTakenOverError  another program reads with this consumer
│   │   └── SequenceNumberError     the server's sequence numbers have a form that cannot be used in requests
│   └── WriteError              only writing: a record was not written; never raised for acknowledged records
│       ├── RecordRefusedError      a record cannot be written: too large, key out of bounds, refused by Kinesis
│       └── ProducerClosedError     put or flush after close
├── DataLossError               records that should be read are gone (retention, deleted shard)
├── LeaseError
│   ├── LeaseTableError         the table is missing, refused or has the wrong key
│   ├── TableUnavailableError   the table cannot be reached or throttles for now
│   ├── LeaseLostError          another run or a KCL application took a lease
│   └── AlreadyRunningError     another live run of the application holds the leases
├── FetcherError                a call to the fetcher failed
│   ├── FetcherUnreachableError no fetcher responds at any of its addresses
│   └── FetcherRefusedError     the secret of the run is missing or wrong
├── EmrError                    a job on EMR
│   ├── PackagingError          the environment archive of a job cannot be built or read
│   ├── SubmissionRefusedError  a job was not submitted, because it could not have worked
│   ├── PlatformError           EMR refuses a request, or cannot be reached
│   ├── RunFailedError          a submitted job ended by itself, with an error
│   └── StillRunningError       a job did not stop, or its leases are not released, in time
└── FrameError                  bytes on the wire are not a valid event-stream frame or event
```
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger(__name__)


class KinesisEfoError(Exception):
    """Base of all exceptions that this library raises on purpose."""


class ConfigurationError(KinesisEfoError):
    """Options, command line or manifest are wrong; nothing was started."""


class OptionsError(ConfigurationError):
    """One or more options are wrong. All faults are reported together.

    Args:
        faults: One sentence per wrong option.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return OptionsError, (self.faults,)


class UsageError(ConfigurationError):
    """The command line of `kinesis-efo` is wrong: an option, or a combination of options."""


class ManifestError(ConfigurationError):
    """The manifest cannot be loaded, is not valid, or lacks something that the options name."""


class StreamError(KinesisEfoError):
    """A stream cannot be read or written (any more); the message says which of the two."""


class AccessRefusedError(StreamError):
    """Credentials are refused, expired beyond refresh, or lack a permission."""


class StreamNotFoundError(StreamError):
    """The stream does not exist (any more)."""


class KeyUnusableError(StreamError):
    """The KMS key of the stream cannot be used."""


class RetriesExhaustedError(StreamError):
    """Transient faults did not pass: too many in a row when reading, or all of `retry_timeout` when writing.

    The message names the first one.
    """


class SubscriptionError(StreamError):
    """A shard cannot be read any more, for a reason specific to reading."""


class InvalidRequestError(SubscriptionError):
    """Kinesis refuses the request as invalid, for example a sequence number of another stream."""


class ConsumerNotFoundError(SubscriptionError):
    """The stream consumer does not exist (any more)."""


class StreamReplacedError(SubscriptionError):
    """The stream was deleted and created again under its name: positions of the former one are void."""


class ConsumerTakenOverError(SubscriptionError):
    """Another program keeps subscribing with the same consumer."""


class SequenceNumberError(SubscriptionError):
    """The server's sequence numbers have leading zeros, unlike those of Kinesis. They would be lost in later requests."""


class WriteError(StreamError):
    """A record was not written, for a reason specific to writing."""


class RecordRefusedError(WriteError):
    """A record cannot be written. The message names its partition key, size and position, never its data."""


class ProducerClosedError(WriteError):
    """The producer is closed, or not opened yet."""


class DataLossError(KinesisEfoError):
    """Records that should be read are gone: trimmed by retention, or their shard is."""


class LeaseError(KinesisEfoError):
    """Base of errors about leases."""


class LeaseTableError(LeaseError):
    """The lease table is missing, refuses access, or does not have the key schema of a lease table."""


class TableUnavailableError(LeaseError):
    """The lease table cannot be reached or throttles for now; a later try may succeed."""


class LeaseLostError(LeaseError):
    """Another run, or a KCL application, took a lease that this run held."""


class AlreadyRunningError(LeaseError):
    """Another live run of the application holds the leases."""


class FetcherError(KinesisEfoError):
    """A call to the fetcher failed."""


class FetcherUnreachableError(FetcherError):
    """No fetcher responds at any of its addresses."""


class FetcherRefusedError(FetcherError):
    """The fetcher refused a call, because the run's secret is missing or wrong."""


class EmrError(KinesisEfoError):
    """Base of errors about jobs on EMR."""


class PackagingError(EmrError):
    """The environment archive of a job cannot be built, or cannot be read."""


class SubmissionRefusedError(EmrError):
    """A job was not submitted, because it could not have worked. One message gives all reasons."""


class PlatformError(EmrError):
    """EMR refuses a request, or cannot be reached."""


class RunFailedError(EmrError):
    """A job that was submitted ended by itself, with an error; the message says where its logs are."""


class StillRunningError(EmrError):
    """A job did not stop in time, or did not release its leases."""


class FrameError(KinesisEfoError):
    """Bytes on the wire are not a valid event-stream frame, or its payload not a valid event."""


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Choose the error to raise for a failed task group: an error of this library, if there is one. The others are logged."""
    first = next((error for error in errors.exceptions if isinstance(error, KinesisEfoError)), errors.exceptions[0])
    for error in errors.exceptions:
        if error is not first and str(error) != str(first):
            logger.error("failed as well: %s: %s", type(error).__name__, error, exc_info=error)
    return first
