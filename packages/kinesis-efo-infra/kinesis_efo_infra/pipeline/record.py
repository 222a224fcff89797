"""The record of what is deployed: a small document in S3 beside the state, one per deployment.

The record shows whether a run was cancelled or failed midway, so that the next run completes or undoes its changes. It also shows
whether a commit was deployed, because a CI system may drop a run from its queue. Jobs have no record: each job run contains a
fingerprint of what it was started with.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from botocore.exceptions import ClientError

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.pipeline.aws import asking
from kinesis_efo_infra.pipeline.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Deployed:
    """The record of a deployment: which configuration was applied.

    Attributes:
        commit: The commit that was applied last; empty if there was none.
        stack: Digest of the Terraform JSON that was applied.
        under_way: The commit that is being applied, or whose deployment failed or was stopped midway; empty if there is none.
    """

    commit: str = ""
    stack: str = ""
    under_way: str = ""


def read_object(s3: Any, bucket: str, key: str, account_id: str) -> bytes | None:
    """Read an object in the state bucket, such as the state; None if there is no such object.

    Args:
        s3: A boto3 client of S3.
        bucket: Name of the state bucket.
        key: The object's key.
        account_id: The account that the credentials must belong to.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
        PipelineError: The object cannot be read.
    """
    try:
        with asking(account_id):
            body: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise PipelineError(f"s3://{bucket}/{key} cannot be read: {error}") from error
    return body


class Records:
    """Reads and writes the records in the state bucket.

    Args:
        s3: A boto3 client of S3.
    """

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._tags: dict[str, str | None] = {}

    def state(self, deployment: Deployment) -> bytes | None:
        """Read the state of a deployment; None if there is none yet. Raises the same errors as `read_object`."""
        return read_object(self._s3, deployment.state_bucket, deployment.state_key, deployment.account_id)

    def load(self, deployment: Deployment) -> Deployed:
        """Read the record of a deployment; an empty one if there is none yet.

        Raises:
            AwsError: There are no credentials, or AWS cannot be reached.
            PipelineError: The record cannot be read.
        """
        key = deployment.record_key
        try:
            with asking(deployment.account_id):
                answer = self._s3.get_object(Bucket=deployment.state_bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                self._tags[key] = None
                return Deployed()
            raise PipelineError(f"s3://{deployment.state_bucket}/{key} cannot be read: {error}") from error
        self._tags[key] = answer["ETag"]
        try:
            return Deployed(**json.loads(answer["Body"].read()))
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f"s3://{deployment.state_bucket}/{key} is no record of a deployment ({error}); delete it, and "
                "everything counts as changed"
            ) from error

    def key(self, deployment: Deployment) -> str:
        """Return the key of the HMACs that replace secrets in plans. It is stored beside the state, and created if missing.

        Raises:
            AwsError: There are no credentials, or AWS cannot be reached.
            PipelineError: There is no key, and it cannot be created.
        """
        bucket, name = deployment.state_bucket, deployment.hmac_key
        try:
            if there := read_object(self._s3, bucket, name, deployment.account_id):
                return there.decode()
            made = secrets.token_hex(32)
            with asking(deployment.account_id):
                self._s3.put_object(Bucket=bucket, Key=name, Body=made.encode(), IfNoneMatch="*")
            return made
        except (ClientError, PipelineError) as error:
            raise PipelineError(
                f"s3://{bucket}/{name}, the key by which plans hide secrets, can be neither read nor written: {error}; run `make "
                f"bootstrap ENV={deployment.environment}`, which writes it and lets the pipeline's roles read it"
            ) from None

    def save(self, deployment: Deployment, deployed: Deployed) -> None:
        """Write the record of a deployment, which must have been loaded before.

        Raises:
            PipelineError: Another deployment wrote the record in between, or it cannot be written.
        """
        key = deployment.record_key
        tag = self._tags[key]
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        # Omit an empty `under_way`, because earlier versions of this code reject records that have it.
        said = {name: value for name, value in asdict(deployed).items() if value or name != "under_way"}
        body = json.dumps(said, indent=2, sort_keys=True).encode()
        try:
            with asking(deployment.account_id):
                answer = self._s3.put_object(
                    Bucket=deployment.state_bucket, Key=key, Body=body, ContentType="application/json", **condition
                )
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise PipelineError(
                    f"another deployment of {deployment.environment} wrote s3://{deployment.state_bucket}/{key} "
                    "meanwhile; run this one again when that one has ended"
                ) from error
            raise PipelineError(f"s3://{deployment.state_bucket}/{key} cannot be written: {error}") from error
        self._tags[key] = answer["ETag"]
