"""Checks with dry runs whether a query's AWS calls would succeed.

A dry run checks permissions and parameters, but not the KMS key, which has a separate check. Kinesis allows one dry run per second and
stream; this limit is separate from the throughput limits of shards. AWS does not document whether a dry run counts towards the limit of one
SubscribeToShard call per second, consumer and shard. https://docs.aws.amazon.com/streams/latest/dev/kds-dryrun-validation.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from kinesis_efo.aws import domains_of_aws
from kinesis_efo.aws_errors import CALL_ERRORS, Cause, cause_of, code_of, describe
from kinesis_efo.leases.owner import readable
from kinesis_efo.manifest import StreamRef
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown, Finding, Status, existing, finding

_SUCCEEDS: Final = "DryRunOperationException"
_THROTTLED: Final = "ThrottlingException"
_GETTING: Final = "kinesis:GetShardIterator and kinesis:GetRecords"
_OF_AWS: Final = "alias/aws/kinesis"
_BROKEN_KEY: Final = {
    "DisabledException": "enable the key",
    "KMSInvalidStateException": "bring the key back to state Enabled (it may be pending deletion)",
    "NotFoundException": "restore the key, or set the stream to another one",
}


async def subscribing(clients: Clients, ref: StreamRef, owners: Collection[str], *, anyway: bool) -> Finding:
    """Check with a dry run that a subscription would succeed.

    `owners` are the workers that own leases of the stream. If there are any, only AWS' endpoints are called unless `anyway` is
    set: other endpoints may not support dry runs, and would then disconnect the owner.
    """

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        if not _has_dry_run(kinesis, "SubscribeToShard"):
            raise CheckUnknown(
                "this botocore does not support dry runs of SubscribeToShard", "upgrade boto3 and aiobotocore"
            )
        if owners and not anyway and not of_aws(kinesis.meta.endpoint_url):
            # An endpoint that ignores `DryRun` would open a real subscription and disconnect the reader.
            raise CheckUnknown(
                f"not tried: {readable(min(owners))} owns the stream's lease ('kinesis-efo lag' shows whether it reads), and "
                f"{kinesis.meta.endpoint_url} may not know dry runs, and subscribe in earnest",
                "to try anyway, use --subscribe-anyway",
            )
        shard = await _first_shard(kinesis, ref)
        try:
            with _closed_on_failure(kinesis, "SubscribeToShard"):
                answer = await kinesis.subscribe_to_shard(
                    ConsumerARN=ref.consumer_arn,
                    ShardId=shard,
                    StartingPosition={"Type": "LATEST"},
                    DryRun=True,
                )
        except ClientError as error:
            return _outcome(
                error, f"{ref.consumer_arn} does not exist (any more)", "deploy again, and restart the query"
            )
        answer["EventStream"].close()
        raise CheckUnknown(
            "the endpoint does not support dry runs: a subscription was opened and closed", "use AWS' endpoint"
        )

    return await finding(f"subscribing to {ref.name}", look(), action="kinesis:SubscribeToShard")


async def polling(clients: Clients, ref: StreamRef) -> Finding:
    """Check that GetRecords may be called for the first shard. Reads one record if this version of botocore does not support dry runs."""

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        with existing(f"{ref.stream_arn} does not exist", "deploy it"):
            shard = await _first_shard(kinesis, ref)
            answer = await kinesis.get_shard_iterator(
                StreamARN=ref.stream_arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
            )
            dry: dict[str, bool] = {"DryRun": True} if _has_dry_run(kinesis, "GetRecords") else {}
            try:
                await kinesis.get_records(
                    StreamARN=ref.stream_arn, ShardIterator=answer["ShardIterator"], Limit=1, **dry
                )
            except ClientError as error:
                return f"GetRecords {_outcome(error, f'{ref.stream_arn} does not exist', 'deploy it')}"
        return "GetRecords answers"

    return await finding(f"polling {ref.name}", look(), action=_GETTING)


async def catching_up(clients: Clients, ref: StreamRef) -> Finding:
    """Check that a query that falls behind other queries of its program may catch up with GetRecords.

    Calls GetShardIterator, which policies allow together with GetRecords. A dry run of GetRecords would be throttled: Kinesis allows one
    dry run per second and stream, and the subscription check uses it.
    """

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        try:
            shard = await _first_shard(kinesis, ref)
        except ClientError as error:
            raise CheckUnknown("not tried: its shards cannot be listed", f"see shards of {ref.name}") from error
        try:
            await kinesis.get_shard_iterator(StreamARN=ref.stream_arn, ShardId=shard, ShardIteratorType="LATEST")
        except ClientError as error:
            if cause_of(error) is not Cause.DENIED:
                raise
            raise CheckUnknown(
                f"{describe(error)}. A query alone in its program does without; several wait for the slowest of them",
                f"for several, allow {_GETTING}: infra/ does so unless the application has `polling: false`",
            ) from error
        return "GetShardIterator answers (--polling tries GetRecords, too)"

    return await finding(f"catching up on {ref.name}", look(), action=_GETTING)


async def key(clients: Clients, ref: StreamRef) -> Finding | None:
    """Check that an encrypted stream's KMS key can be used, which Kinesis dry runs do not check; None if the stream has no key."""
    kinesis = await clients.client("kinesis")
    try:
        answer = await kinesis.describe_stream_summary(StreamARN=ref.stream_arn)
    except CALL_ERRORS as error:
        return Finding(f"key of {ref.name}", Status.UNKNOWN, f"not tried: {describe(error)}", f"see stream {ref.name}")
    summary = answer["StreamDescriptionSummary"]
    if summary.get("EncryptionType") != "KMS":
        return None
    key_id = str(summary["KeyId"])

    async def look() -> str:
        if key_id.endswith(_OF_AWS):
            return f"{key_id} is AWS' own: every role of the account that may read the stream may use it"
        kms = await clients.client("kms")
        if "DryRunModifiers" not in _members(kms, "Decrypt"):
            raise CheckUnknown(
                f"this botocore does not support dry runs of kms:Decrypt on {key_id} without a ciphertext",
                "upgrade boto3 and aiobotocore",
            )
        try:
            await kms.decrypt(KeyId=key_id, DryRun=True, DryRunModifiers=["IGNORE_CIPHERTEXT"])
        except ClientError as error:
            if code_of(error) != "InvalidCiphertextException":  # an endpoint that ignores DryRun returns this error
                return _key_outcome(error, key_id)
        raise CheckUnknown("the endpoint does not support dry runs of kms:Decrypt", "use AWS' endpoint")

    return await finding(f"key of {ref.name}", look(), action=f"kms:Decrypt on {key_id}", needed=False)


async def _first_shard(kinesis: Any, ref: StreamRef) -> str:
    listed = await kinesis.list_shards(StreamARN=ref.stream_arn, MaxResults=1)
    if not listed["Shards"]:
        raise CheckUnknown("not tried: the stream has no shards", f"see shards of {ref.name}")
    return str(listed["Shards"][0]["ShardId"])


def _key_outcome(error: ClientError, key_id: str) -> str:
    code = code_of(error)
    if code == _SUCCEEDS:
        return f"kms:Decrypt on {key_id} is allowed (dry run)"
    if code in _BROKEN_KEY:
        raise CheckFailed(f"{key_id}: {describe(error)}", _BROKEN_KEY[code]) from error
    if cause_of(error) is Cause.DENIED:
        # Policies with the condition kms:ViaService, such as those in infra/, allow the key only through Kinesis and deny this direct call.
        raise CheckUnknown(
            f"kms:Decrypt on {key_id} is not allowed to this role directly; whether it is through Kinesis cannot be tried",
            "see that the role's policy and the key's allow kms:Decrypt on it, at least through Kinesis (kms:ViaService)",
        ) from error
    raise error


def _outcome(error: ClientError, missing: str, fix: str) -> str:
    """Return the result of a dry run from its error: AWS reports success as an error, too. Raises an error if the call might fail."""
    if code_of(error) == _SUCCEEDS:
        return "allowed (dry run)"
    if code_of(error) == _THROTTLED:
        raise CheckUnknown(
            describe(error), "try again: AWS allows one dry run a second for each stream, and another program used it"
        ) from error
    if cause_of(error) is Cause.IN_USE:
        raise CheckUnknown(describe(error), "another reader uses this consumer now") from error
    with existing(missing, fix):
        raise error


def of_aws(endpoint: str) -> bool:
    """Whether an endpoint belongs to AWS, in any partition, including private endpoints.

    >>> of_aws("https://kinesis.eu-west-1.amazonaws.com"), of_aws("http://127.0.0.1:4566"), of_aws("https://amazonaws.com.example")
    (True, False, False)
    """
    return (urlsplit(endpoint).hostname or "").endswith(domains_of_aws())


def _has_dry_run(client: Any, operation: str) -> bool:
    return "DryRun" in _members(client, operation)


def _members(client: Any, operation: str) -> Collection[str]:
    members: Collection[str] = client.meta.service_model.operation_model(operation).input_shape.members
    return members


@contextmanager
def _closed_on_failure(client: Any, operation: str) -> Iterator[None]:
    """Close an operation's responses if the `with` block fails: if the SDK cannot parse an event stream, it leaves the response open."""
    sent: list[Any] = []
    event, remember = f"before-send.kinesis.{operation}", lambda request, **_: sent.append(request)
    client.meta.events.register(event, remember)
    try:
        yield
    except BaseException:
        for request in sent:
            if (answer := getattr(request, "answer", None)) is not None:
                answer.raw.close()
        raise
    finally:
        client.meta.events.unregister(event, remember)
