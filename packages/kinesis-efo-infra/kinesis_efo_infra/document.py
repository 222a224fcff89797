"""The manifest's document, by which infrastructure and library meet.

The library reads exactly these keys: change both sides together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamRef:
    """What a manifest says of one stream.

    Attributes:
        name: Name in Kinesis.
        arn: ARN of the stream.
        consumer_arn: ARN of the application's consumer on it; None where it only polls.
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
    """The manifest of an application, of CDKTF tokens or of literal values.

    Args:
        application: The application, as metrics and messages call it.
        environment: Where it is deployed, for metrics and messages.
        region: Region of its streams and its table.
        table_name: Name of its lease table.
        table_arn: ARN of its lease table.
        streams: Its streams, by the names that options and offsets have.

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
