"""Implements the interface of `store.py` with a DynamoDB table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError, SSLError

from kinesis_efo.aws import pages_of
from kinesis_efo.aws_errors import Cause, cause_of, code_of, credentials_remedy, describe, is_foreign, skew_of
from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.row import OBSOLETE, Item, Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan

_FOR_NOW: Final = (Cause.PASSING, Cause.IN_USE, Cause.CREDENTIALS_UNREACHABLE)
"""The causes of transient errors. An unknown error code does not count as transient: it ends the run, with the code in the error."""


def client_config(lease_timeout: float) -> AioConfig:
    """Return the configuration of a DynamoDB client. Its timeouts are short: a response after `lease_timeout` seconds is useless."""
    return AioConfig(
        connect_timeout=lease_timeout / 6,
        read_timeout=lease_timeout / 6,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=34,  # a run that is stopping sends up to 32 concurrent writes
    )


class LeaseTable(LeaseStore):
    """The lease table of one application. `client` is an aiobotocore DynamoDB client, `name` the table's name or ARN.

    This class does not create the table. `declared_by` names, for messages, the manifest and infrastructure that declare the table.
    """

    def __init__(self, client: Any, name: str, *, declared_by: str) -> None:
        self._client = client
        self._name = name
        self._declared_by = declared_by

    @property
    def label(self) -> str:
        return f"lease table {self._name} in {self._client.meta.region_name}"

    async def check(self) -> str:
        answer = await self._call("DescribeTable", self._client.describe_table(TableName=self._name))
        table = answer["Table"]
        status = table.get("TableStatus")
        if status == "CREATING":
            raise TableUnavailableError(f"{self.label} is still being created; wait until it is ACTIVE")
        if status not in ("ACTIVE", "UPDATING"):
            raise LeaseTableError(f"{self.label} is {status}, expected ACTIVE; {self._remedy}")
        types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
        keys = [f"{each['KeyType']} {each['AttributeName']} ({types[each['AttributeName']]})"
                for each in table["KeySchema"]]  # fmt: skip
        if keys != ["HASH leaseKey (S)"]:
            raise LeaseTableError(
                f"{self.label} has the key schema {', '.join(keys)}, a lease table has HASH leaseKey (S): "
                f"it is not a lease table; {self._remedy}"
            )
        return str(table["TableArn"])

    async def scan(self) -> Scan:
        async def call(**start: Any) -> dict[str, Any]:
            return await self._call("Scan", self._client.scan(TableName=self._name, ConsistentRead=True, **start))

        scan = Scan()
        async for page in pages_of(f"Scan of {self.label}", call, {}, _after):
            self.add_rows(scan, page["Items"])
        return scan

    async def create(self, lease: Lease) -> Outcome:
        request = {"Item": lease.to_item(), "ConditionExpression": "attribute_not_exists(leaseKey)"}
        return await self._write("PutItem", self._client.put_item, lease, **request)

    async def update(self, before: Lease, after: Lease) -> Outcome:
        request = _update_request(before, after)
        return await self._write("UpdateItem", self._client.update_item, after, ReturnValues="ALL_NEW", **request)

    async def delete(self, seen: Lease) -> Outcome:
        return await self._write("DeleteItem", self._client.delete_item, seen, **_fenced(seen))

    async def _write(
        self, action: str, send: Callable[..., Awaitable[dict[str, Any]]], lease: Lease, **request: Any
    ) -> Outcome:
        request |= {"TableName": self._name, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            answer = await self._call(action, send(**request))
        except ClientError as error:  # the condition failed: `_call` has translated all other errors
            return Conflict(self.to_lease(error.response.get("Item", {})))
        return self.to_lease(answer.get("Attributes", {})) or lease

    async def _call(self, action: str, call: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Await a call and translate its error. The error of a failed condition is not translated, because the caller handles it."""
        try:
            return await call
        except Exception as error:
            if code_of(error) == "ConditionalCheckFailedException":
                raise
            cause = cause_of(error)
            if cause in _FOR_NOW:
                known = is_foreign(error) or skew_of(error) is not None or isinstance(error, SSLError)
                reason = describe(error) if known else str(error) or type(error).__name__
                raise TableUnavailableError(f"{self.label}: {action} failed for now: {reason}") from error
            if isinstance(error, ClientError | BotoCoreError):
                raise self._fatal(action, cause, error) from error
            raise

    def _fatal(self, action: str, cause: Cause, error: Exception) -> LeaseTableError:
        if cause is Cause.MISSING:
            return LeaseTableError(f"{self.label} does not exist", remedy=self._remedy)
        meta = self._client.meta
        if cause is Cause.DENIED:
            by_name = f"arn:{meta.partition}:dynamodb:{meta.region_name}:*:table/{self._name}"
            return LeaseTableError(
                f"not allowed: dynamodb:{action} on {self._name if self._name.startswith('arn:') else by_name} ({self.label}): "
                f"{describe(error)}",
                remedy="attach the runtime policy of the application to the role that runs the query",
            )
        if cause is Cause.NO_CREDENTIALS:
            remedy = credentials_remedy(error)
        elif cause is Cause.EXPIRED:
            remedy = "check the AWS credentials of the process"
        elif "dynamodb" not in meta.endpoint_url:
            remedy = (
                f"it was sent to {meta.endpoint_url}, because kinesis-efo option 'endpointUrl' or AWS_ENDPOINT_URL is for every service: if that "
                "is Kinesis' endpoint only, set AWS_ENDPOINT_URL_KINESIS in its place"
            )
        elif cause is Cause.UNRECOGNIZED:
            remedy = "check the AWS credentials of the process, and the region"
        else:
            remedy = self._remedy
        return LeaseTableError(f"{self.label}: {action} failed: {describe(error)}", remedy=remedy)

    @property
    def _remedy(self) -> str:
        return f"it is declared by {self._declared_by}, and a query never creates it: deploy that first"


def _after(page: dict[str, Any]) -> dict[str, Any] | None:
    return {"ExclusiveStartKey": key} if (key := page.get("LastEvaluatedKey")) else None


def _fenced(seen: Lease) -> dict[str, Any]:
    """Return request parameters that address a row, on the condition that it still has the owner and counter of `seen`."""
    values: Item = {":counter": {"N": str(seen.counter)}}
    owned = "attribute_not_exists(leaseOwner)"
    if seen.owner is not None:
        owned, values[":owner"] = "leaseOwner = :owner", {"S": seen.owner}
    return {
        "Key": {"leaseKey": {"S": seen.key}},
        "ConditionExpression": f"leaseCounter = :counter AND {owned}",
        "ExpressionAttributeValues": values,
    }


def _update_request(before: Lease, after: Lease) -> dict[str, Any]:
    """Build the request that changes a row from `before` to `after`. Attributes that this library does not define stay unchanged."""
    old, new = before.to_item(), after.to_item()
    changed = sorted(name for name in new if old.get(name) != new[name])
    gone = sorted(set(old) - set(new))
    if not after.is_run:
        gone += [name for name in OBSOLETE if name not in gone]
    # Use placeholders for all attribute names: a name such as "endpoint" may become a reserved word of DynamoDB.
    short = {name: f"#n{i}" for i, name in enumerate([*changed, *gone])}
    expression = "SET " + ", ".join(f"{short[name]} = :v{i}" for i, name in enumerate(changed))
    if gone:
        expression += " REMOVE " + ", ".join(short[name] for name in gone)
    request = _fenced(before)
    request["ExpressionAttributeValues"] |= {f":v{i}": new[name] for i, name in enumerate(changed)}
    names = {placeholder: name for name, placeholder in short.items()}
    return {**request, "UpdateExpression": expression, "ExpressionAttributeNames": names}
