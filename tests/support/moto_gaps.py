"""What moto forgets or does not know of what Terraform's provider declares: without it, a second plan would not be empty."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree as ET

from multidict import CIMultiDict

from kinesis_efo_local.http import Answer, Incoming
from kinesis_efo_local.moto_proxy import MotoProxy
from tests.support.emr_applications import Applications

_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_UPDATE_TABLE = "DynamoDB_20120810.UpdateTable"


@contextmanager
def filled(account_id: str, region: str) -> Iterator[None]:
    """Let every local AWS of this process know EMR Serverless, tags of new buckets, and new keys of tables."""
    applications = Applications(account_id, region, time.time)
    forward = MotoProxy.forward

    async def filling(proxy: MotoProxy, request: Incoming, service: str = "") -> Answer:
        if request.headers.get("X-Amz-Target") == _UPDATE_TABLE:
            encrypt(account_id, region, json.loads(request.body))
        if service == "emr-serverless":
            found = applications.answer(request.method, request.path, request.body)
            if found is not None:
                return Answer(200, [("Content-Type", "application/json")], json.dumps(found).encode())
        answer = await forward(proxy, request, service)
        if service == "s3" and answer.status == 200 and (tags := tagging(request)) is not None:
            await forward(proxy, tags, service)
        return answer

    with patch.object(MotoProxy, "forward", filling):
        yield


def tagging(request: Incoming) -> Incoming | None:
    """The PutBucketTagging that belongs to a CreateBucket with tags; None for any other request.

    Args:
        request: A request for S3.
    """
    if request.method != "PUT" or "?" in request.path or b"CreateBucketConfiguration" not in request.body:
        return None
    try:
        wanted = ET.fromstring(request.body)
    except ET.ParseError:
        return None
    tags = wanted.findall(".//{*}Tags/{*}Tag")
    if not wanted.tag.endswith("CreateBucketConfiguration") or not tags:
        return None
    document = ET.Element("Tagging", xmlns=_SPACE)
    into = ET.SubElement(document, "TagSet")
    for tag in tags:
        copy = ET.SubElement(into, "Tag")
        for part in ("Key", "Value"):
            ET.SubElement(copy, part).text = tag.findtext(f"{{*}}{part}") or ""
    headers = CIMultiDict(request.headers)
    for name in ("Content-MD5", "Content-Length"):
        headers.popall(name, None)
    return Incoming("PUT", f"{request.path}?tagging", headers, ET.tostring(document))


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
