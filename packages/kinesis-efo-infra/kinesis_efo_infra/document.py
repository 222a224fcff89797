"""The manifest document, the interface between the infrastructure and the library.

The library reads exactly these keys, so change both sides together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A manifest's entry for one stream.

    Attributes:
        name: Name of the stream in Kinesis.
        arn: ARN of the stream.
        consumer_arn: ARN of the application's consumer of the stream; None if the application only polls.
    """

    name: str
    arn: str
    consumer_arn: str | None


def manifest(
    *,
    application: str,
    environment: str,
    region: str,
    table_name: str,
    table_arn: str,
    streams: Mapping[str, StreamRef],
) -> dict[str, Any]:
    """Return the manifest of an application, from CDKTF tokens or literal values.

    Args:
        application: The application, as named in metrics and messages.
        environment: Name of the environment, for metrics and messages.
        region: Region of the streams and the lease table.
        table_name: Name of the lease table.
        table_arn: ARN of the lease table.
        streams: Streams that the application reads, by the names used in options and offsets.

    >>> document = manifest(application="lake", environment="dev", region="eu-west-1", table_name="t", table_arn="a", streams={})
    >>> sorted(document)
    ['application', 'environment', 'leaseTable', 'region', 'schemaVersion', 'streams']
    """
    return {
        "schemaVersion": MANIFEST_VERSION,
        "application": application,
        "environment": environment,
        "region": region,
        "leaseTable": {"name": table_name, "arn": table_arn},
        "streams": {name: _stream(ref) for name, ref in streams.items()},
    }


def _stream(ref: StreamRef) -> dict[str, str]:
    consumer = {} if ref.consumer_arn is None else {"consumerArn": ref.consumer_arn}
    return {"streamName": ref.name, "streamArn": ref.arn, **consumer}
