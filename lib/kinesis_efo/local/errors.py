"""The errors that the local AWS answers with. Codes and wording follow the real service where it is known."""

from __future__ import annotations


class AwsError(Exception):
    """A modelled error: what an AWS client sees as ``ClientError``.

    Args:
        code: Name of the error shape, for example ``ResourceNotFoundException``.
        message: What the client reads.
        status: HTTP status; 400 for everything that is the caller's doing.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> AwsError:
    """An argument that Kinesis refuses."""
    return AwsError("InvalidArgumentException", message)


def not_found(message: str) -> AwsError:
    """A stream, shard or consumer that does not exist (any more)."""
    return AwsError("ResourceNotFoundException", message)


def in_use(message: str) -> AwsError:
    """A resource that exists already, is busy, or is not ready yet."""
    return AwsError("ResourceInUseException", message)


def limit_exceeded(message: str) -> AwsError:
    """A quota or a call rate."""
    return AwsError("LimitExceededException", message)


def throughput_exceeded(message: str) -> AwsError:
    """The bytes, records or calls per second of a shard."""
    return AwsError("ProvisionedThroughputExceededException", message)
