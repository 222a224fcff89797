"""The API of DynamoDB over HTTP (moto)."""

import itertools
from collections.abc import Iterator
from typing import Any

import aiobotocore.session
import pytest

from kinesis_efo.aws import with_shared_loader
from kinesis_efo.leases.table import client_config
from kinesis_efo_local import LocalAws

_numbers = itertools.count()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    # Not moto's own server: its threads check a condition and write in two steps, which DynamoDB does not.
    with LocalAws() as aws:
        yield aws.endpoint_url


def dynamodb(url: str, region: str = "eu-west-1", lease_timeout: float = 120) -> Any:
    return with_shared_loader(aiobotocore.session.get_session()).create_client(
        "dynamodb",
        region_name=region,
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=client_config(lease_timeout),
    )


async def create_table(client: Any, keys: tuple[tuple[str, str, str], ...] = (("leaseKey", "HASH", "S"),)) -> str:
    name = f"leases-{next(_numbers)}"
    await client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": role} for key, role, _ in keys],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, _, kind in keys],
        BillingMode="PAY_PER_REQUEST",
    )
    return name
