"""What operators use: the command line, checks and repairs of a running application, and jobs on EMR. No job imports it.

`lag` is public; everything else is for the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinesis_efo import AwsSettings

__all__ = ["lag"]


def lag(
    manifest: str,
    *,
    streams: Sequence[str] | None = None,
    count: int = 100,
    lease_timeout: float = 10.0,
    aws: AwsSettings | None = None,
) -> dict[str, Any]:
    """How far an application is behind, shard by shard: what `kinesis-efo lag --json` prints of it.

    Needs the extra `cli`. It watches the leases for up to `lease_timeout` seconds, and must not be called in an event loop.

    Args:
        manifest: A path, `ssm:///name` or `s3://bucket/key`.
        streams: Logical names of streams; None for all of the manifest.
        count: Count up to so many unread records per shard with GetRecords; 0 makes no such calls.
        lease_timeout: The query's `leaseTimeout` in seconds.
        aws: Region, endpoint and role.

    Raises:
        ConfigurationError: The manifest cannot be loaded, or lacks a stream.
        LeaseTableError: The lease table cannot be read.
        StreamError: No stream can be read.
    """
    from kinesis_efo.options import AwsSettings
    from kinesis_efo_tools.cli.lag import measured

    return measured(aws or AwsSettings(), manifest, None if streams is None else list(streams), lease_timeout, count)
