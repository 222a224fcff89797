"""Archives, programs and stop markers in S3. The names of archives and programs contain the digest of their contents."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import code_of
from kinesis_efo.errors import PackagingError, PlatformError, UsageError
from kinesis_efo_tools.emr.packing import Archive

_YOUNG: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to upload to S3. `key` contains `digest`, the SHA-256 of the contents in hex."""

    path: Path
    key: str
    digest: str


def archive_artifact(archive: Archive) -> Artifact:
    """Create the artifact of an environment archive."""
    return Artifact(archive.path, f"environments/{archive.digest}/environment{archive.suffix}", archive.digest)


def program_artifact(path: Path) -> Artifact:
    """Create the artifact of a program. Raises UsageError if it is not a `.py` file, PackagingError if it cannot be read."""
    if path.suffix != ".py":
        raise UsageError(f"--job must be a Python program, such as jobs/archive.py; got {str(path)!r}")
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PackagingError(f"--job {path} cannot be read: {error.strerror or error}") from None
    return Artifact(path, f"programs/{digest}/{path.name}", digest)


class Store:
    """Stores the artifacts of jobs in an S3 bucket.

    `location` is `s3://bucket` or `s3://bucket/prefix`. Raises UsageError if it has another form.
    """

    def __init__(self, client: Any, location: str) -> None:
        self._client = client
        scheme, _, rest = location.partition("://")
        self._bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not self._bucket:
            raise UsageError(f"--artifacts must be s3://bucket or s3://bucket/prefix; got {location!r}")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def uri(self, key: str) -> str:
        """Return the S3 URI of a key."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def upload(self, artifact: Artifact) -> bool:
        """Upload an artifact unless it is in S3. After 30 days, uploads it again, so that the bucket does not expire an artifact in use.

        Returns whether it was uploaded.
        """
        with artifact.path.open("rb") as body:
            checksum = base64.b64encode(hashlib.file_digest(body, "sha256").digest()).decode()
            # Compare the checksum, too: another program may have written different contents under this key.
            found = self._object(artifact.key)
            if found.get("ChecksumSHA256") == checksum and datetime.now(UTC) - found["LastModified"] < _YOUNG:
                return False
            body.seek(0)
            self._call("put_object", artifact.key, Body=body, ChecksumAlgorithm="SHA256", ChecksumSHA256=checksum)
        return True

    def mark(self, key: str) -> None:
        """Write an empty object, such as a stop marker."""
        self._call("put_object", key, Body=b"")

    def _object(self, key: str) -> dict[str, Any]:
        """Return an object's metadata, with its SHA-256 in base64 if S3 computed it; empty if the object does not exist."""
        try:
            found: dict[str, Any] = self._client.head_object(
                Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED"
            )
        except ClientError as error:
            # S3 returns 403 for a missing object if the caller lacks s3:ListBucket. If access is really denied, the upload fails.
            if code_of(error) in ("404", "NoSuchKey", "NotFound", "403", "AccessDenied"):
                return {}
            raise self._platform_error("look at", key, error) from error
        except BotoCoreError as error:
            raise self._platform_error("look at", key, error) from error
        return found

    def _call(self, method: str, key: str, **request: Any) -> None:
        try:
            getattr(self._client, method)(Bucket=self._bucket, Key=self._prefix + key, **request)
        except (ClientError, BotoCoreError) as error:
            raise self._platform_error("write", key, error) from error

    def _platform_error(self, action: str, key: str, error: Exception) -> PlatformError:
        return PlatformError(
            f"cannot {action} {self.uri(key)}: {error}; check the bucket, and allow s3:GetObject and s3:PutObject on it"
        )


def split_uri(uri: str) -> tuple[str, str]:
    """Split the S3 URI of an object into the URI of its bucket and its key.

    >>> split_uri("s3://bucket/stops/lake/0a")
    ('s3://bucket', 'stops/lake/0a')
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return f"s3://{bucket}", key
