"""The errors in responses of the local AWS. Codes and wording follow the real service where they are known."""

from __future__ import annotations

from functools import cache


class AwsError(Exception):
    """An error response, which an AWS client raises as `ClientError`.

    Args:
        code: Name of the error shape, for example `ResourceNotFoundException`.
        message: Error message for the client.
        status: HTTP status; 400 for most client errors.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> AwsError:
    """The error for an argument that Kinesis rejects."""
    return AwsError("InvalidArgumentException", message)


def not_found(message: str, status: int = 400) -> AwsError:
    """The error for a resource, such as a stream, shard or consumer, that does not exist or was deleted."""
    return AwsError("ResourceNotFoundException", message, status)


def in_use(message: str) -> AwsError:
    """The error for a resource that exists already, is busy, or is not ready yet."""
    return AwsError("ResourceInUseException", message)


def limit_exceeded(message: str) -> AwsError:
    """The error for an exceeded quota or call rate."""
    return AwsError("LimitExceededException", message)


def throughput_exceeded(message: str) -> AwsError:
    """The error for exceeding a shard's limit of bytes, records or calls per second."""
    return AwsError("ProvisionedThroughputExceededException", message)


@cache
def partition_of(region: str) -> str:
    """The AWS partition of a region. Raises AwsError if there is no such region."""
    # Imported here, because most of the local AWS does not need the SDK, which is slow to import.
    from botocore.exceptions import UnknownRegionError
    from botocore.session import Session

    try:
        return str(Session().get_partition_for_region(region))
    except UnknownRegionError:
        rule = f"Credential should be scoped to a valid region, such as us-east-1; got {region!r}"
        raise AwsError("InvalidSignatureException", rule) from None
