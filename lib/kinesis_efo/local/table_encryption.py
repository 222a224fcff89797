"""A table of DynamoDB that takes another key: moto takes no notice of that part of UpdateTable, so it is told directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def encrypt(account_id: str, region: str, params: Mapping[str, Any]) -> None:
    """Let moto show the encryption that an UpdateTable asks for. Without a table of that name, moto refuses the request itself.

    Args:
        account_id: The account of the table.
        region: The region of the table.
        params: The request.
    """
    wanted = params.get("SSESpecification")
    if not isinstance(wanted, dict):
        return
    from moto.dynamodb.models import dynamodb_backends

    table = dynamodb_backends[account_id][region].tables.get(params.get("TableName", ""))
    if table is not None:
        # Without a key it is AWS' own, which is not shown as a customer's.
        table.sse_specification = {"KMSMasterKeyId": "alias/aws/dynamodb", **wanted}
