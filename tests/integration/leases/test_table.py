"""The lease table against DynamoDB's API over HTTP (moto)."""

import asyncio
import re
from typing import Any

import pytest

from kinesis_efo.errors import LeaseTableError
from kinesis_efo.leases.row import Item, Lease, LeaseInfo
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.leases.table import LeaseTable
from tests.support.lease_contract import LeaseStoreContract, Scenario
from tests.support.messages import raises

from .conftest import create_table, dynamodb

DECLARED_BY = "stack kinesis-efo-dev of manifest ssm:///kinesis-efo/dev/lake"


class TestLeaseTable(LeaseStoreContract):
    client: Any
    name: str

    @pytest.fixture(autouse=True)
    def _server(self, moto: str) -> None:
        self.url = moto

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with dynamodb(self.url) as self.client:
                self.name = await create_table(self.client)
                table = LeaseTable(self.client, self.name, declared_by=DECLARED_BY)
                await table.check()
                await scenario(table)

        asyncio.run(main())

    async def put_item(self, store: LeaseStore, item: Item) -> None:
        await self.client.put_item(TableName=self.name, Item=item)

    async def get_item(self, store: LeaseStore, key: str) -> Item:
        answer = await self.client.get_item(TableName=self.name, Key={"leaseKey": {"S": key}}, ConsistentRead=True)
        item: Item = answer["Item"]
        return item

    # Shows 68.
    async def test_all_pages_are_scanned(self, store: LeaseStore) -> None:
        pages = 0

        class SmallPages:
            meta = self.client.meta

            async def scan(self, **request: Any) -> Any:
                nonlocal pages
                pages += 1
                assert request["ConsistentRead"] is True
                return await client.scan(**request, Limit=3)

        client = self.client
        keys = {f"shardId-{i:012d}" for i in range(10)}
        await asyncio.gather(*(store.create(Lease.new(key, LeaseInfo())) for key in keys))
        scan = await LeaseTable(SmallPages(), self.name, declared_by=DECLARED_BY).scan()  # type: ignore[arg-type]
        assert scan.leases.keys() == keys
        assert pages >= 4


def check(url: str, name: str | None = None, keys: tuple[tuple[str, str, str], ...] = ()) -> None:
    async def main() -> None:
        async with dynamodb(url) as client:
            await LeaseTable(client, name or await create_table(client, keys), declared_by=DECLARED_BY).check()

    asyncio.run(main())


# Shows 77.
def test_a_missing_table_is_named_with_what_declares_it(moto: str) -> None:
    with raises(
        LeaseTableError,
        "lease table nowhere in eu-west-1 does not exist; it is declared by stack kinesis-efo-dev of manifest "
        "ssm:///kinesis-efo/dev/lake, and a query never creates it: deploy that first",
    ):
        check(moto, "nowhere")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((("id", "HASH", "S"),), "HASH id (S)"),
        ((("leaseKey", "HASH", "N"),), "HASH leaseKey (N)"),
        ((("leaseKey", "HASH", "S"), ("shard", "RANGE", "S")), "HASH leaseKey (S), RANGE shard (S)"),
    ],
)
def test_a_table_with_another_key_is_no_lease_table(moto: str, keys: Any, said: str) -> None:
    with pytest.raises(
        LeaseTableError, match=re.escape(f"has the key schema {said}, a lease table has HASH leaseKey (S)")
    ):
        check(moto, keys=keys)
